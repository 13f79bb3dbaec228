"""The timeline: every change of an alert as a row, and on its way to whoever must know."""

from datetime import datetime
from typing import Any

from fleet.models import Alert, AlertEvent
from fleet.outbox import enqueue
from fleet.templatetags.units import seconds
from fleet.words.causes import cause_name, part_name
from fleet.words.wording import counted, listed
from telemetry.detect import RULES, Finding

Kind = AlertEvent.Kind
LONGEST = 500
# What an alert says changes with these: links frozen in time show what it said then.
SPEAKING = {
    *(Kind.FIRED, Kind.REFIRED, Kind.RULE_CHANGED),
    *(Kind.CAUSE_CHANGED, Kind.WORSENED, Kind.LEARNED),
}


def note(alert: Alert, kind: Kind, *, now: datetime, by: str = "", text: str = "") -> AlertEvent:
    """Add to the timeline and to the outbox; call it in the transaction of the change."""
    snapshot = alert.said if kind in SPEAKING else {}
    event = AlertEvent.objects.create(
        alert=alert, at=now, kind=kind, by=by, text=text[:LONGEST], snapshot=snapshot
    )
    enqueue(alert, event, now=now)
    return event


def change(alert: Alert, *, if_still: dict[str, Any], to: dict[str, Any]) -> bool:
    """Change an alert if it is still as we believe, and the one in hand with it."""
    if not Alert.objects.filter(pk=alert.pk, **if_still).update(**to):
        return False
    for name, value in to.items():
        setattr(alert, name, value)
    return True


def blame(finding: Finding) -> str:
    """Say how bad it is, why and where, in a line for the timeline."""
    cause = cause_name(finding.cause)
    if finding.node is not None:
        cause += f" at {finding.node}"
    elif finding.nodes:
        cause += f": {how_many(finding)}"
    if finding.device is not None:
        cause += f", {part_name(finding.cause) or 'device'} {finding.device}"
    return f"{how_bad(finding)}; {cause}" if "share_ratio" in finding.evidence else cause


def how_many(finding: Finding) -> str:
    """Say how many nodes are accused, and which."""
    return f"{counted(len(finding.nodes), 'node')}: {listed(finding.nodes)}"


def how_bad(finding: Finding) -> str:
    """Say how bad it is: the share, the time of a step, or only what it is."""
    share = finding.evidence.get("share_ratio")
    step_s, healthy_s = (finding.evidence.get(key) for key in ("step_s", "baseline_step_s"))
    if share is not None:
        return f"at {100 * share:.1f} % of the step"
    if step_s is not None and healthy_s is not None:
        return f"{seconds(step_s)} per step in place of {seconds(healthy_s)}"
    return RULES[finding.rule].title.lower()
