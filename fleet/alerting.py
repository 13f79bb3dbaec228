"""From findings to alerts: open the new, refresh the lasting, resolve the rest."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from django.db import transaction

from fleet.models import Alert, AlertEvent, InjectedFault, Node, Run
from fleet.words.causes import cause_name, part_name
from telemetry.detect import RULES, Finding

Subject = tuple[str, str]  # a rule, and whom it looked at

# A share must grow by a tenth before the timeline says so again; silence only gets longer.
WORSE_BY = 1.1
SEVERITIES = {"page": Alert.Severity.PAGE, "warn": Alert.Severity.WARN}


class AlertError(ValueError):
    """What was asked of an alert cannot be done; the message says why."""


def subject_of(finding: Finding) -> str:
    """Name whom an alert is about: a run, a node or the whole fleet, as its rule has it."""
    names = {"run": f"run:{finding.run}", "node": f"node:{finding.node}", "fleet": "fleet"}
    return names[RULES[finding.rule].subject]


@transaction.atomic
def reconcile(
    findings: Iterable[Finding], *, watched: Collection[Subject], now: datetime
) -> list[Alert]:
    """Make the open alerts of what was watched say what the findings say.

    A rule that could not look at a subject leaves its alert alone: no news is not good news.
    Returns the alerts that changed in a way a person would want to know.
    """
    found = {(finding.rule, subject_of(finding)): finding for finding in findings}
    held = {(alert.rule, alert.subject): alert for alert in Alert.objects.open()}
    changed = []
    for key, finding in found.items():
        alert = held.get(key)
        if alert is None:
            changed.append(_fire(finding, now=now))
        elif alert.last_seen_at < now and _refresh(alert, finding, now=now):
            changed.append(alert)
    for key, alert in held.items():
        if key in watched and key not in found and alert.last_seen_at < now:
            changed.append(_resolve(alert, now=now))
    return changed


def _fire(finding: Finding, *, now: datetime) -> Alert:
    run = Run.objects.filter(name=finding.run).first() if finding.run else None
    node = Node.objects.filter(name=finding.node).first() if finding.node else None
    drills = InjectedFault.objects.filter(run=run, starts_at__lte=now, ends_at__gte=now)
    alert = Alert.objects.create(
        rule=finding.rule,
        cause=finding.cause,
        severity=SEVERITIES[finding.severity],
        subject=subject_of(finding),
        run=run,
        node=node,
        device=finding.device,
        score=finding.score,
        victims=list(finding.victims),
        evidence=dict(finding.evidence),
        onset_at=min(now, datetime.fromtimestamp(finding.onset_s, UTC)),
        fired_at=now,
        last_seen_at=now,
        is_drill=drills.exclude(injected_by="").exists(),
    )
    _note(alert, AlertEvent.Kind.FIRED, now=now, text=_blame(finding))
    return alert


def _refresh(alert: Alert, finding: Finding, *, now: datetime) -> bool:
    """Bring an open alert up to date; say whether its timeline gained a line."""
    alert.last_seen_at = now
    blamed = (finding.cause, finding.node, finding.device)
    was_blamed = (alert.cause, alert.node.name if alert.node else None, alert.device)
    # Evidence that has since faded does not unname a culprit.
    is_renamed = blamed != was_blamed and finding.cause != "unknown"
    is_worse = "share_ratio" in finding.evidence and finding.score > alert.score * WORSE_BY
    if is_renamed:
        alert.cause, alert.device = finding.cause, finding.device
        alert.node = Node.objects.filter(name=finding.node).first() if finding.node else None
        alert.victims = list(finding.victims)
        _note(alert, AlertEvent.Kind.CAUSE_CHANGED, now=now, text=_blame(finding))
    elif is_worse:
        _note(alert, AlertEvent.Kind.WORSENED, now=now, text=_how_bad(finding))
    if is_renamed or is_worse:
        alert.evidence = dict(finding.evidence)
        alert.score = max(alert.score, finding.score)
    alert.save()
    return is_renamed or is_worse


def _resolve(alert: Alert, *, now: datetime) -> Alert:
    alert.resolved_at = now
    alert.save(update_fields=["resolved_at"])
    _note(alert, AlertEvent.Kind.RESOLVED, now=now)
    return alert


def acknowledge(alert: Alert, *, by: str, comment: str, now: datetime) -> bool:
    """Take an open alert; False where somebody already had it, and their name stands."""
    taken = Alert.objects.open().unacknowledged().filter(pk=alert.pk)
    with transaction.atomic():
        if not taken.update(acknowledged_at=now, acknowledged_by=by):
            return False
        _note(alert, AlertEvent.Kind.ACKNOWLEDGED, now=now, by=by, text=comment)
    return True


def comment(alert: Alert, *, by: str, text: str, now: datetime) -> AlertEvent:
    """Add a remark to the timeline."""
    if not text.strip():
        raise AlertError("comment: is empty; write what the next reader should know")
    return _note(alert, AlertEvent.Kind.COMMENTED, now=now, by=by, text=text.strip())


def _note(alert: Alert, kind: str, *, now: datetime, by: str = "", text: str = "") -> AlertEvent:
    limit = AlertEvent._meta.get_field("text").max_length
    return AlertEvent.objects.create(alert=alert, at=now, kind=kind, by=by, text=text[:limit])


def _blame(finding: Finding) -> str:
    cause = cause_name(finding.cause)
    if finding.node is not None:
        cause += f" at {finding.node}"
    if finding.device is not None:
        cause += f", {part_name(finding.cause) or 'device'} {finding.device}"
    return f"{_how_bad(finding)}; {cause}" if "share_ratio" in finding.evidence else cause


def _how_bad(finding: Finding) -> str:
    share = finding.evidence.get("share_ratio")
    if share is None:
        return finding.rule.replace("_", " ")
    return f"at {100 * share:.1f} % of the step"
