"""One fault, one alert through time: which open alert a finding is, under whatever rule."""

from collections.abc import Callable, Iterable, Mapping

from fleet.models import Alert
from telemetry.detect import RULES, Finding
from telemetry.detect.finding import UNKNOWN

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
