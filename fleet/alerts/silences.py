"""Silences at work: made, moved, ended early, and what they mute told on each timeline."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction

from fleet.alerts.events import Kind, change, note
from fleet.alerts.matchers import Read, active_silences, muting, parse_matchers, written
from fleet.models import Alert, Silence, SilenceEvent

LONGEST = timedelta(days=30)
LONGEST_TEXT = 500


class SilenceError(ValueError):
    """What was asked of a silence cannot be done; the message names the field and the remedy."""


@transaction.atomic
def silence(matchers: str, *, ends_at: datetime, reason: str, by: str, now: datetime) -> Silence:
    """Mute whatever the matchers mean until a moment, from now on.

    Raises
    ------
    MatcherError, SilenceError
        Where the matchers cannot be read, the end is not ahead or there is no reason.
    """
    text, reason = written(parse_matchers(matchers)), reason.strip()
    if not reason:
        raise SilenceError("reason: is empty; say why nobody needs to be told")
    for name, value in (("matchers", text), ("reason", reason)):
        if len(value) > LONGEST_TEXT:
            raise SilenceError(f"{name}: is longer than {LONGEST_TEXT} characters")
    _check_end(ends_at, now=now)
    made = Silence.objects.create(
        matchers=text, reason=reason, by=by, starts_at=now, ends_at=ends_at
    )
    _tell(made, SilenceEvent.Kind.CREATED, by=by, now=now, text=f"until {_at(ends_at)}")
    sweep(now=now)
    return made


@transaction.atomic
def move_end(silence: Silence, *, to: datetime, by: str, now: datetime) -> bool:
    """Let a silence end at another time; False where it was over or moved meanwhile."""
    _check_end(to, now=now)
    held = Silence.objects.active(now).filter(pk=silence.pk, ends_at=silence.ends_at)
    if not held.update(ends_at=to):
        return False
    text = f"from {_at(silence.ends_at)} to {_at(to)}"
    silence.ends_at = to
    _tell(silence, SilenceEvent.Kind.END_MOVED, by=by, now=now, text=text)
    sweep(now=now)
    return True


@transaction.atomic
def expire(silence: Silence, *, by: str, now: datetime) -> bool:
    """End a silence now; False where it was over."""
    if not Silence.objects.active(now).filter(pk=silence.pk).update(ends_at=now, expired_by=by):
        return False
    silence.ends_at, silence.expired_by = now, by
    _tell(silence, SilenceEvent.Kind.EXPIRED, by=by, now=now)
    sweep(now=now)
    return True


def sweep(*, now: datetime) -> None:
    """Make all open alerts say by what they are muted."""
    apply_silences(
        Alert.objects.open().select_related("run", "node", "silence"),
        active_silences(now=now),
        now=now,
    )


def apply_silences(
    alerts: Iterable[Alert], silences: Iterable[Read], *, now: datetime
) -> list[Alert]:
    """Mute and unmute these open alerts, each with its event; return those that changed."""
    changed = []
    for alert in alerts:
        muted_by = muting(silences, alert)
        if alert.silence_id is None and not muted_by:
            continue
        if alert.silence_id not in {each.pk for each in muted_by} and _mute(
            alert, muted_by[0] if muted_by else None, now=now
        ):
            changed.append(alert)
    return changed


def _mute(alert: Alert, by: Silence | None, *, now: datetime) -> bool:
    was = {"silence_id": alert.silence_id, "resolved_at": None}
    if not change(alert, if_still=was, to={"silence": by}):
        return False
    if by is None:
        note(alert, Kind.UNSILENCED, now=now, text="it still fires")
    else:
        text = f"until {_at(by.ends_at)}: {by.reason}"
        note(alert, Kind.SILENCED, now=now, by=by.by, text=text)
    return True


def _check_end(ends_at: datetime, *, now: datetime) -> None:
    if ends_at <= now:
        raise SilenceError("end: is not ahead; choose a later time, or end the silence")
    if ends_at > now + LONGEST:
        raise SilenceError(f"end: is more than {LONGEST.days} days ahead; choose an earlier day")


def _tell(silence: Silence, kind: str, *, by: str, now: datetime, text: str = "") -> None:
    SilenceEvent.objects.create(silence=silence, at=now, kind=kind, by=by, text=text)


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
