"""The timeline of a run, from its clock to a later second."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.simulate.background import delays_s
from telemetry.simulate.noise import mixed, smooth, windows
from telemetry.simulate.plan import Plan
from telemetry.simulate.script import (
    COMPILES,
    EVALUATION_S,
    FOREVER_S,
    Act,
    Conditions,
    Script,
    conditions,
)
from telemetry.simulate.step_model import FIRST_STEPS
from telemetry.simulate.step_noise import StepNoise

# Every duration is a multiple of this, about a microsecond. Unix seconds on such a grid add up
# in doubles without rounding, so it does not matter where an interval is cut.
TIME_RESOLUTION_S = 2.0**-20

# Life before training: the nodes boot, the graphs compile, the weights are loaded.
BOOT_S = 5.0
WARM_UP_S = 15.0


class RunClock(msgspec.Struct, frozen=True, kw_only=True):
    """State of a run at the end of a tick.

    ``tick`` is the last Unix second simulated. ``step`` counts the steps done, and
    ``step_started_s`` is when the one under way began. A phase that will end says when:
    ``phase_ends_s``, which training does not. ``n_tokens`` counts tokens processed, those of
    ``n_steps_lost`` steps, gone with a crash, included. Events that began by ``due_until_s``
    and ``gaps_until_s`` have had their turn. ``first_step`` is the first step since the
    processes loaded their graphs; it and the next ones take longer. ``resumed_step`` follows the
    last checkpoint or evaluation; 0 before there was one.
    """

    tick: int
    phase: str = "pending"
    phase_since_s: float
    phase_ends_s: float | None = None
    phase_progress_ratio: float = 0.0
    step: int = 0
    first_step: int = 0
    step_started_s: float
    n_tokens: int = 0
    checkpoint_step: int = 0
    resumed_step: int = 0
    n_restarts: int = 0
    n_steps_lost: int = 0
    due_until_s: float
    gaps_until_s: float


def round_time(seconds: float) -> float:
    """Round seconds to the grid that adds up without rounding."""
    return round(seconds / TIME_RESOLUTION_S) * TIME_RESOLUTION_S


def round_times(seconds: FloatArray) -> FloatArray:
    """Round seconds (...) to the grid that adds up without rounding."""
    return np.rint(np.asarray(seconds, np.float64) * (1 / TIME_RESOLUTION_S)) * TIME_RESOLUTION_S


def start_clock(plan: Plan) -> RunClock:
    """Return the clock just before the epoch of a run."""
    start_s = plan.epoch_s - 1.0
    return RunClock(
        tick=plan.epoch_s - 1,
        phase_since_s=start_s,
        phase_ends_s=start_s + BOOT_S,
        step_started_s=start_s,
        due_until_s=start_s,
        gaps_until_s=start_s,
    )


def resume(clock: RunClock, tick: int) -> RunClock:
    """Return the clock after an outage of the simulator: time advanced, the run did not.

    Steps and tokens stay; the step or phase in progress is as far as before.
    """
    gap_s = float(tick - clock.tick)
    ends_s = None if clock.phase_ends_s is None else clock.phase_ends_s + gap_s
    return msgspec.structs.replace(
        clock,
        tick=tick,
        phase_since_s=clock.phase_since_s + (gap_s if ends_s is not None else 0),
        phase_ends_s=ends_s,
        step_started_s=clock.step_started_s + gap_s,
        due_until_s=clock.due_until_s + gap_s,
        gaps_until_s=clock.gaps_until_s + gap_s,
    )


# A run's phases, and "absent": it waits for its nodes, and none reports.
RUN_PHASES = ("absent", "pending", "compiling", "warming_up", "training", "finished", "failed")
TRAINING = RUN_PHASES.index("training")

# Slow and fast scatter of each worker.
WORKER_NOISE = 0.003, 0.002
TRANSFER_NOISE, INPUT_NOISE = 0.03, 0.2
SLOW_NOISE_STEPS = 32
# Share of steps in which a worker stalls; no normal scatter makes a step shorter than this.
STALL_CHANCE, LEAST_SCATTER = 0.02, 0.2


@dataclass(slots=True)
class TimelineRows:
    """Consecutive steps and gaps of a run.

    Each begins with ``pause_s`` (all alike: all that a gap consists of), goes on per worker
    with input, computing, being late and waiting until all are ready, and ends for all alike
    with transfer, checkpoint and ``after_s`` (an evaluation). Of a checkpoint, who is not
    ``slow_to_write`` writes for ``brief_s`` only, and then waits for the others. Arrays are
    (n_rows,) or, where workers differ, (n_rows, n_workers); seconds are on the clock's grid.
    ``phase`` indexes RUN_PHASES: "training" for a step. ``ready_s`` counts from the row's start.
    ``is_step`` is False
    for gaps, and for a step that a crash cut off.
    """

    start_s: FloatArray
    pause_s: FloatArray
    input_s: FloatArray
    compute_s: FloatArray
    late_s: FloatArray
    ready_s: FloatArray
    transfer_s: FloatArray
    checkpoint_s: FloatArray
    brief_s: FloatArray
    slow_to_write: NDArray[np.bool_]
    after_s: FloatArray
    phase: IntArray
    is_step: NDArray[np.bool_]
    step: IntArray
    tokens: IntArray
    active: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def arrival_s(self) -> FloatArray:
        """When each worker is ready for the collective, from the start of the row."""
        return self.pause_s[:, None] + self.input_s + self.compute_s + self.late_s

    @property
    def wait_s(self) -> FloatArray:
        """Wait of each worker for the last one; zero without a step."""
        return np.where(self.active, self.ready_s[:, None] - self.arrival_s, 0.0)

    @property
    def duration_s(self) -> FloatArray:
        return self.ready_s + self.transfer_s + self.checkpoint_s + self.after_s

    @property
    def end_s(self) -> FloatArray:
        return self.start_s + self.duration_s

    def __getitem__(self, rows: slice | NDArray[np.bool_]) -> Self:
        return type(self)(*(getattr(self, each.name)[rows] for each in fields(self)))

    def of(self, workers: slice) -> Self:
        values = (getattr(self, each.name) for each in fields(self))
        return type(self)(*(v[:, workers] if v.ndim == 2 else v for v in values))

    def hold(self, row: int, workers: IntArray, *, until_s: float) -> None:
        """Keep workers from joining the collective of a row before a time."""
        late_s = until_s - self.start_s[row] - self.arrival_s[row, workers]
        self.late_s[row, workers] += np.maximum(late_s, 0)
        self.ready_s[row] = self.arrival_s[row, self.active[row]].max()


def joined(pieces: Sequence[TimelineRows]) -> TimelineRows:
    if len(pieces) == 1:
        return pieces[0]
    columns = ([getattr(piece, each.name) for piece in pieces] for each in fields(TimelineRows))
    return TimelineRows(*(np.concatenate(column) for column in columns))


def gap(script: Script, phase: str, *, start_s: float, end_s: float) -> TimelineRows:
    """Return the single row of a time without steps."""
    nothing = np.zeros((1, script.run.nodes))
    length_s, none, zero = np.array([end_s - start_s]), np.zeros(1), np.zeros(1, np.int64)
    return TimelineRows(
        start_s=np.array([start_s]),
        pause_s=length_s,
        input_s=nothing,
        compute_s=nothing,
        late_s=nothing,
        ready_s=length_s,
        transfer_s=none,
        checkpoint_s=none,
        brief_s=none,
        slow_to_write=np.zeros((1, script.run.nodes), bool),
        after_s=none,
        phase=zero + RUN_PHASES.index(phase),
        is_step=np.zeros(1, bool),
        step=zero,
        tokens=zero,
        active=np.zeros((1, script.run.nodes), bool),
    )


def steps_under(
    script: Script,
    now: Conditions,
    *,
    first: int,
    n_steps: int,
    start_s: float,
    first_step: int = 0,
    since_pause: IntArray | None = None,
) -> TimelineRows:
    """Compute consecutive steps under constant conditions.

    Parameters
    ----------
    first : number of the first step
    start_s : Unix seconds at which it begins
    first_step : number of the first one since the processes started
    since_pause : (n_steps,) steps since the last checkpoint or evaluation; negative before

    Notes
    -----
    Every worker computes its share with noise of two colours, slow (drifting over some thirty
    steps) and fast, and now and then stumbles. All meet in the gradient collective, which
    begins when the last has come: ``wait_s = max over workers of arrival - own arrival``.
    Step k's noise depends on the seed, the run and k alone.

    References
    ----------
    J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
    OSDI 2025, arXiv:2505.05713: what makes workers differ.
    """
    step = np.arange(first, first + n_steps)
    factor = _common_factor(script, step, first_step)
    compute_s: FloatArray = now.compute_s * _pace(script, now, step) * factor[:, None]
    if script.plan.noise.tail == "stalls" and script.plan.noise.step_cv:
        compute_s += _stalls(script, step) * script.step_plan.step_s * now.active
    compute_s = round_times(compute_s)
    input_noise = windows("normal", mixed(script.key("input"), step), script.run.nodes)
    input_s = now.input_s * np.maximum(1 + INPUT_NOISE * input_noise, 0)
    transfer_noise = windows("normal", mixed(script.key("transfer"), step), 1)[:, 0]
    transfer_cv = script.step_noise.transfer if script.step_noise else TRANSFER_NOISE
    transfer_s: FloatArray = now.transfer_s * (1 + transfer_cv * transfer_noise) * factor
    late_s = np.zeros_like(compute_s)
    if script.step_noise is not None:
        waiting_s, late_s, exchange_s = _delays(script.step_noise, now, step, since_pause)
        input_s, transfer_s = input_s + waiting_s, transfer_s + exchange_s
    input_s, late_s, transfer_s = (round_times(s) for s in (input_s, late_s, transfer_s))
    if script.plan.noise.harmless:
        input_s += round_times(delays_s(script, "loader", step)) * now.active
        late_s += round_times(delays_s(script, "collection", step)) * now.active
    ready_s = (input_s + compute_s + late_s).max(axis=1)
    end_s = start_s + np.cumsum(ready_s + transfer_s)
    none = np.zeros(n_steps)
    return TimelineRows(
        start_s=end_s - (ready_s + transfer_s),
        pause_s=none,
        input_s=input_s,
        compute_s=compute_s,
        late_s=late_s,
        ready_s=ready_s,
        transfer_s=transfer_s,
        checkpoint_s=none.copy(),
        brief_s=none.copy(),
        slow_to_write=np.broadcast_to(now.slow_to_write, compute_s.shape),
        after_s=none.copy(),
        phase=np.full(n_steps, TRAINING),
        is_step=np.ones(n_steps, bool),
        step=step,
        tokens=np.full(n_steps, now.tokens),
        active=np.broadcast_to(now.active, compute_s.shape),
    )


def _pace(script: Script, now: Conditions, step: IntArray) -> FloatArray:
    """Compute slowdown of each worker: (n_steps, n_workers)."""
    n_nodes, measured = script.run.nodes, script.step_noise
    slow, fast = (measured.worker_slow, measured.worker_fast) if measured else WORKER_NOISE
    pace = slow * smooth(script.key("drift"), step, every=SLOW_NOISE_STEPS, width=n_nodes)
    pace += fast * windows("normal", mixed(script.key("pace"), step), n_nodes)
    if measured is None:
        pace += windows("hiccup", mixed(script.key("hiccup"), step), n_nodes)
    pace += 1
    if now.uneven_ratio:
        noise_value = windows("uniform", mixed(script.key("lengths"), step), n_nodes)
        pace *= 1 + np.float32(now.uneven_ratio) * noise_value * noise_value * noise_value
    return pace


def _common_factor(script: Script, step: IntArray, first_step: int) -> FloatArray:
    """Compute how many times as long each step takes all workers: (n_steps,)."""
    measured = script.step_noise
    factor: FloatArray = np.ones(len(step))
    if measured is None:
        late = FIRST_STEPS[step[0] - first_step : step[-1] + 1 - first_step]
        factor[: len(late)] = late
    else:
        since_start = measured.since_start(first_step, step - first_step)
        factor = measured.of(step[0], len(step)).factor * since_start
    noise = script.plan.noise
    if not noise.step_cv or noise.tail == "stalls":
        return factor
    noise_value = windows("normal", mixed(script.key("scatter"), step), 1)[:, 0].astype(float)
    if noise.tail == "lognormal":
        sigma = math.sqrt(math.log1p(noise.step_cv**2))
        return np.asarray(factor * np.exp(sigma * noise_value - sigma**2 / 2))
    return factor * np.maximum(LEAST_SCATTER, 1 + noise.step_cv * noise_value)


def _stalls(script: Script, step: IntArray) -> FloatArray:
    """Compute how long workers stall, in steps: (n_steps, n_workers).

    A stall lasts for an exponentially distributed time and hits one worker of its step.
    """
    n_nodes = script.run.nodes
    chance, length, who = windows("uniform", mixed(script.key("stalls"), step), 3).T
    mean = script.plan.noise.step_cv / math.sqrt(2 * STALL_CHANCE - STALL_CHANCE**2)
    stall = np.where(chance < STALL_CHANCE, -mean * np.log1p(-length.astype(float)), 0.0)
    is_hit = np.arange(n_nodes) == np.minimum((who * n_nodes).astype(int), n_nodes - 1)[:, None]
    return np.asarray(stall[:, None] * is_hit)


def _delays(
    noise: StepNoise, now: Conditions, step: IntArray, since_pause: IntArray | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what holds up single steps.

    Returns
    -------
    input_s, late_s, transfer_s : twice (n_steps, n_workers), and (n_steps,)
        A late worker does nothing, so its hardware does less in a second, never more.
    """
    met, active = noise.of(step[0], len(step)), np.flatnonzero(now.active)
    late_s = np.zeros((len(step), len(now.active)))
    # Without an exchange, what would delay it delays a worker.
    alone_s = met.late_s if now.transfer_s else met.late_s + met.exchange_s
    late_s[np.arange(len(step)), active[(met.who * len(active)).astype(int)]] = alone_s
    if since_pause is not None:
        late_s += noise.resuming_s(since_pause)[:, None] * now.active
    exchange_s = met.exchange_s if now.transfer_s else np.zeros(len(step))
    return met.input_s[:, None] * now.active, late_s, exchange_s


