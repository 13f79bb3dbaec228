"""Cost alerts, checked once a minute: rising cost per token, and budget overruns."""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Self

import numpy as np
from django.db.models import Q

from fleet.alerts import reconcile, subject_of
from fleet.costs.budgets import BudgetStatus, budget_statuses
from fleet.models import Alert, Run
from fleet.runs.similar_runs import differences_of, job_of, similar_runs
from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.detect.causes import UNKNOWN
from telemetry.detect.drift import (
    DRIFT,
    DRIFT_LIMITS,
    Drift,
    MinutePace,
    drift,
    is_same_layout,
    pace_of,
    unexplained_minutes,
)
from telemetry.detect.findings import Finding
from telemetry.detect.rules import RULES, names_of
from telemetry.simulate.constants import ASSUMED
from telemetry.simulate.plan import Job
from telemetry.simulate.step_model import estimate
from telemetry.store.history import worker_minutes
from telemetry.store.reading import Source

# A problem starts before its alert, and the run needs time to recover after it.
BEFORE_S, AFTER_S = 120.0, 300.0
ESTIMATE, OWN, SIMILAR = "estimate", "own", "similar"
# Runs with the same settings on other nodes: how many are needed, and how many are read.
LEAST_SIMILAR, MOST_SIMILAR = 2, 5


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected cost of a token in node-seconds, its source, and which excess is drift."""

    cost: float
    by: str
    limit_ratio: float

    @classmethod
    def of(cls, run: Run, cost: float, by: str) -> Self:
        name = "estimate_ratio" if by == ESTIMATE else "own_ratio"
        return cls(cost, by, (run.limits or {}).get(f"{DRIFT}.{name}", DRIFT_LIMITS[name]))


@dataclass(frozen=True, slots=True)
class DriftCheck:
    is_judged: bool
    finding: Finding | None = None


def judge_drift(source: Source, run: Run, *, is_open: bool, now: datetime) -> DriftCheck:
    """Check whether a run's tokens have cost more than expected for hours.

    Times that another alert explains are excluded; while one is open, there is no drift.
    """
    now_s = now.timestamp()
    start_s = now_s - DRIFT_LIMITS["window_s"]
    minutes = worker_minutes(source, run.name, start_s=start_s, end_s=now_s)
    if len(minutes) < DRIFT_LIMITS["least_minutes"] or not np.isfinite(minutes.tokens).any():
        return DriftCheck(is_judged=False)
    pace = pace_of(minutes, nodes_per_worker=run.n_nodes / len(minutes.workers))
    spans_explained, is_explained = explained(run, start_s=start_s, now_s=now_s)
    if is_explained:
        return DriftCheck(is_judged=True)
    known = (_estimated(run, pace), _by_similar_runs(source, run, pace, now_s=now_s))
    candidates = [each for each in known if each is not None]
    if not candidates and (own := _own(run, pace, spans_explained, now_s=now_s)):
        candidates = [own]
    if not candidates:
        return DriftCheck(is_judged=False)
    expected = min(candidates, key=lambda each: each.cost * (1 + each.limit_ratio))
    limit_ratio = expected.limit_ratio * (DRIFT_LIMITS["half_ratio"] if is_open else 1.0)
    drifted = drift(pace, spans_explained, expected=expected.cost, limit_ratio=limit_ratio)
    if drifted is None:
        return DriftCheck(is_judged=True)
    return DriftCheck(is_judged=True, finding=_finding(run, pace, drifted, expected))


def _finding(run: Run, pace: MinutePace, found: Drift, expected: Expected) -> Finding:
    evidence = {
        "ratio": found.ratio,
        "node_s_per_mtok": found.cost * 1e6,
        "expected_node_s_per_mtok": expected.cost * 1e6,
        "expected_by": expected.by,
        "window_s": DRIFT_LIMITS["window_s"],
        "limit_ratio": expected.limit_ratio,
        "usd_per_mtok": _usd(run, found.cost),
        "expected_usd_per_mtok": _usd(run, expected.cost),
    }
    return Finding(
        rule=DRIFT,
        cause=UNKNOWN,
        severity=RULES[DRIFT].severity,
        run=run.name,
        onset_s=float(pace.began_s[0]),
        score=found.ratio / expected.limit_ratio,
        evidence=evidence,
    )


def _usd(run: Run, node_s_per_token: float) -> float | None:
    """Return dollars per million tokens at the run's price; None without one."""
    return node_s_per_token * 1e6 * run.price[0] / 3600 or None


def explained(run: Run, *, start_s: float, now_s: float) -> tuple[FloatArray, bool]:
    """Return spans that other alerts explain, (m, 2) Unix s, and whether one is open now."""
    about = Q(run=run) | Q(node__run=run)
    explaining = names_of(lambda rule: rule.explains_cost)
    others = Alert.objects.filter(about, rule__in=explaining)
    spans = [
        (onset.timestamp() - BEFORE_S, over.timestamp() + AFTER_S if over else np.inf)
        for onset, over in others.values_list("onset_at", "resolved_at")
    ]
    table = np.array([span for span in spans if span[1] > start_s]).reshape(-1, 2)
    return table, bool((table[:, 1] > now_s).any())


def _estimated(run: Run, pace: MinutePace) -> Expected | None:
    """Estimate the cost of a token by the step model; None where it cannot.

    The estimate does not apply to a run with other batches than configured, or with missing
    workers.
    """
    tokens, n_active = pace.layout
    whole = float(np.max(pace.n_active))
    return _by_estimate(run, tokens) if is_same_layout((n_active, 0.0), (whole, 0.0)) else None


