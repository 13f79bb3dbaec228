"""Silences: create, change and expire them, and silence the alerts that they match."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import transaction

from fleet.alerts.events import Kind, change, note
from fleet.alerts.matchers import (
    LONGEST_TEXT,
    Matcher,
    ParsedSilence,
    active_silences,
    matches,
    matching_silences,
    parse_matchers,
    written,
)
from fleet.models import Alert, Silence, SilenceEvent
from telemetry.errors import FieldError

LONGEST = timedelta(days=30)


@transaction.atomic
def silence(matchers: str, *, ends_at: datetime, reason: str, by: str, now: datetime) -> Silence:
    """Silence every alert that the matchers accept, from now until ``ends_at``.

    Raises FieldError where the matchers are invalid, the end is not in the future or there is no
    reason.
    """
    text, reason = written(parse_matchers(matchers)), reason.strip()
    if not reason:
        raise FieldError("reason", "is empty. Say why the alerts are silenced.")
    for name, value in (("matchers", text), ("reason", reason)):
        if len(value) > LONGEST_TEXT:
            raise FieldError(name, f"is longer than {LONGEST_TEXT} characters. Shorten it.")
    _check_end(ends_at, now=now)
    silence = Silence.objects.create(
        matchers=text, reason=reason, by=by, starts_at=now, ends_at=ends_at
    )
    _record(silence, SilenceEvent.Kind.CREATED, by=by, now=now, text=f"until {_at(ends_at)}")
    return silence


@transaction.atomic
def move_end(silence: Silence, *, to: datetime, by: str, now: datetime) -> bool:
    """Change the end of a silence; False if it is over or was changed concurrently."""
    _check_end(to, now=now)
    as_read = Silence.objects.active(now).filter(pk=silence.pk, ends_at=silence.ends_at)
    if not as_read.update(ends_at=to):
        return False
    text = f"from {_at(silence.ends_at)} to {_at(to)}"
    silence.ends_at = to
    _record(silence, SilenceEvent.Kind.END_MOVED, by=by, now=now, text=text)
    return True


@transaction.atomic
def expire(silence: Silence, *, by: str, now: datetime) -> bool:
    """End a silence now; False if it has already ended."""
    if not Silence.objects.active(now).filter(pk=silence.pk).update(ends_at=now, expired_by=by):
        return False
    silence.ends_at, silence.expired_by = now, by
    _record(silence, SilenceEvent.Kind.EXPIRED, by=by, now=now)
    return True


def _check_end(ends_at: datetime, *, now: datetime) -> None:
    if ends_at <= now:
        raise FieldError("ends_at", "is not in the future. Choose a later time.")
    if ends_at > now + LONGEST:
        raise FieldError(
            "ends_at", f"is more than {LONGEST.days} days ahead. Choose an earlier day."
        )


def _record(silence: Silence, kind: str, *, by: str, now: datetime, text: str = "") -> None:
    """Record a change of a silence, and update the open alerts."""
    SilenceEvent.objects.create(silence=silence, at=now, kind=kind, by=by, text=text)
    open_ = Alert.objects.open().select_related("run", "node", "silence")
    apply_silences(open_, active_silences(now=now), now=now)


def apply_silences(
    alerts: Iterable[Alert], silences: Iterable[ParsedSilence], *, now: datetime
) -> list[Alert]:
    """Silence and unsilence open alerts, with timeline entries; return those that changed."""
    changed = []
    for alert in alerts:
        matched = matching_silences(silences, alert)
        is_unchanged = any(each.pk == alert.silence_id for each in matched)
        if is_unchanged or (alert.silence_id is None and not matched):
            continue
        as_read = {"silence_id": alert.silence_id, "resolved_at": None}
        by = matched[0] if matched else None
        if not change(alert, if_still=as_read, to={"silence": by}):
            continue
        if by is None:
            note(alert, Kind.UNSILENCED, now=now, text="it still fires")
        else:
            text = f"until {_at(by.ends_at)}: {by.reason}"
            note(alert, Kind.SILENCED, now=now, by=by.by, text=text)
        changed.append(alert)
    return changed


def _at(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


LOOK_BACK = timedelta(days=7)
# With fewer alerts than this, matching all of them means nothing.
FEW = 3


@dataclass(frozen=True, slots=True)
class SilencePreview:
    """What a silence would match: of the open alerts, and of those of the past week."""

    matchers: tuple[Matcher, ...]
    open: list[Alert]
    n_open: int
    past: list[Alert]
    n_past: int

    @property
    def is_everything(self) -> bool:
        """Whether it would silence every alert, as far as the past week shows."""
        n_alerts = self.n_open + self.n_past
        is_all = len(self.open) + len(self.past) == n_alerts
        return not self.matchers or (is_all and n_alerts >= FEW)


def preview(text: str, *, now: datetime) -> SilencePreview:
    """List what matchers would silence; raises FieldError where they are invalid."""
    matchers, alerts = parse_matchers(text), Alert.objects.select_related("run", "node", "silence")
    open_ = list(alerts.open().worst_first())
    resolved = alerts.filter(resolved_at__isnull=False, fired_at__gt=now - LOOK_BACK)
    past = list(resolved.defer("victims").order_by("-fired_at", "-pk"))
    return SilencePreview(
        matchers,
        [alert for alert in open_ if matches(matchers, alert, whole=True)],
        len(open_),
        [alert for alert in past if matches(matchers, alert, whole=True)],
        len(past),
    )


SPANS = {
    "1h": "1 hour",
    "4h": "4 hours",
    "tomorrow": "until tomorrow 09:00 UTC",
    "until": "until …",
}
HOURS = {"1h": 1, "4h": 4}
MORNING_H = 9


def end_of(span: str, *, until: datetime | None = None, now: datetime) -> datetime:
    """Return the end of a span that begins now; ``until`` belongs to the span "until"."""
    if span in HOURS:
        return now + timedelta(hours=HOURS[span])
    if span == "tomorrow":
        morning = now.astimezone(UTC).replace(hour=MORNING_H, minute=0, second=0, microsecond=0)
        return morning + timedelta(days=1)
    if until is None:
        raise FieldError("until", "is empty. Give a date and time in UTC, as 2026-11-21T14:30.")
    return until