class OneOffs(NamedTuple):
    """What a step makes room for: a pause before it, a checkpoint, an evaluation after it."""

    pause_s: float
    checkpoint_s: float
    brief_s: float
    after_s: float


def add_one_offs(rows: TimelineRows, due: OneOffs) -> TimelineRows:
    """Add what is due to the first step; the others follow later."""
    rows.pause_s = rows.pause_s.copy()
    rows.pause_s[0] += due.pause_s
    rows.ready_s[0] += due.pause_s
    rows.checkpoint_s[0] += due.checkpoint_s
    rows.brief_s[0] += due.brief_s
    rows.after_s[0] += due.after_s
    rows.start_s[1:] += due.pause_s + due.checkpoint_s + due.after_s
    return rows


# The runtime gives a silent peer up after so long ("waited 120 sec"); then the job restarts.
PEER_TIMEOUT_S = 120.0
CHECKPOINT_NOISE = 0.08
MOST_CELLS = 2**18  # of one stretch of steps, workers times steps

replace = msgspec.structs.replace


@lru_cache(maxsize=4)
def advance(script: Script, clock: RunClock, until: int) -> tuple[TimelineRows, RunClock]:
    """Rows that overlap (clock.tick, until], and the clock at ``until``.

    The first row is the one in progress at the tick of the clock, the last one that at ``until``
    (or ending there). Splitting the interval anywhere gives the same rows.
    """
    pieces: list[TimelineRows] = []
    while clock.step_started_s < until:
        interrupted = _interruption(script, clock)
        if interrupted is not None:
            clock = interrupted
            continue
        rows, clock = _stretch(script, clock, until)
        pieces.append(rows)
        if rows.end_s[-1] > until:
            break
    if clock.phase == "training" and script.run.max_steps is not None:
        progress = clock.step / script.run.max_steps
    elif clock.phase_ends_s is None:
        progress = float(clock.phase == "finished")
    else:
        length_s = clock.phase_ends_s - clock.phase_since_s
        progress = min(1.0, max(0.0, (until - clock.phase_since_s) / length_s))
    return joined(pieces), replace(clock, tick=until, phase_progress_ratio=progress)


