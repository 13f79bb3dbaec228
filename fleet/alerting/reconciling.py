"""From findings to alerts: open the new, refresh the lasting, resolve the rest."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from django.db import transaction

from fleet.alerting.events import Kind, change, note
from fleet.alerting.firing import fire
from fleet.alerting.muting import apply_silences
from fleet.alerting.pairing import Subject, by_subject, has_same_culprit, key_of, pair
from fleet.alerting.recurrence import QUIET
from fleet.alerting.refreshing import refresh
from fleet.models import Alert
from fleet.silences.muting import active_silences
from telemetry.detect import Finding
from telemetry.detect.finding import UNKNOWN


def reconcile(
    findings: Iterable[Finding], *, watched: Collection[Subject], now: datetime
) -> list[Alert]:
    """Make the open alerts of what was watched say what the findings say.

    A rule that could not look at a subject leaves its alert alone: no news is not good news.
    Returns the alerts that changed in a way a person would want to know.
    """
    found = by_subject(findings)
    if not found and not Alert.objects.open().exists():
        return []
    return _reconcile(found, watched, now=now)


@transaction.atomic
def _reconcile(
    found: Mapping[Subject, Finding], watched: Collection[Subject], *, now: datetime
) -> list[Alert]:
    alerts = Alert.objects.open().select_related("run", "node", "silence")
    # A simulated run's plan and clocks are long, and say nothing of its alerts.
    held = list(alerts.defer("run__plan", "run__clock"))
    paired = pair(found, held)
    lasting = {alert.pk for alert in paired.values()}
    over = [alert for alert in held if alert.pk not in lasting]
    changed = [alert for alert in over if _merge(alert, found, paired, now=now)]
    changed += [alert for alert in over if alert.is_open and _end(alert, watched, now=now)]
    taken = {key_of(alert) for alert in over if alert.is_open}
    changed += _refresh_all(found, paired, taken, now=now)
    fired = [fire(found[key], key, now=now) for key in found if key not in paired]
    changed += filter(None, fired)
    still_open = {alert.pk: alert for alert in (*held, *changed) if alert.is_open}
    muted = apply_silences(still_open.values(), active_silences(now=now), now=now)
    return list({alert.pk: alert for alert in (*changed, *muted)}.values())


def _refresh_all(
    found: Mapping[Subject, Finding],
    paired: Mapping[Subject, Alert],
    taken: Collection[Subject],
    *,
    now: datetime,
) -> list[Alert]:
    """Bring the lasting alerts up to date, those without news all at once.

    None moves to a rule and subject that are ``taken``: there an alert waits for its end.
    """
    changed, calm = [], []
    for key, alert in paired.items():
        if alert.last_seen_at >= now:
            continue
        is_in_the_way = key_of(alert) != key and key_of(alert) in found
        goal = key_of(alert) if key in taken else key
        news = refresh(alert, found[key], goal, now=now, must_move=is_in_the_way)
        if news is None:
            calm.append(alert.pk)
        elif news:
            changed.append(alert)
    if calm:
        Alert.objects.open().filter(pk__in=calm, last_seen_at__lt=now).update(last_seen_at=now)
    return changed


def _merge(
    alert: Alert,
    found: Mapping[Subject, Finding],
    paired: Mapping[Subject, Alert],
    *,
    now: datetime,
) -> bool:
    """Resolve an alert whose culprit another alert names by now."""
    twins = (
        other
        for key, other in paired.items()
        if found[key].cause != UNKNOWN and has_same_culprit(alert, found[key])
    )
    if (twin := next(twins, None)) is None or alert.last_seen_at >= now:
        return False
    return _resolve(alert, now=now, text=f"alert {twin.pk} tells it from here on")


def _end(alert: Alert, watched: Collection[Subject], *, now: datetime) -> bool:
    """Resolve an alert that is no longer found; say whether it is over."""
    if alert.last_seen_at >= now:
        return False
    if key_of(alert) not in watched:
        run = alert.run
        is_gone = run is not None and run.finished_at is not None and run.finished_at <= now
        return is_gone and _resolve(alert, now=now, text="its run is over")
    if alert.flapping_since is None:
        return _resolve(alert, now=now)
    as_seen = {"resolved_at": None, "last_seen_at": alert.last_seen_at}
    if alert.quiet_since is None:
        change(alert, if_still=as_seen, to={"quiet_since": now})
        return False
    if now - alert.quiet_since < QUIET:
        return False
    return _resolve(alert, now=now, text=f"quiet for 10 minutes, after {alert.n_firings} firings")


def _resolve(alert: Alert, *, now: datetime, text: str = "") -> bool:
    as_seen = {"resolved_at": None, "last_seen_at": alert.last_seen_at}
    if not change(alert, if_still=as_seen, to={"resolved_at": now, "quiet_since": None}):
        return False
    note(alert, Kind.RESOLVED, now=now, text=text)
    return True
