"""A finding that has no open alert: a new row, or the old one again."""

from datetime import UTC, datetime
from typing import Any

from django.db import IntegrityError, transaction

from fleet.alerting.events import Kind, blame, change, note
from fleet.alerting.pairing import Subject
from fleet.alerting.recurrence import damp, is_same_again, last_time
from fleet.models import Alert, InjectedFault, Node, Run
from telemetry.detect import Finding
from telemetry.detect.finding import UNKNOWN

SEVERITIES = {"page": Alert.Severity.PAGE, "warn": Alert.Severity.WARN}


def fire(finding: Finding, key: Subject, *, now: datetime) -> Alert | None:
    """Fire an alert; None where another watcher did so at this very moment."""
    earlier = last_time(key, finding, now=now)
    if earlier is not None and is_same_again(earlier, finding, now=now):
        return earlier if _again(earlier, finding, key, now=now) else None
    alert = _new(finding, key, earlier, now=now)
    if alert is not None:
        note(alert, Kind.FIRED, now=now, text=blame(finding))
        if earlier is not None:
            damp(alert, now=now)
    return alert


def _new(finding: Finding, key: Subject, earlier: Alert | None, *, now: datetime) -> Alert | None:
    run = Run.objects.filter(name=finding.run).first() if finding.run else None
    drills = InjectedFault.objects.filter(run=run, starts_at__lte=now, ends_at__gte=now)
    try:
        with transaction.atomic():
            return Alert.objects.create(
                **_where(key),
                **told_by(finding),
                severity=SEVERITIES[finding.severity],
                run=run,
                onset_at=min(now, datetime.fromtimestamp(finding.onset_s, UTC)),
                fired_at=now,
                last_seen_at=now,
                is_drill=run is not None and drills.exclude(injected_by="").exists(),
                earlier=earlier,
            )
    except IntegrityError:
        return None


def _again(alert: Alert, finding: Finding, key: Subject, *, now: datetime) -> bool:
    """Open a row again that was over for a moment; whoever had taken it still has it."""
    told = told_by(finding)
    if finding.cause == UNKNOWN:
        told = {name: told[name] for name in ("score", "evidence")}
    reopened = {
        **_where(key),
        **told,
        "severity": SEVERITIES[finding.severity],
        "resolved_at": None,
        "last_seen_at": now,
        "n_firings": alert.n_firings + 1,
        "silence": None,
    }
    was_over_at = alert.resolved_at
    try:
        with transaction.atomic():
            is_ours = change(alert, if_still={"resolved_at": was_over_at}, to=reopened)
    except IntegrityError:
        return False
    if is_ours:
        # What is kept of its charts is a beginning again.
        alert.frozen_charts.filter(kept_until=None).update(kept_until=was_over_at)
        text = f"{blame(finding)}; firing {alert.n_firings}"
        note(alert, Kind.REFIRED, now=now, text=text)
        damp(alert, now=now)
    return is_ours


def told_by(finding: Finding) -> dict[str, Any]:
    """Return what an alert takes from a finding: whom it blames for what, and the figures."""
    return {
        "cause": finding.cause,
        "node": Node.objects.filter(name=finding.node).first() if finding.node else None,
        "device": finding.device,
        "score": finding.score,
        "victims": list(finding.victims),
        "evidence": dict(finding.evidence),
    }


def _where(key: Subject) -> dict[str, str]:
    return {"rule": key[0], "subject": key[1]}
