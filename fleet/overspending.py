"""Alerts about money, once a minute: tokens that cost more, budgets that will not do."""

from datetime import datetime

from fleet.alerting import Subject, reconcile, subject_of
from fleet.models import Alert, Run
from fleet.money.budgets import Burn, burns
from fleet.money.drifting import judge_drift
from telemetry.detect import RULES, Finding
from telemetry.detect.drift import RULE as DRIFT
from telemetry.detect.finding import UNKNOWN
from telemetry.store.source import Source

OVERRUN = "budget_overrun"
# Hours tell drift: a look now and then will do.
DRIFT_EVERY_MIN = 10


def watch_money(source: Source, *, now: datetime) -> list[Alert]:
    """Judge what runs cost and how budgets stand, and reconcile the alerts; return the changed."""
    opened = set(
        Alert.objects.open().filter(rule__in=(DRIFT, OVERRUN)).values_list("rule", "subject")
    )
    findings, watched = _overruns(opened, now=now)
    if now.minute % DRIFT_EVERY_MIN == 0:
        drifting, judged = _drifts(source, opened, now=now)
        findings, watched = findings + drifting, watched | judged
    return reconcile(findings, watched=watched, now=now)


def _drifts(
    source: Source, opened: set[Subject], *, now: datetime
) -> tuple[list[Finding], set[Subject]]:
    findings, watched = [], set()
    for run in Run.objects.active().filter(phase=Run.Phase.TRAINING):
        key = (DRIFT, f"run:{run.name}")
        look = judge_drift(source, run, is_open=key in opened, now=now)
        if look.is_judged:
            watched.add(key)
        if look.finding:
            findings.append(look.finding)
    return findings, watched


def _overruns(opened: set[Subject], *, now: datetime) -> tuple[list[Finding], set[Subject]]:
    """Return the budgets that will not do; what is withdrawn or past is looked at no more."""
    calm_ratio = RULES[OVERRUN].limits["calm_ratio"]
    findings = []
    for each in burns(now=now):
        budget = each.budget
        if not budget.starts_at <= now < budget.ends_at:
            continue
        finding = overrun(each, now=now)
        limit = calm_ratio if (OVERRUN, subject_of(finding)) in opened else 1.0
        if each.forecast_ratio > limit:
            findings.append(finding)
    return findings, {key for key in opened if key[0] == OVERRUN}


def overrun(burn: Burn, *, now: datetime) -> Finding:
    """Return the finding that a budget will not do."""
    budget = burn.budget
    return Finding(
        rule=OVERRUN,
        cause=UNKNOWN,
        severity=RULES[OVERRUN].severity,
        run=budget.run.name if budget.run else None,
        node=None,
        device=None,
        onset_s=now.timestamp(),
        score=burn.forecast_ratio,
        evidence={
            "budget": budget.pk,
            "whose": budget.name,
            "budget_usd": budget.usd,
            "spent_usd": burn.spent_usd,
            "forecast_usd": burn.forecast_usd,
            "usd_per_hour": burn.usd_per_hour,
            "used_up_s": burn.used_up_at.timestamp() if burn.used_up_at else None,
            "ends_s": budget.ends_at.timestamp(),
        },
    )
