"""What comes back: on the same row, on a row that knows the earlier one, or over and over."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from django.db.models import Q

from fleet.alerts.events import Kind, change, note
from fleet.models import Alert, AlertEvent
from telemetry.detect import RULES, Finding
from telemetry.detect.engine import LAYOUT
from telemetry.detect.findings import UNKNOWN

Subject = tuple[str, str]  # a rule, and whom it looked at
Fits = Callable[[Subject, Finding, Alert], bool]

# What any fault may show in: with its cause known such an alert is that fault's.
SYMPTOMS = frozenset({"allreduce_share", "step_slow"})


def subject_of(finding: Finding) -> str:
    """Name whom an alert is about: a run, a node or the whole fleet, as its rule has it.

    What all nodes of a run are sick with is about the run.
    """
    names = {"run": f"run:{finding.run}", "node": f"node:{finding.node}", "fleet": "fleet"}
    names["budget"] = f"budget:{finding.evidence.get('budget')}"
    subject = RULES[finding.rule].subject
    return names["run" if subject == "node" and finding.node is None else subject]


def by_subject(findings: Iterable[Finding]) -> dict[Subject, Finding]:
    """Index findings by rule and subject, the strongest of each, the strongest first."""
    found: dict[Subject, Finding] = {}
    for finding in sorted(findings, key=lambda each: -each.score):
        found.setdefault((finding.rule, subject_of(finding)), finding)
    return found


def pair(found: Mapping[Subject, Finding], held: Iterable[Alert]) -> dict[Subject, Alert]:
    """Return which open alert each finding is; what has none is new.

    The surest fit first: rule, subject and culprit alike; the culprit alike under another rule;
    rule and subject alike, with another culprit; a symptom whose cause has now been found.
    """
    free = {alert.pk: alert for alert in held}
    # An alert whose culprit nobody blames any more is over: what it leaves is free to move to.
    begun_with = {
        key_of(alert)
        for alert in free.values()
        if any(agrees(alert, each) or has_same_culprit(alert, each) for each in found.values())
    }
    paired: dict[Subject, Alert] = {}
    fits: tuple[tuple[Fits, bool], ...] = (
        (lambda key, finding, alert: key == key_of(alert) and agrees(alert, finding), False),
        (lambda _key, finding, alert: has_same_culprit(alert, finding), True),
        (lambda key, _finding, alert: key == key_of(alert), False),
        (lambda _key, finding, alert: is_explained(alert, finding), True),
    )
    for fit, moves in fits:
        for key, finding in found.items():
            # Where an alert stands already, none may move to: its own finding comes to it.
            if key in paired or (moves and key in begun_with):
                continue
            alert = next((each for each in free.values() if fit(key, finding, each)), None)
            if alert is not None:
                paired[key] = free.pop(alert.pk)
    return paired


def key_of(alert: Alert) -> Subject:
    """Return an alert's rule and subject."""
    return (alert.rule, alert.subject)


def agrees(alert: Alert, finding: Finding) -> bool:
    """Whether nothing that both know of the culprit differs."""
    node = alert.node.name if alert.node else None
    is_about_node = RULES[finding.rule].subject == "node"
    causes = is_about_node or UNKNOWN in (alert.cause, finding.cause)
    return (
        (causes or alert.cause == finding.cause)
        and (None in (node, finding.node) or node == finding.node)
        and (None in (alert.device, finding.device) or alert.device == finding.device)
    )


def has_same_culprit(alert: Alert, finding: Finding) -> bool:
    """Whether an alert blames the same node of the same run for the same, under any rule."""
    if not _is_same_place(alert, finding) or alert.cause != finding.cause:
        return False
    if finding.cause == UNKNOWN:
        return alert.rule in SYMPTOMS and finding.rule in SYMPTOMS
    node = alert.node.name if alert.node else None
    # A node that was the first of several to be found is one of them.
    return node == finding.node or (finding.node is None and node in finding.nodes)


def is_explained(alert: Alert, finding: Finding) -> bool:
    """Whether an alert is a symptom without a cause, in the run in which one is now found."""
    is_open_question = alert.rule in SYMPTOMS and alert.cause == UNKNOWN
    return is_open_question and finding.cause != UNKNOWN and _is_same_place(alert, finding)


def _is_same_place(alert: Alert, finding: Finding) -> bool:
    if finding.run is None and finding.node is None:
        return False
    return (alert.run.name if alert.run else None) == finding.run


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
