"""Play one shard: what its nodes report, tick by tick, and the steps of the run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.simulate.background import add_background, reports_of
from telemetry.simulate.hardware import (
    TICK_S,
    Ticks,
    busy_ratio,
    core_flops,
    core_utilization,
    device_power,
    device_values,
    efa_values,
    execution_latencies,
    load_ratio,
    node_values,
    occupancy,
    rows_at,
)
from telemetry.simulate.hardware_faults import mark
from telemetry.simulate.inputs import FULL, Inputs
from telemetry.simulate.losses import losses
from telemetry.simulate.noise import Floats, TickNoise
from telemetry.simulate.observation import observed_phases, reported_steps
from telemetry.simulate.plan import Plan
from telemetry.simulate.script import Script, script_of
from telemetry.simulate.timeline import (
    RUN_PHASES,
    RunClock,
    TimelineRows,
    advance,
    joined,
    resume,
    start_clock,
)
from telemetry.steps import PHASES, StepBatch

__all__ = [
    "PlayedShard",
    "PlayedShards",
    "RunClock",
    "clock_at",
    "play",
    "play_together",
    "played_steps",
    "resume",
    "start_clock",
]

# Longer intervals are played in pieces of so many values a metric: they fit the cache.
PIECE_VALUES = 2**18
# Of each step by worker: (n_steps, n_workers), in the order of PHASES.
Phases = Callable[[TimelineRows], tuple[FloatArray, ...]]


@dataclass(frozen=True, slots=True)
class PlayedShard:
    clock: RunClock
    span: Span
    steps: StepBatch


@dataclass(frozen=True, slots=True)
class PlayedShards:
    clock: RunClock
    spans: tuple[Span, ...]
    steps: StepBatch


def play(plan: Plan, shard: str, clock: RunClock, until: int, *, every_s: int = 1) -> PlayedShard:
    """Play a shard from its clock to a later second.

    Parameters
    ----------
    shard : one of the plan's
    clock : as ``start_clock`` or an earlier ``play`` of the same run returned it
    until : Unix second, the last one played
    every_s : keep the ticks that are multiples of this; steps are kept all

    Returns
    -------
    played
        ``steps`` are those of the whole run that ended in the interval: the same whichever
        shard is played. A pure function of its arguments; cutting the interval anywhere and
        going on from the clock gives the same values.

    Raises
    ------
    ValueError
        Where the clock is already there, or the plan has no such shard.
    """
    played = play_together(plan, (shard,), clock, until, every_s=every_s)
    [span] = played.spans
    return PlayedShard(played.clock, span, played.steps)


def play_together(
    plan: Plan, shards: Sequence[str], clock: RunClock, until: int, *, every_s: int = 1
) -> PlayedShards:
    """Play neighbouring shards of one clock as ``play`` plays each, in one pass over their nodes.

    Raises ValueError as ``play`` does, and where the shards are not neighbours in order.
    """
    slices = _slices_of(plan, shards)
    if until <= clock.tick:
        raise ValueError(f"until: {until} is not after the clock's tick {clock.tick}")
    script, nodes = script_of(plan), slice(slices[0].start, slices[-1].stop)
    ticks = np.arange(-(-(clock.tick + 1) // every_s) * every_s, until + 1, every_s)
    width = (nodes.stop - nodes.start) * script.instance.n_cores
    piece_s = max(1, PIECE_VALUES // width) * every_s
    values: dict[str, Floats] = {}
    steps = []
    while clock.tick < until:
        piece_until = min(until, clock.tick + piece_s)
        rows, after = advance(script, clock, piece_until)
        now = slice(*np.searchsorted(ticks, [clock.tick, piece_until], side="right"))
        for name, piece in hardware(script, rows, ticks[now], nodes).items():
            if name not in values:
                values[name] = np.empty((len(ticks), *piece.shape[1:]), np.float32)
            values[name][now] = piece
        steps.append(rows[rows.is_step & (rows.end_s > clock.tick) & (rows.end_s <= piece_until)])
        clock = after
    spans = []
    for shard, its in zip(shards, slices, strict=True):
        own = slice(its.start - nodes.start, its.stop - nodes.start)
        own_values = {name: array[:, own] for name, array in values.items()}
        spans.append(Span(shard, ticks, script.names[its], own_values, every_s))
    return PlayedShards(clock, tuple(spans), _batch(script, joined(steps), plan.inputs))


def clock_at(plan: Plan, clock: RunClock, until: int) -> RunClock:
    return advance(script_of(plan), clock, until)[1]


def played_steps(
    plan: Plan,
    clock: RunClock,
    until: int,
    *,
    inputs: Inputs = FULL,
    phases: Phases | None = None,
) -> StepBatch:
    """Return steps of a run that end by a second, without telemetry.

    ``phases`` of the steps replace those that are observed at the inputs.
    """
    script = script_of(plan)
    rows, _ = advance(script, clock, until)
    ended = rows[rows.is_step & (rows.end_s > clock.tick) & (rows.end_s <= until)]
    return _batch(script, ended, inputs, phases=phases)


def play_finely(
    plan: Plan, rank: int, clock: RunClock, *, n_ticks: int, tick_s: float
) -> dict[str, Floats]:
    """Play one node from a clock on, by ticks shorter than a second: (n_ticks, n_parts) each.

    Rates are per second, as in ``play``; each tick has noise of its own.
    """
    script, nodes = script_of(plan), slice(rank, rank + 1)
    ticks = clock.tick + tick_s * np.arange(1, n_ticks + 1)
    rows, _ = advance(script, clock, math.ceil(ticks[-1]))
    values = hardware(script, rows, ticks, nodes, tick_s=tick_s)
    return {name: value[:, 0] for name, value in values.items()}


def hardware(
    script: Script, rows: TimelineRows, ticks: Ticks, nodes: slice, *, tick_s: float = TICK_S
) -> dict[str, Floats]:
    """All metrics of some nodes: (n_ticks, n_nodes, n_parts) each."""
    spent = occupancy(rows.of(nodes), ticks, tick_s=tick_s)
    numbers = np.rint(np.asarray(ticks) / tick_s).astype(np.int64)
    noise = TickNoise(script.key("ticks"), numbers, np.arange(nodes.start, nodes.stop))
    values = {
        "core_utilization_ratio": core_utilization(
            script, busy_ratio(script, spent), noise, nodes
        ),
        **device_values(script, spent, ticks, noise, nodes),
        **node_values(script, spent, noise, load_ratio(script, rows, ticks)),
    }
    if script.instance.n_efa:
        values |= efa_values(script, spent, noise, nodes)
    at = rows_at(rows, ticks)
    if script.plan.inputs.power:
        values["device_power_ratio"] = device_power(script, spent, ticks, noise, nodes)
    has_counters = script.plan.inputs.counters and script.instance.chip.vendor == "AWS"
    if has_counters and tick_s == TICK_S:
        values["core_flops_per_s"] = core_flops(script, spent, rows, at, noise)
        values |= execution_latencies(script, rows, nodes, ticks, noise)
    mark(script, values, ticks, nodes)
    if script.plan.noise.harmless:
        add_background(script, values, ticks, nodes)
    is_absent = rows.phase[at] == RUN_PHASES.index("absent")
    if is_absent.any():
        for value in values.values():
            value[is_absent] = np.nan
    return values


def _slices_of(plan: Plan, shards: Sequence[str]) -> list[slice]:
    """Return the nodes of neighbouring shards."""
    known = plan.shards
    if unknown := [shard for shard in shards if shard not in known]:
        raise ValueError(f"shard: {unknown[0]!r} is none of {plan.run.name}'s; it has {known}")
    first = known.index(shards[0])
    if tuple(shards) != known[first : first + len(shards)]:
        raise ValueError(f"shards: {shards} are not neighbours in order of {known}")
    size = plan.shard_size
    return [
        slice(i * size, min((i + 1) * size, plan.run.nodes))
        for i in range(first, first + len(shards))
    ]


def _batch(
    script: Script,
    rows: TimelineRows,
    inputs: Inputs,
    *,
    phases: Phases | None = None,
) -> StepBatch:
    """Return steps as training reports them; an absent worker reports nothing."""
    if not inputs.step_reports:
        return StepBatch.empty(script.run.name, script.names)
    reported = (
        np.where(rows.active, phase, np.nan).astype(np.float32)
        for phase in (phases(rows) if phases else observed_phases(inputs, rows))
    )
    steps = StepBatch(
        run=script.run.name,
        workers=script.names,
        step=rows.step,
        ended_at_s=rows.end_s,
        phases=dict(zip(PHASES, reported, strict=True)),
        tokens=rows.tokens.astype(float),
        reported_loss=losses(script, rows.step),
    )
    background = reports_of(script.plan)
    return reported_steps(inputs, script.key("reports"), steps, background=background)
