"""Current values of runs, nodes and the fleet, for pages and /metrics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import isnan
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fleet.models import Alert, Node, Run
from fleet.runs.state import is_starting, own_pause_s, reporting_nodes, watching_s
from telemetry import catalog
from telemetry.blocks import Block, FloatArray, highest, lowest, mean, sum_known
from telemetry.detect.standstill import CLOCKS_S
from telemetry.steps import StepBatch, is_reported
from telemetry.store.hot import HotStore
from telemetry.store.reading import StepState
from telemetry.units import HOUR_S, TOKENS_PER_MTOK

RECENT_S = 60
SLOW_STEPS = 5  # a run slower than this many steps a minute is averaged over so many
# A longer average would hide a new fault.
SHARE_S = 10.0
SHARE_STEPS = 2
STALE_AFTER_S = 15
STALE_AFTER_STEPS = 3
# A node without an agent reports only when its training job does.
JOB_STALE_S = 60
HBM_BANDWIDTH = "hbm_bandwidth_bytes_per_s"
# Unevenly apart, so that no step is as long as the distance.
HBM_AGES_S = (0, 1, 3, 7, 12, 18, 23, 29, 34, 41, 47, 53, 58)
EXECUTION_LATENCIES = tuple(f"execution_latency_{p}_s" for p in ("p50", "p99", "p100"))


# What a run does while an alert of such a rule or cause is open.
STANDSTILLS = {
    "hang": "hangs",
    "workers_ended": "stopped",
    "reports_refused": "refused",
    "workers_missing": "waiting",
}


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
    # The newest that the job reported; it may be NaN or infinite.
    loss: float | None = None
    last_step: int | None = None
    last_step_at_s: float | None = None
    is_stale: bool = False
    # By its open alert: hangs, stopped if all workers are gone, waiting for some; else empty.
    standstill: str = ""
    stands_since: datetime | None = None
    steps: StepBatch | None = field(default=None, repr=False, compare=False)

    @property
    def phases_s(self) -> Mapping[str, float]:
        """The known phases of a step, mean over workers and steps, by name."""
        if self.steps is None:
            return {}
        means = {name: mean_known(mean(each, 1)) for name, each in self.steps.phases.items()}
        return {name: value for name, value in means.items() if value is not None}

    @property
    def state(self) -> str:
        """Its phase, or that it hangs."""
        return self.standstill or self.run.phase

    @property
    def is_over_limit(self) -> bool:
        """Whether the all-reduce share is above the run's limit."""
        return (self.share_ratio or 0.0) > self.run.allreduce_limit_ratio

    @property
    def step_tokens(self) -> float | None:
        """Tokens of a step, the mean; None if unknown."""
        if self.tokens_per_s is None or self.step_s is None:
            return None
        return self.tokens_per_s * self.step_s

    @property
    def batch_tokens(self) -> int | None:
        """Tokens of a step by the batch, where the reported ones contradict them."""
        return self.run.contradicted_tokens(self.step_tokens)


@dataclass(frozen=True, slots=True)
class NodeNow:
    """One node, by its newest block; None if unknown."""

    node: Node
    last_seen_s: float | None = None
    is_up: bool = False
    # It has not been heard since trnwatch began to watch, a moment ago, or while it is stopped.
    is_awaited: bool = False
    is_in_pause: bool = False
    # Since when the store of its readings, one of several, does not answer.
    missing_since_s: float | None = None
    utilization_mean: float | None = None
    utilization_min: float | None = None
    utilization_max: float | None = None
    hbm_bytes_per_s: float | None = None
    device_memory_used_bytes: float | None = None
    efa_latency_max_s: float | None = None
    ecc_uncorrected: int | None = None
    flops_per_s: float | None = None
    flops_mean: float | None = None  # of the cores that count them
    power_mean_ratio: float | None = None
    execution_latency_p50_s: float | None = None
    execution_latency_p99_s: float | None = None
    execution_latency_p100_s: float | None = None

    @property
    def flops_ratio(self) -> float | None:
        """FLOPs of the cores that count them, over their dense BF16 peak; None if unknown."""
        peak = self.node.core_peak_flops
        return None if self.flops_mean is None or peak is None else self.flops_mean / peak

    @property
    def is_silent(self) -> bool:
        """Whether it should report and does not."""
        return not self.is_up and not self.is_awaited and self.node.is_expected

    @property
    def state(self) -> str:
        """Retired, up, waiting, unknown, silent, or released: its run has ended."""
        if self.node.retired_at:
            return "retired"
        if self.is_awaited:
            is_unknown = self.is_in_pause or self.missing_since_s is not None
            return "unknown" if is_unknown else "waiting"
        return "up" if self.is_up else "silent" if self.is_silent else "released"


