"""What an alert has cost: steps and dollars, measured against the run's own pace before it."""

from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db.models import Q

from fleet.alerts.evidence import Evidence
from fleet.models import Alert, Run
from fleet.models.annotation import moment_of
from telemetry.blocks import FloatArray, mean
from telemetry.detect import names_of
from telemetry.statistics.peers import GAUSSIAN, middle
from telemetry.steps import StepBatch
from telemetry.store.history import run_steps
from telemetry.store.reading import Source
from telemetry.units import HOUR_S

BEFORE_S = 900.0
# A run whose steps are slow is given longer to show its pace, as are its checkpoints.
LONG_BEFORE_S = 7_200.0
LEAST_STEPS = 3
# The newest give the pace, so that a slowdown by an earlier alert is not counted here.
PACE_STEPS = 20
# Steps of another size than before are no measure of what was lost.
SAME_TOKENS_RATIO = 0.02
# Standard errors within which a median is by chance.
CHANCE = 3.0
# After this many typical steps without one, the time up to now counts too.
OVERDUE_STEPS = 2.0
TINY_S = 1e-3
EVERY_S, EVERY_OLD_S = 10.0, 60.0
SETTLED = timedelta(minutes=10)
SLOWING = names_of(lambda rule: rule.slows_steps)


@dataclass(frozen=True, slots=True)
class RunPace:
    """A run's pace before the alert: median seconds per step, and its last step.

    Tokens of its steps are the median, and how far they scatter: a standard deviation.
    """

    usual_s: float
    n_steps: int
    tokens: float
    tokens_scatter: float
    checkpoint_s: float
    step: int
    ended_at_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What was lost up to a time, and the figures it was computed from."""

    lost_s: float
    n_steps: float
    usd: float | None
    usual_s: float
    n_before: int
    n_done: int
    span_s: float
    paused_s: float
    n_nodes: int
    usd_per_hour: float | None
    n_others: int = 0
    n_useless: int = 0
    n_open_others: int = 0


def measure_cost(source: Source, alert: Alert, *, until: datetime) -> Cost | None:
    """Return what an alert had cost its run by a time; None if that is unknown.

    Between the last step before the onset and the newest one (or now, where none has come for
    twice the usual time) ``n_done`` steps ended. At the usual pace, the median before the onset,
    that takes ``n_done * usual_s``; the rest of the time is lost, and the run's nodes are paid
    for during it. Checkpoints and evaluations are no loss, except for what a slow checkpoint
    takes beyond the usual ones. Steps with a loss that is not finite are lost, too: nothing is
    trained in them. A run without a price loses steps only. Runs whose batch or size was changed
    at the onset have no pace to compare with.
    """
    evidence = Evidence(alert.evidence)
    if alert.run is None or evidence.is_layout or evidence.names("changed"):
        return None
    onset_s, until_s = alert.onset_at.timestamp(), until.timestamp()
    needs_long = _is_about(alert, "checkpoint_slow")
    before = pace_before(source, alert.run, onset_s=onset_s, needs_long=needs_long)
    if before is None or until_s <= before.ended_at_s:
        return None
    start_s = before.ended_at_s + TINY_S
    after = run_steps(source, alert.run.name, start_s=start_s, end_s=until_s)
    if len(after):
        more = abs(float(np.median(after.tokens)) - before.tokens)
        # Batches that are not packed vary: a median of few is that far off by chance.
        by_chance = CHANCE * before.tokens_scatter * np.sqrt(np.pi / 2 / len(after))
        if not more <= max(SAME_TOKENS_RATIO * before.tokens, by_chance):
            return None
    return _compared(alert, alert.run, before, after, until_s)


def pace_before(source: Source, run: Run, *, onset_s: float, needs_long: bool) -> RunPace | None:
    """Return a run's pace before a time; None if too little is known."""
    for length_s in (LONG_BEFORE_S,) if needs_long else (BEFORE_S, LONG_BEFORE_S):
        steps = run_steps(source, run.name, start_s=onset_s - length_s, end_s=onset_s + TINY_S)
        if len(steps) >= LEAST_STEPS:
            saved = _mean(steps, "checkpoint_s")
            saved = saved[saved > 0]
            return RunPace(
                usual_s=float(np.median((steps.step_s - _planned_s(steps))[-PACE_STEPS:])),
                n_steps=len(steps.last(PACE_STEPS)),
                tokens=float(np.median(steps.tokens)),
                tokens_scatter=GAUSSIAN * middle(np.abs(steps.tokens - middle(steps.tokens))),
                checkpoint_s=float(np.median(saved)) if len(saved) else float("nan"),
                step=int(steps.step[-1]),
                ended_at_s=float(steps.ended_at_s[-1]),
            )
    return None


