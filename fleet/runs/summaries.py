"""Current figures of runs, nodes and the fleet, for pages and /metrics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fleet.models import Alert, Node, Run
from fleet.runs.flops import mfu_ratio
from fleet.runs.node_figures import NO_FIGURES, LatestFigures, latest_figures
from fleet.runs.state import reporting_nodes
from telemetry.blocks import Block, FloatArray
from telemetry.steps import StepBatch
from telemetry.store.hot import HotStore

RECENT_S = 60
SLOW_STEPS = 5  # a run slower than this many steps a minute is averaged over so many
# A share is judged by two steps: averaged for longer, it would call a fault of now half as bad.
SHARE_S = 10.0
SHARE_STEPS = 2
STALE_AFTER_S = 15
STALE_AFTER_STEPS = 3
# A node of which only its training job speaks is heard as often as that has something to say.
JOB_STALE_S = 60
LATE_AFTER_S = 3.0
SECONDS_PER_HOUR = 3600.0
TOKENS_PER_MTOK = 1e6


@dataclass(frozen=True, slots=True)
class RunNow:
    """One run, averaged over its last minute of steps (at least five); None where unknown.

    Its all-reduce share, and what that consists of, is of its newest steps alone.
    """

    run: Run
    step_s: float | None = None
    share_ratio: float | None = None
    wait_ratio: float | None = None
    transfer_ratio: float | None = None
    tokens_per_s: float | None = None
    mfu_ratio: float | None = None
    usd_per_mtok: float | None = None
    last_step: int | None = None
    last_step_at_s: float | None = None
    is_stale: bool = False

    @property
    def is_over_limit(self) -> bool:
        """Whether the all-reduce share is above the run's own limit."""
        return (self.share_ratio or 0.0) > self.run.allreduce_limit_ratio


@dataclass(frozen=True, slots=True)
class NodeNow:
    """One node, by its newest block; None where nothing was reported."""

    node: Node
    last_seen_s: float | None = None
    is_up: bool = False
    utilization_mean: float | None = None
    utilization_min: float | None = None
    utilization_max: float | None = None
    hbm_bytes_per_s: float | None = None
    device_memory_used_bytes: float | None = None
    efa_latency_max_s: float | None = None
    ecc_uncorrected: int | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it should report and does not."""
        return not self.is_up and not self.node.is_released


@dataclass(frozen=True, slots=True)
class FleetNow:
    """The fleet in one line: is anything wrong, where, since when, at what cost."""

    tick: int | None
    n_nodes: int
    n_up: int
    n_silent: int
    n_unacknowledged: int
    n_acknowledged: int
    oldest_unowned: Alert | None
    n_training: int
    n_compiling: int
    compiling: Run | None
    worst: RunNow | None
    tokens_per_s: float
    usd_per_hour: float
    usd_per_mtok: float | None
    tick_lateness_s: float | None = None
    n_ticks_late: int = 0

    @property
    def n_open(self) -> int:
        """How many alerts are not resolved."""
        return self.n_unacknowledged + self.n_acknowledged

    @property
    def is_late(self) -> bool:
        """Whether ticks are late enough to tell users."""
        return (self.tick_lateness_s or 0.0) > LATE_AFTER_S


def recent_steps(hot: HotStore, run: str, *, now_s: float) -> StepBatch:
    """Read the last minute of a run's steps, or its last few where they are slow."""
    steps = hot.steps(run, since_s=now_s - RECENT_S)
    if len(steps) >= SLOW_STEPS:
        return steps
    return hot.steps(run, since_s=0.0).last(SLOW_STEPS)


def run_now(
    run: Run, steps: StepBatch, *, now_s: float, shared: StepBatch | None = None
) -> RunNow:
    """Sum up a run by its recent steps; ``shared`` are those to judge its share by, if not all."""
    if not len(steps):
        return RunNow(run)
    step_s = float(np.nanmean(steps.step_s))
    counted = np.isfinite(steps.tokens)
    tokens_per_s = pace_of(steps.tokens[counted], steps.step_s[counted])
    age_s = now_s - float(steps.ended_at_s[-1])
    shared = steps if shared is None else shared
    return RunNow(
        run,
        step_s=step_s,
        share_ratio=mean_known(shared.allreduce_share_ratio),
        wait_ratio=mean_known(shared.wait_ratio),
        transfer_ratio=mean_known(shared.transfer_ratio),
        tokens_per_s=tokens_per_s,
        mfu_ratio=mfu_ratio(run, tokens_per_s),
        usd_per_mtok=usd_per_mtok(run.usd_per_hour, tokens_per_s),
        last_step=int(steps.step[-1]),
        last_step_at_s=float(steps.ended_at_s[-1]),
        # Who says that it compiles owes no step.
        is_stale=run.phase != Run.Phase.COMPILING
        and age_s > max(STALE_AFTER_S, STALE_AFTER_STEPS * step_s),
    )


def mean_known(values: FloatArray) -> float | None:
    """Mean of the known values; None where there are none."""
    told = values[np.isfinite(values)]
    return float(told.mean()) if len(told) else None