def run_now(
    run: Run, steps: StepBatch, *, now_s: float, shared: StepBatch | None = None
) -> RunNow:
    """Summarise a run by its recent steps; ``shared`` are those for its all-reduce share."""
    if not len(steps):
        return RunNow(run)
    step_s = float(np.nanmean(steps.step_s))
    counted = np.isfinite(steps.tokens)
    tokens_per_s = pace_of(steps.tokens[counted], steps.step_s[counted])
    shared = steps if shared is None else shared
    now = RunNow(
        run,
        step_s=step_s,
        share_ratio=mean_known(shared.allreduce_share_ratio),
        wait_ratio=mean_known(shared.wait_ratio),
        transfer_ratio=mean_known(shared.transfer_ratio),
        tokens_per_s=tokens_per_s,
        loss=newest_loss(steps),
        last_step=int(steps.step[-1]),
        last_step_at_s=float(steps.ended_at_s[-1]),
        steps=steps,
    )
    return of_run(now, run, now_s=now_s)


def of_run(now: RunNow, run: Run, *, now_s: float) -> RunNow:
    """Add to the figures of steps what follows from the run as it is now, and from the time."""
    if now.step_s is None or now.last_step_at_s is None:
        return RunNow(run)
    age_s = now_s - now.last_step_at_s
    return replace(
        now,
        run=run,
        mfu_ratio=run.mfu_ratio(now.tokens_per_s),
        usd_per_mtok=usd_per_mtok(run.usd_per_hour, now.tokens_per_s),
        # No steps are expected during a compile.
        is_stale=run.phase != Run.Phase.COMPILING
        and age_s > max(STALE_AFTER_S, STALE_AFTER_STEPS * now.step_s),
    )


def newest_loss(steps: StepBatch) -> float | None:
    """Return the newest loss that was reported, which may be NaN; None without one."""
    reported = steps.loss[is_reported(steps.loss)]
    return float(reported[-1]) if len(reported) else None


