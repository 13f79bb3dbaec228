"""Alerts for tests that need one without running detection."""

from datetime import datetime
from typing import Any

from fleet.models import Alert, Node, Run
from telemetry.detect import RULES, Finding


def straggling(run: Run, node: Node, *, at: datetime, **fields: Any) -> Alert:
    """Fire an alert of a run's all-reduce share with a slow core of a node as its cause."""
    usual = {
        "rule": "allreduce_share",
        "cause": "slow_core",
        "severity": Alert.Severity.PAGE,
        "subject": f"run:{run.name}",
        "device": 7,
        "score": 1.2,
        "onset_at": at,
        "fired_at": at,
        "last_seen_at": at,
    }
    return Alert.objects.create(**usual | {"run": run, "node": node} | fields)


def finding(rule: str, run: str, *, onset_s: float, **fields: Any) -> Finding:
    """Return a finding of a rule about a run, with the rule as its cause."""
    severity = RULES[rule].severity
    usual = {"node": None, "device": None, "score": 1.0}
    return Finding(rule, rule, severity, run, onset_s=onset_s, **usual | fields)