def _stretch(script: Script, clock: RunClock, until: int) -> tuple[TimelineRows, RunClock]:
    """Return the next rows, and the clock at the end of the last completed one."""
    if clock.phase == "training":
        return _steps(script, clock, until)
    end_s = clock.phase_ends_s
    start_s = clock.step_started_s
    is_absent = clock.phase == "pending" and not clock.n_restarts
    phase = "absent" if is_absent else clock.phase
    rows = gap(script, phase, start_s=start_s, end_s=end_s or start_s + 2.0**30)
    if end_s is None or end_s > until:
        return rows, clock
    # The phases follow each other: pending, compiling, warming up, training.
    if is_absent and script.compile_s:
        return rows, _enter(clock, "compiling", end_s, script.compile_s)
    if clock.phase != "warming_up":
        return rows, _enter(clock, "warming_up", end_s, WARM_UP_S)
    training = _enter(clock, "training", end_s, None)
    return rows, replace(training, gaps_until_s=end_s, first_step=clock.step)


def _enter(clock: RunClock, phase: str, at_s: float, length_s: float | None) -> RunClock:
    ends_s = None if length_s is None else at_s + round_time(length_s)
    return replace(
        clock, phase=phase, phase_since_s=at_s, step_started_s=at_s, phase_ends_s=ends_s
    )