def mean_known(values: FloatArray) -> float | None:
    """Mean of the known values; None where there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def pace_of(tokens: FloatArray, step_s: FloatArray) -> float | None:
    """Tokens per second over some steps; None where they are not reported."""
    total_s = float(step_s.sum())
    return float(tokens.sum()) / total_s if total_s > 0 else None


def usd_per_mtok(usd_per_hour: float, tokens_per_s: float | None) -> float | None:
    """US dollars per million tokens; None without a pace or a price."""
    if not tokens_per_s or tokens_per_s < 0 or usd_per_hour <= 0:
        return None
    return usd_per_hour / HOUR_S / tokens_per_s * TOKENS_PER_MTOK


# By store and run: the state of its steps, and their summary.
MOST_SUMMARIES = 1_000
_SUMMARIES: WeakKeyDictionary[HotStore, dict[str, tuple[StepState, RunNow]]] = WeakKeyDictionary()


def runs_now(
    hot: HotStore, runs: Iterable[Run], *, now_s: float, alerts: Iterable[Alert] = ()
) -> list[RunNow]:
    """Summarise each run; a finished one has no current figures.

    Open ``alerts`` of these runs say which of them stand still. Only the steps of runs with a new
    step are read.
    """
    runs, standing = list(runs), standstills(alerts)
    states = hot.step_states([run.name for run in runs if not run.finished_at])
    held = _SUMMARIES.setdefault(hot, {})
    rows = []
    for run in runs:
        if run.finished_at:
            rows.append(RunNow(run))
            continue
        state, now = states.get(run.name), RunNow(run)
        if state is not None:
            before, now = held.get(run.name, (None, now))
            # The hot tier forgets old steps.
            if before != state or now_s - state.ended_s > hot.keep_s:
                # Of the last minute, or the last few if they are slow.
                since_s = state.ended_s - RECENT_S
                steps = hot.recent_steps(
                    run.name, since_s=since_s, at_least=SLOW_STEPS, state=state, averaged=True
                )
                shared = steps.newest(SHARE_S, at_least=SHARE_STEPS)
                now = run_now(run, steps, now_s=now_s, shared=shared)
                held[run.name] = state, now
        rows.append(with_standstill(of_run(now, run, now_s=now_s), standing.get(run.name)))
    for name in held.keys() - states.keys() if len(held) > 2 * MOST_SUMMARIES else ():
        held.pop(name, None)
    return rows


@dataclass(frozen=True, slots=True)
class Standstill:
    state: str
    since: datetime


def standstills(alerts: Iterable[Alert]) -> dict[str, Standstill]:
    """Return which runs make no steps, by their open alerts."""
    by_run: dict[str, Standstill] = {}
    for alert in alerts:
        own = {
            "rule": alert.rule,
            "run": alert.run.name if alert.run else None,
            "cause": alert.cause,
            "onset_s": alert.onset_at.timestamp(),
        }
        for each in () if alert.quiet_since else alert.parts or [own]:
            if each.get("rule") in STANDSTILLS and each["run"]:
                state = STANDSTILLS.get(each["cause"], STANDSTILLS[each["rule"]])
                since = datetime.fromtimestamp(each["onset_s"], UTC)
                by_run[each["run"]] = Standstill(state, since)
    return by_run


def with_standstill(now: RunNow, stands: Standstill | None) -> RunNow:
    """Add a standstill, unless steps end again that the alert does not know yet."""
    newest_s = now.last_step_at_s or 0.0
    is_working = now.run.phase in (Run.Phase.TRAINING, Run.Phase.COMPILING)
    if stands is None or not is_working or newest_s > stands.since.timestamp() + CLOCKS_S:
        return now
    return replace(now, standstill=stands.state, stands_since=stands.since)


def nodes_now(
    hot: HotStore,
    nodes: Iterable[Node],
    *,
    now_s: float,
    latest: Mapping[str, Block] | None = None,
) -> list[NodeNow]:
    """Summarise each node by its newest block; ``latest`` are the blocks, if already read."""
    nodes = list(nodes)
    shards = {node.shard for node in nodes}
    figures = latest_figures((hot.latest(shards) if latest is None else latest).values())
    seen, quiet_s = hot.last_seen(shards), hot.quiet_s()
    by_job = (
        reporting_nodes(hot) if any(node.source == Node.Source.STEPS for node in nodes) else {}
    )
    rows, watched_s = [], watching_s(hot, now_s=now_s)
    is_in_pause, missing = own_pause_s(hot, now_s=now_s) is not None, hot.missing()
    for node in nodes:
        is_by_job = node.source == Node.Source.STEPS
        seen_s = (by_job if is_by_job else seen).get(node.name)
        if seen_s is None and node.last_seen_at:
            seen_s = node.last_seen_at.timestamp()
        is_heard = _is_reporting(node.source, seen_s, now_s, quiet_s=quiet_s.get(node.name, 0))
        is_up = is_heard and not (is_by_job and node.is_released)
        known = figures.get((node.shard, node.name), {}) if is_up else {}
        starts = is_starting(watched_s, was_heard=seen_s is not None)
        gap = None if is_up or is_by_job else missing.get(hot.store_of(node.shard))
        is_awaited = (starts or gap is not None) and not is_up and node.is_expected
        rows.append(
            NodeNow(
                node,
                last_seen_s=seen_s,
                is_up=is_up,
                is_awaited=is_awaited,
                is_in_pause=is_in_pause,
                missing_since_s=None if gap is None else gap.since_s,
                **known,
            )
        )
    return rows


def flops_now(nodes: Iterable[NodeNow]) -> tuple[float, float | None] | None:
    """Add up the FLOPs per second that nodes count; also their mean share of the peak.

    None where no node counts them; the share is None where no peak is known.
    """
    counting = [node for node in nodes if node.flops_per_s is not None]
    ratios = [ratio for node in counting if (ratio := node.flops_ratio) is not None]
    if not counting:
        return None
    total = sum(node.flops_per_s or 0.0 for node in counting)
    return total, sum(ratios) / len(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class HbmNow:
    """HBM bandwidth of the nodes that report it, over the last minute, and its share of the peak.

    The share is None where the peak is unknown.
    """

    bytes_per_s: float
    ratio: float | None
    peak_bytes_per_s: float
    is_estimated: bool
    n_nodes: int


def hbm_now(hot: HotStore, nodes: Sequence[NodeNow], *, now_s: float) -> HbmNow | None:
    """Add up the HBM bandwidth of nodes; None where no node reports it.

    A second is one phase of a step: moments of the last minute are averaged. Real nodes have no
    counter of it: theirs is an estimate.
    """
    known = [each for each in nodes if each.hbm_bytes_per_s is not None]
    span = hot.moments(
        tuple({each.node.shard for each in known}),
        (HBM_BANDWIDTH,),
        ticks=[int(now_s) - age_s for age_s in HBM_AGES_S],
    ).of(tuple(each.node.name for each in known))
    by_device = mean(span.values[HBM_BANDWIDTH], 0)
    # A node that reported at none of these moments counts with its newest second.
    rates_of = [
        (each.node, float(np.nansum(rates)) if np.isfinite(rates).any() else newest)
        for each, rates in zip(known, by_device, strict=True)
        if (newest := each.hbm_bytes_per_s) is not None
    ]
    if not rates_of:
        return None
    instances = catalog.instances()
    peak = sum(
        instances[node.instance_type].chip.hbm_bytes_per_s * node.n_devices
        for node, _ in rates_of
        if node.instance_type in instances
    )
    is_known = all(node.instance_type in instances and node.n_devices for node, _ in rates_of)
    total = sum(rate for _, rate in rates_of)
    is_estimated = any(node.source != Node.Source.SIMULATED for node, _ in rates_of)
    return HbmNow(total, total / peak if is_known else None, peak, is_estimated, len(rates_of))


def _is_reporting(source: str, seen_s: float | None, now_s: float, *, quiet_s: int) -> bool:
    stale_s = JOB_STALE_S if source == Node.Source.STEPS else max(STALE_AFTER_S, quiet_s)
    return seen_s is not None and now_s - seen_s <= stale_s


def latest_figures(blocks: Iterable[Block]) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """Return the fields of `NodeNow` that a block reports, by shard and node.

    Parts that report nothing (NaN) are left out of means, sums and extremes; a value is None if
    no part of the node reports it.
    """
    latest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for block in blocks:
        cores = _values(block, "core_utilization_ratio")
        flops, power = _values(block, "core_flops_per_s"), _values(block, "device_power_ratio")
        errors = np.hstack([_values(block, f"{kind}_ecc_uncorrected") for kind in ("mem", "sram")])
        figures = {
            "utilization_mean": mean(cores, 1),
            "utilization_min": lowest(cores, 1),
            "utilization_max": highest(cores, 1),
            "hbm_bytes_per_s": sum_known(_values(block, "hbm_bandwidth_bytes_per_s"), 1),
            "device_memory_used_bytes": sum_known(_values(block, "device_memory_used_bytes"), 1),
            "efa_latency_max_s": highest(_values(block, "efa_latency_s"), 1),
            "ecc_uncorrected": sum_known(errors, 1),
            "flops_per_s": sum_known(flops, 1),
            "flops_mean": mean(flops, 1),
            "power_mean_ratio": mean(power, 1),
            **{name: sum_known(_values(block, name), 1) for name in EXECUTION_LATENCIES},
        }
        columns = {name: _known(values) for name, values in figures.items()}
        columns["ecc_uncorrected"] = [
            n if n is None else int(n) for n in columns["ecc_uncorrected"]
        ]
        for name, row in zip(block.nodes, zip(*columns.values(), strict=True), strict=True):
            latest[block.shard, name] = dict(zip(columns, row, strict=True))
    return latest


def _values(block: Block, metric: str) -> FloatArray:
    """Return one metric: (n_nodes, n_parts); n_parts is 0 if the block lacks it."""
    values = block.values.get(metric)
    return np.zeros((len(block.nodes), 0)) if values is None else values.astype(float)


def _known(values: FloatArray) -> list[float | None]:
    return [None if isnan(value) else value for value in values.tolist()]