def _by_estimate(run: Run, tokens: float) -> Expected | None:
    laid_out = float(run.global_batch * run.seq_len)
    if run.shape or run.model not in catalog.models() or not laid_out:
        return None
    if not is_same_layout((tokens, 0.0), (laid_out, 0.0)):
        return None
    instance = catalog.instances().get(run.instance_type)
    # Assumed constants of the step model do not apply to real hardware.
    if instance and not run.is_simulated and (instance.chip.name, run.precision) in ASSUMED:
        return None
    step_s = _step_s(job_of(run, precision=run.precision))
    if step_s is None:
        return None
    return Expected.of(run, run.n_nodes * step_s / tokens, ESTIMATE)


def _by_similar_runs(
    source: Source, run: Run, pace: MinutePace, *, now_s: float
) -> Expected | None:
    """Median cost of a token in runs with the same settings; None with too few of them."""
    costs = []
    settings = {name: getattr(run, name) for name in ("tp", "pp", "optimizer")}
    for other in similar_runs(run).filter(**settings)[:MOST_SIMILAR]:
        if differences_of(run, other):
            continue
        end_s = min(now_s, other.finished_at.timestamp() if other.finished_at else now_s)
        start_s = end_s - DRIFT_LIMITS["window_s"]
        minutes = worker_minutes(source, other.name, start_s=start_s, end_s=end_s)
        if len(minutes) < DRIFT_LIMITS["least_minutes"] or not np.isfinite(minutes.tokens).any():
            continue
        theirs = pace_of(minutes, nodes_per_worker=other.n_nodes / len(minutes.workers))
        spans, _ = explained(other, start_s=start_s, now_s=end_s)
        usable = unexplained_minutes(theirs, spans)
        enough = usable.sum() >= DRIFT_LIMITS["least_minutes"]
        if enough and is_same_layout(theirs.layout, pace.layout):
            costs.append(float(np.median(theirs.cost[usable])))
    if len(costs) < LEAST_SIMILAR:
        return None
    return Expected.of(run, float(np.median(costs)), SIMILAR)


def expected_now(run: Run, *, tokens: float) -> Expected | None:
    """Compute the expected cost of a token without reading the run's per-minute data.

    ``tokens`` are those of a step; missing workers are not considered.
    """
    own = (run.spending or {}).get("own") or {}
    is_own = "cost" in own and is_same_layout((tokens, 0.0), (own["tokens"], 0.0))
    return _by_estimate(run, tokens) or (Expected.of(run, own["cost"], OWN) if is_own else None)


@lru_cache(maxsize=512)
def _step_s(job: Job) -> float | None:
    """Estimate the duration of a step; None for an impossible layout."""
    try:
        return estimate(job).step_s
    except ValueError:
        return None


def _own(
    run: Run, pace: MinutePace, spans_explained: FloatArray, *, now_s: float
) -> Expected | None:
    """Cost of a token in the first settled hours of the run with its current layout.

    It is stored with the run's account, and restarts where its batch or its workers change.
    """
    tokens, n_active = pace.layout
    own = dict((run.spending or {}).get("own") or {})
    if not own or not is_same_layout((tokens, n_active), (own["tokens"], own["n_active"])):
        # Start with the first complete window, after the warm-up.
        own = {"tokens": tokens, "n_active": n_active, "since_s": now_s}
    elif "cost" not in own and now_s - own["since_s"] >= DRIFT_LIMITS["window_s"]:
        costs = pace.cost[unexplained_minutes(pace, spans_explained)]
        if len(costs) >= DRIFT_LIMITS["least_minutes"]:
            own["cost"] = float(np.median(costs))
    if own != (run.spending or {}).get("own") and run.spending:
        Run.objects.filter(pk=run.pk).update(spending=run.spending | {"own": own})
    return Expected.of(run, own["cost"], OWN) if "cost" in own else None


OVERRUN = "budget_overrun"
# Drift takes hours, so it is checked less often.
DRIFT_EVERY_MIN = 10


def update_cost_alerts(source: Source, *, now: datetime) -> list[Alert]:
    """Check costs of runs and budgets, and reconcile their alerts; return the changed ones."""
    opened = set(
        Alert.objects.open().filter(rule__in=(DRIFT, OVERRUN)).values_list("rule", "subject")
    )
    findings = []
    watched = {key for key in opened if key[0] == OVERRUN}
    for status in budget_statuses(now=now):
        if status.budget.starts_at <= now < status.budget.ends_at:
            finding = overrun(status, now=now)
            is_open = (OVERRUN, subject_of(finding)) in opened
            limit = RULES[OVERRUN].limits["calm_ratio"] if is_open else 1.0
            if status.forecast_ratio > limit:
                findings.append(finding)
    if now.minute % DRIFT_EVERY_MIN == 0:
        for run in Run.objects.active().filter(phase=Run.Phase.TRAINING):
            key = (DRIFT, f"run:{run.name}")
            judged = judge_drift(source, run, is_open=key in opened, now=now)
            if judged.is_judged:
                watched.add(key)
            if judged.finding:
                findings.append(judged.finding)
    return reconcile(findings, evaluated=watched, now=now)


def overrun(burn: BudgetStatus, *, now: datetime) -> Finding:
    budget = burn.budget
    return Finding(
        rule=OVERRUN,
        cause=UNKNOWN,
        severity=RULES[OVERRUN].severity,
        run=budget.run.name if budget.run else None,
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