def _compared(
    alert: Alert, run: Run, before: RunPace, after: StepBatch, until_s: float
) -> Cost | None:
    newest_s = float(after.ended_at_s[-1]) if len(after) else before.ended_at_s
    is_overdue = until_s - newest_s > OVERDUE_STEPS * before.usual_s
    span_s = (until_s if is_overdue else newest_s) - before.ended_at_s
    n_done = max(0, int(after.step[-1]) - before.step) if len(after) else 0
    n_useless = n_done if _is_about(alert, "loss_not_finite") else 0
    paused_s = 0.0 if n_useless else _paused_s(alert, before, after)
    lost_s = span_s - paused_s - (n_done - n_useless) * before.usual_s
    if not np.isfinite(lost_s) or not before.usual_s > 0:
        return None
    # At the price of that time: what later steps or contracts cost changes no past loss.
    usd, _ = run.price_at(moment_of(until_s))
    lost_s, per_hour = max(0.0, lost_s), run.n_nodes * usd
    return Cost(
        lost_s=lost_s,
        n_steps=lost_s / before.usual_s,
        usd=lost_s / HOUR_S * per_hour if per_hour else None,
        usual_s=before.usual_s,
        n_before=before.n_steps,
        n_done=n_done,
        span_s=span_s,
        paused_s=paused_s,
        n_nodes=run.n_nodes,
        usd_per_hour=per_hour or None,
        n_useless=n_useless,
    )


def _paused_s(alert: Alert, before: RunPace, after: StepBatch) -> float:
    """Return the planned seconds without training; in doubt, at most the usual ones."""
    if not len(after):
        return 0.0
    weight = np.diff(after.step, prepend=before.step).clip(min=0)
    if _is_about(alert, "recompile"):
        return float((_mean(after, "checkpoint_s") * weight).sum())
    if not _is_about(alert, "checkpoint_slow"):
        return float((_planned_s(after) * weight).sum())
    n_saved = float(((_mean(after, "checkpoint_s") > 0) * weight).sum())
    usual_s = before.checkpoint_s
    if not np.isfinite(usual_s):
        usual_s = Evidence(alert.evidence).culprit.peers_median or float("nan")
    return n_saved * usual_s + float((_mean(after, "other_s") * weight).sum())


def _is_about(alert: Alert, cause: str) -> bool:
    return cause in (alert.rule, alert.cause)


def _planned_s(steps: StepBatch) -> FloatArray:
    return np.asarray(_mean(steps, "checkpoint_s") + _mean(steps, "other_s"))


def _mean(steps: StepBatch, phase: str) -> FloatArray:
    """Return a phase's mean over reporting workers, (n_steps,) seconds; 0 without any."""
    return np.nan_to_num(mean(steps.phases[phase], 1))


def update_alert_costs(source: Source, *, now: datetime, back_at: datetime | None = None) -> None:
    """Store the cost so far of open alerts, and the final cost of resolved ones.

    ``back_at``: trnwatch itself was stopped until then, and steps of that time may still come, so
    that older alerts wait.
    """
    due = Q(resolved_at=None) | Q(resolved_at__gte=now - SETTLED) | Q(cost={})
    alerts = Alert.objects.filter(due).select_related("run")
    for alert in alerts if back_at is None else alerts.filter(onset_at__gte=back_at):
        until = alert.resolved_at or now
        since_s = until.timestamp() - alert.cost.get("until_s", 0.0)
        every_s = 0.0
        if alert.resolved_at is None:
            age_s = (until - alert.onset_at).total_seconds()
            every_s = EVERY_S if age_s < BEFORE_S else EVERY_OLD_S
        if since_s > 0 and since_s >= every_s:
            cost = measure_cost(source, alert, until=until)
            if cost:
                # Others that slow the run at the same time: this loss includes theirs.
                others = Alert.objects.filter(run=alert.run_id, onset_at__lt=until)
                others = others.filter(rule__in=SLOWING).exclude(pk=alert.pk)
                over = others.filter(resolved_at__gt=alert.onset_at).count()
                n_open = others.filter(resolved_at=None).count()
                cost = replace(cost, n_others=n_open + over, n_open_others=n_open)
            alert.cost = greater_cost(alert.cost, dump_cost(cost, until=until))
            alert.save(update_fields=["cost"])


def greater_cost(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the greater loss: what is lost stays so, whatever later steps look like."""
    is_less = (new.get("lost_s") or 0.0) < (known.get("lost_s") or 0.0)
    return known | {"until_s": new["until_s"]} if is_less else new


def dump_cost(cost: Cost | None, *, until: datetime) -> dict[str, Any]:
    """Convert a cost to what an alert stores; an unknown one stores only its time."""
    return (asdict(cost) if cost else {}) | {"until_s": until.timestamp()}
