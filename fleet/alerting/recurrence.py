"""What comes back: on the same row, on a row that knows the earlier one, or over and over."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import Q

from fleet.alerting.events import Kind, change, note
from fleet.alerting.pairing import Subject, agrees, has_same_culprit, key_of
from fleet.models import Alert, AlertEvent
from telemetry.detect import Finding
from telemetry.detect.finding import UNKNOWN
from telemetry.detect.steps.localise import LAYOUT

# Back this soon, it was never over.
REFIRES_WITHIN = timedelta(minutes=5)
# Without a culprit of its own, it is taken for the earlier one's doing this soon only.
BLAMES_ON_WITHIN = timedelta(minutes=1)
RECURS_WITHIN = timedelta(hours=1)
FLAPS_AT, FLAPS_WITHIN = 3, timedelta(minutes=30)
QUIET = timedelta(minutes=10)
FIRINGS = (Kind.FIRED, Kind.REFIRED)
# No problem has more rows within the time in which firings are counted.
LONGEST_CHAIN = 6


def last_time(key: Subject, finding: Finding, *, now: datetime) -> Alert | None:
    """Return the last alert of the same problem, if it resolved within the hour."""
    rule, subject = key
    alike = Q(rule=rule, subject=subject) | Q(run__name=finding.run, cause=finding.cause)
    over = Alert.objects.filter(alike, resolved_at__gt=now - RECURS_WITHIN, resolved_at__lte=now)
    for alert in over.select_related("run", "node").order_by("-resolved_at", "-pk"):
        is_its_own = key_of(alert) == key and agrees(alert, finding)
        # A run that was changed to communicate more does not bring an earlier culprit back.
        is_its_own &= finding.evidence.get("kind") != LAYOUT or alert.cause == finding.cause
        if is_its_own or has_same_culprit(alert, finding):
            return alert
    return None


def is_same_again(alert: Alert, finding: Finding, *, now: datetime) -> bool:
    """Whether a resolved alert is young enough to fire again on its own row."""
    blames_on = finding.cause == UNKNOWN != alert.cause
    within = BLAMES_ON_WITHIN if blames_on else REFIRES_WITHIN
    return alert.resolved_at is not None and now - alert.resolved_at <= within


def damp(alert: Alert, *, now: datetime) -> None:
    """Call an alert flapping that has fired often of late, and say so, once."""
    firings = AlertEvent.objects.filter(
        alert__in=chain(alert), kind__in=FIRINGS, at__gt=now - FLAPS_WITHIN
    )
    n_firings = firings.count()
    if n_firings < FLAPS_AT:
        if alert.flapping_since is not None:
            change(alert, if_still={}, to={"flapping_since": None})
    elif alert.flapping_since is None:
        change(alert, if_still={"flapping_since": None}, to={"flapping_since": now})
        text = f"fired {n_firings} times within 30 minutes; it is over after 10 quiet ones"
        note(alert, Kind.FLAPPING, now=now, text=text)


def chain(alert: Alert) -> Sequence[int]:
    """Return the keys of an alert and of those that it came back from."""
    keys, earlier = [alert.pk], alert.earlier_id
    while earlier is not None and len(keys) < LONGEST_CHAIN:
        keys.append(earlier)
        earlier = Alert.objects.values_list("earlier_id", flat=True).get(pk=earlier)
    return keys