def pace_of(tokens: FloatArray, step_s: FloatArray) -> float | None:
    """Tokens per second over some steps; None where they are not reported."""
    total_s = float(step_s.sum())
    return float(tokens.sum()) / total_s if total_s > 0 else None


def usd_per_mtok(usd_per_hour: float, tokens_per_s: float | None) -> float | None:
    """US dollars per million tokens; None without a pace or a price."""
    if not tokens_per_s or tokens_per_s < 0 or usd_per_hour <= 0:
        return None
    return usd_per_hour / SECONDS_PER_HOUR / tokens_per_s * TOKENS_PER_MTOK


def runs_now(hot: HotStore, runs: Iterable[Run], *, now_s: float) -> list[RunNow]:
    """Summarise each run; a finished one has no current figures."""
    return [RunNow(run) if run.finished_at else _run_now(hot, run, now_s=now_s) for run in runs]


def _run_now(hot: HotStore, run: Run, *, now_s: float) -> RunNow:
    steps = recent_steps(hot, run.name, now_s=now_s)
    return run_now(run, steps, now_s=now_s, shared=steps.newest(SHARE_S, at_least=SHARE_STEPS))


def nodes_now(
    hot: HotStore,
    nodes: Iterable[Node],
    *,
    now_s: float,
    latest: Mapping[str, Block] | None = None,
) -> list[NodeNow]:
    """Summarise each node by its newest block; ``latest`` are the blocks, if already read."""
    vitals, seen = (
        latest_figures((hot.latest() if latest is None else latest).values()),
        hot.last_seen(),
    )
    nodes = list(nodes)
    by_job = (
        reporting_nodes(hot) if any(node.source == Node.Source.STEPS for node in nodes) else {}
    )
    return [
        _node_now(
            node,
            vitals.get((node.shard, node.name), NO_FIGURES),
            (by_job if node.source == Node.Source.STEPS else seen).get(node.name),
            now_s,
        )
        for node in nodes
    ]


def reporting_now(hot: HotStore, *, now_s: float) -> tuple[int, int]:
    """Count the nodes that report, and the nodes that should."""
    seen, by_job = hot.last_seen(), reporting_nodes(hot)
    expected = Node.objects.filter(run__finished_at=None).values_list("name", "source")
    reporting = [
        _is_heard(source, (by_job if source == Node.Source.STEPS else seen).get(name), now_s)
        for name, source in expected
    ]
    return sum(reporting), len(reporting)


def _is_heard(source: str, seen_s: float | None, now_s: float) -> bool:
    stale_s = JOB_STALE_S if source == Node.Source.STEPS else STALE_AFTER_S
    return seen_s is not None and now_s - seen_s <= stale_s


def _node_now(node: Node, vitals: LatestFigures, seen_s: float | None, now_s: float) -> NodeNow:
    by_job = node.source == Node.Source.STEPS
    is_up = _is_heard(node.source, seen_s, now_s) and not (by_job and node.is_released)
    told = vitals if is_up else NO_FIGURES
    return NodeNow(
        node,
        last_seen_s=seen_s,
        is_up=is_up,
        utilization_mean=told.utilization_mean,
        utilization_min=told.utilization_min,
        utilization_max=told.utilization_max,
        hbm_bytes_per_s=told.hbm_bytes_per_s,
        device_memory_used_bytes=told.device_memory_used_bytes,
        efa_latency_max_s=told.efa_latency_max_s,
        ecc_uncorrected=told.ecc_uncorrected,
    )


def fleet_now(
    hot: HotStore,
    *,
    runs: Sequence[RunNow],
    nodes: Sequence[NodeNow],
    alerts: Sequence[Alert],
    tick: int | None,
) -> FleetNow:
    """Summarise the fleet by its runs, nodes and open alerts."""
    unowned = sorted(
        (alert for alert in alerts if alert.acknowledged_at is None), key=lambda one: one.fired_at
    )
    active = [now for now in runs if now.run.finished_at is None]
    compiling = [now.run for now in active if now.run.phase == Run.Phase.COMPILING]
    alive = [now for now in active if now.tokens_per_s is not None and not now.is_stale]
    tokens_per_s = sum(now.tokens_per_s or 0.0 for now in alive)
    usd_per_hour = sum(now.run.usd_per_hour for now in active)
    return FleetNow(
        tick=tick,
        n_nodes=len(nodes),
        n_up=sum(now.is_up for now in nodes),
        n_silent=sum(now.is_silent for now in nodes),
        n_unacknowledged=len(unowned),
        n_acknowledged=len(alerts) - len(unowned),
        oldest_unowned=unowned[0] if unowned else None,
        n_training=sum(now.run.phase == Run.Phase.TRAINING for now in active),
        n_compiling=len(compiling),
        compiling=compiling[0] if compiling else None,
        worst=max(alive, key=lambda now: now.share_ratio or 0.0, default=None),
        tokens_per_s=tokens_per_s,
        usd_per_hour=usd_per_hour,
        usd_per_mtok=usd_per_mtok(usd_per_hour, tokens_per_s),
        tick_lateness_s=hot.gauges().get("tick_lateness_s"),
        n_ticks_late=int(hot.counters().get("ticks_late", 0)),
    )
