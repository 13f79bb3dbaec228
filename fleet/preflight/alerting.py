"""Starts without a required preflight as alerts: open until the run is over, or requires none."""

from datetime import datetime

from fleet.alerting import reconcile
from fleet.models import Alert, Run
from fleet.preflight.requiring import look_at_starts
from telemetry.detect import RULES, Finding
from telemetry.detect.finding import UNKNOWN

RULE = "preflight"


def watch_starts(*, now: datetime) -> list[Alert]:
    """Look whether runs had the preflights they require, and reconcile the alerts.

    Returns the changed. A run that is over keeps its flag, and its alert ends with it.
    """
    look_at_starts()
    doubtful = Run.objects.active().filter(requires_preflight=True).exclude(preflight_doubt="")
    findings = [finding_of(run) for run in doubtful.defer("plan", "clock")]
    names = Run.objects.active().values_list("name", flat=True)
    return reconcile(findings, watched={(RULE, f"run:{name}") for name in names}, now=now)


def finding_of(run: Run) -> Finding:
    """Say that a run began without the preflight it requires."""
    return Finding(
        rule=RULE,
        cause=UNKNOWN,
        severity=RULES[RULE].severity,
        run=run.name,
        node=None,
        device=None,
        onset_s=run.started_at.timestamp(),
        score=1.0,
        evidence={"doubt": run.preflight_doubt, "started_s": run.started_at.timestamp()},
    )