def _interruption(script: Script, clock: RunClock) -> RunClock | None:
    """Return the clock in a gap that begins with the next step, if one does."""
    if clock.phase != "training":
        return None
    at_s, since_s = clock.step_started_s, clock.gaps_until_s
    if script.run.max_steps is not None and clock.step >= script.run.max_steps:
        return _enter(clock, "finished", at_s, None)
    compiles = [act for act in script.begun(since_s, at_s) if act.kind == COMPILES]
    if compiles:
        length_s = max(act.end_s - act.start_s for act in compiles)
        return replace(_enter(clock, "compiling", at_s, length_s), gaps_until_s=at_s)
    if script.membership_changed(since_s, at_s):
        return replace(_enter(clock, "warming_up", at_s, WARM_UP_S), gaps_until_s=at_s)
    return None


def _steps(script: Script, clock: RunClock, until: int) -> tuple[TimelineRows, RunClock]:
    """Return steps until conditions change, and the clock after the completed ones."""
    start_s = clock.step_started_s
    acts = script.on(start_s)
    now = conditions(script, acts)
    horizon_s = min(float(until), script.next_edge(start_s))
    most = max(1, MOST_CELLS // script.run.nodes)
    n_steps = min(most, math.ceil((horizon_s - start_s) / now.shortest_s) + 1)
    if script.run.max_steps is not None:
        n_steps = min(n_steps, script.run.max_steps - clock.step)
    flickers = script.flickers_at(start_s)
    if now.stuck or flickers:
        n_steps = 1
    due = _one_offs(script, clock, now)
    rows = steps_under(
        script,
        now,
        first=clock.step,
        n_steps=n_steps,
        start_s=start_s,
        first_step=clock.first_step,
        since_pause=_since_pause(clock, due, n_steps),
    )
    if any(due):
        add_one_offs(rows, due)
    rows = rows[: max(1, int(np.searchsorted(rows.start_s, horizon_s)))]
    if not flickers:
        _change_pace(script, acts, rows)
    crash = _get_stuck(script, rows)
    end_s = rows.end_s
    n_over = int(np.searchsorted(end_s, until, side="right"))
    if crash is None or n_over < len(rows):
        return rows, _count(clock, rows, n_over)
    clock, at_s = _count(clock, rows, n_over - 1), float(end_s[-1])
    lost = replace(
        clock,
        n_restarts=clock.n_restarts + 1,
        n_steps_lost=clock.n_steps_lost + clock.step - clock.checkpoint_step,
        checkpoint_step=clock.step,
    )
    if not script.run.restarts:
        return rows, _enter(lost, "failed", at_s, None)
    # Until the node is back.
    return rows, _enter(lost, "pending", at_s, max(1.0, crash.end_s - at_s))


def _since_pause(clock: RunClock, due: OneOffs, n_steps: int) -> IntArray:
    """Return how many steps ago the last pause was, negative without one: (n_steps,)."""
    steps = np.arange(n_steps)
    since = steps + (clock.step - clock.resumed_step if clock.resumed_step else -n_steps)
    return np.where(steps > 0, steps - 1, since) if due.checkpoint_s or due.after_s else since


def _one_offs(script: Script, clock: RunClock, now: Conditions) -> OneOffs:
    """Return what became due until the next step."""
    at_s, since_s, run = clock.step_started_s, clock.due_until_s, script.run
    acts = script.begun(since_s, at_s)
    rhythm_s = max(since_s, clock.phase_since_s)
    pause_s = sum(act.magnitude for act in acts if act.kind == "recompile")
    after_s = sum(act.end_s - act.start_s for act in acts if act.kind == "evaluation")
    if script.is_due(run.evaluate_every_s, rhythm_s, at_s):
        after_s += EVALUATION_S
    checkpoints = [act for act in acts if act.kind in {"checkpoint", "checkpoint_slow"}]
    is_due = script.is_due(run.checkpoint_every_s, rhythm_s, at_s)
    checkpoint_s = brief_s = 0.0
    lasts_s = [a.end_s - a.start_s for a in checkpoints if a.kind == "checkpoint"]
    if given_s := [length_s for length_s in lasts_s if length_s < FOREVER_S]:
        checkpoint_s = brief_s = round_time(max(given_s))
    elif checkpoints or is_due:
        noise = windows("normal", mixed(script.key("checkpoint"), np.array([clock.step])), 1)
        written_s = now.checkpoint_s * (1 + CHECKPOINT_NOISE * float(noise[0, 0]))
        checkpoint_s, brief_s = round_time(written_s), round_time(written_s * now.brief_ratio)
    return OneOffs(round_time(pause_s), checkpoint_s, brief_s, round_time(after_s))


def _change_pace(script: Script, acts: tuple[Act, ...], rows: TimelineRows) -> None:
    """Stretch or shorten what is left of the last step where hardware changes within it."""
    row, now = len(rows) - 1, conditions(script, acts)
    start_s, transfer_s = float(rows.start_s[row]), float(rows.transfer_s[row])
    at_s = script.next_edge(start_s)
    while at_s < start_s + rows.ready_s[row] + transfer_s:
        then = conditions(script, script.changed(acts, at_s))
        since_s = at_s - start_s
        computed_s = rows.pause_s[row] + rows.input_s[row] + rows.compute_s[row]
        left_s = np.clip(computed_s - since_s, 0.0, rows.compute_s[row])
        ratio = np.where(
            now.active, then.compute_s / np.where(now.active, now.compute_s, 1.0), 1.0
        )
        rows.compute_s[row] += round_times(left_s * (ratio - 1.0))
        rows.ready_s[row] = rows.arrival_s[row, rows.active[row]].max()
        left_s = min(max(rows.ready_s[row] + transfer_s - since_s, 0.0), transfer_s)
        if now.transfer_s:
            transfer_s += round_time(left_s * (then.transfer_s / now.transfer_s - 1.0))
        rows.transfer_s[row] = transfer_s
        now, at_s = then, script.next_edge(at_s)


def _get_stuck(script: Script, rows: TimelineRows) -> Act | None:
    """Hold up the last step where a worker hangs or a node crashes; return the crash.

    Conditions change where an act begins, so only the last step can see one begin. No worker can
    be missed in a collective that all have joined: a hang that begins later holds up the next
    step; a crash after the exchange cuts off what follows it, and holds up the next step too.
    """
    row = len(rows) - 1
    start_s = float(rows.start_s[row])
    for act in script.stops:
        in_time = act.start_s < rows.end_s[row] and act.end_s > start_s
        if not in_time or not rows.active[row, act.rows].any():
            continue
        ready_s = start_s + float(rows.ready_s[row])
        if act.kind == "hang" and act.start_s < ready_s:
            rows.hold(row, act.rows, until_s=round_time(act.end_s))
        exchanged_s = ready_s + float(rows.transfer_s[row])
        if act.kind == "node_crash" and act.start_s >= exchanged_s:
            _cut_off(rows, row, after_s=round_time(act.start_s - exchanged_s))
        elif act.kind == "node_crash":
            gives_up_s = round_time(max(act.start_s, start_s) + PEER_TIMEOUT_S)
            rows.hold(row, act.rows, until_s=gives_up_s)
            rows.transfer_s[row] = rows.checkpoint_s[row] = rows.after_s[row] = 0.0
            rows.brief_s[row] = 0.0
            rows.is_step[row] = False
            return act
    return None


def _cut_off(rows: TimelineRows, row: int, *, after_s: float) -> None:
    """End the part after the exchange of a step (checkpoint, evaluation) early."""
    rows.checkpoint_s[row] = min(float(rows.checkpoint_s[row]), after_s)
    rows.brief_s[row] = min(float(rows.brief_s[row]), after_s)
    rows.after_s[row] = min(float(rows.after_s[row]), after_s - float(rows.checkpoint_s[row]))


def _count(clock: RunClock, rows: TimelineRows, n_over: int) -> RunClock:
    """Return the clock after the first ``n_over`` of these steps."""
    if n_over == 0:
        return clock
    written = np.flatnonzero(rows.checkpoint_s[:n_over])
    paused = np.flatnonzero(rows.checkpoint_s[:n_over] + rows.after_s[:n_over])
    return replace(
        clock,
        step=clock.step + n_over,
        step_started_s=float(rows.end_s[n_over - 1]),
        due_until_s=float(rows.start_s[n_over - 1]),
        n_tokens=clock.n_tokens + int(rows.tokens[:n_over].sum()),
        checkpoint_step=int(rows.step[written[-1]]) + 1 if len(written) else clock.checkpoint_step,
        resumed_step=int(rows.step[paused[-1]]) + 1 if len(paused) else clock.resumed_step,
    )
