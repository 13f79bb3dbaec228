"""The timeline of a run: from where its clock stands to some later second."""

import math
from functools import lru_cache

import msgspec
import numpy as np

from telemetry.simulate.clock import WARM_UP_S, RunClock, grain
from telemetry.simulate.conditions import Conditions, conditions
from telemetry.simulate.noise import mixed, windows
from telemetry.simulate.rows import Rows, add_one_offs, gap, joined, steps_under
from telemetry.simulate.script import COMPILES, EVALUATION_S, FOREVER_S, Act, Script

# The runtime gives a silent peer up after so long ("waited 120 sec"); then the job restarts.
PEER_TIMEOUT_S = 120.0
CHECKPOINT_NOISE = 0.08
MOST_CELLS = 2**18  # of one stretch of steps, workers times steps

replace = msgspec.structs.replace


@lru_cache(maxsize=4)
def advance(script: Script, clock: RunClock, until: int) -> tuple[Rows, RunClock]:
    """Return the rows that overlap (clock.tick, until], and the clock at ``until``.

    The first row is the one under way at the clock's tick, the last the one under way at
    ``until`` (or ending right there). Cutting the interval anywhere gives the same rows.
    The shards of a run are played one after another: its latest rows are remembered.
    """
    pieces: list[Rows] = []
    while clock.step_started_s < until:
        interrupted = _interruption(script, clock)
        if interrupted is not None:
            clock = interrupted
            continue
        rows, clock = _stretch(script, clock, until)
        pieces.append(rows)
        if rows.end_s[-1] > until:
            break
    clock = replace(clock, tick=until)
    return joined(pieces), replace(clock, phase_progress_ratio=_progress(script, clock))


def _progress(script: Script, clock: RunClock) -> float:
    """Return how far a phase has come that has an end, 0 to 1."""
    if clock.phase == "training" and script.run.max_steps is not None:
        return clock.step / script.run.max_steps
    if clock.phase_ends_s is None:
        return float(clock.phase == "finished")
    gone_s = clock.tick - clock.phase_since_s
    return min(1.0, max(0.0, gone_s / (clock.phase_ends_s - clock.phase_since_s)))


def _stretch(script: Script, clock: RunClock, until: int) -> tuple[Rows, RunClock]:
    """Return the next rows, and the clock where the last of them that is over ended."""
    if clock.phase == "training":
        return _steps(script, clock, until)
    end_s = clock.phase_ends_s
    start_s = clock.step_started_s
    is_absent = clock.phase == "pending" and not clock.n_restarts
    life = "absent" if is_absent else clock.phase
    rows = gap(script, life, start_s=start_s, end_s=end_s or start_s + 2.0**30)
    if end_s is None or end_s > until:
        return rows, clock
    return rows, _after_gap(script, clock, end_s)


def _enter(clock: RunClock, phase: str, at_s: float, length_s: float | None) -> RunClock:
    ends_s = None if length_s is None else at_s + grain(length_s)
    return replace(
        clock, phase=phase, phase_since_s=at_s, step_started_s=at_s, phase_ends_s=ends_s
    )


def _after_gap(script: Script, clock: RunClock, at_s: float) -> RunClock:
    """Return the clock in the phase that follows: pending, compiling, warming up, training."""
    if clock.phase == "pending" and not clock.n_restarts and script.compile_s:
        return _enter(clock, "compiling", at_s, script.compile_s)
    if clock.phase != "warming_up":
        return _enter(clock, "warming_up", at_s, WARM_UP_S)
    return replace(_enter(clock, "training", at_s, None), gaps_until_s=at_s)


def _interruption(script: Script, clock: RunClock) -> RunClock | None:
    """Return the clock in a gap that begins with the step that would be next, if one does."""
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


@lru_cache(maxsize=256)
def _conditions(script: Script, acts: tuple[Act, ...]) -> Conditions:
    return conditions(script, acts)


def _steps(script: Script, clock: RunClock, until: int) -> tuple[Rows, RunClock]:
    """Return the steps up to where conditions change, and the clock after those that are over."""
    start_s = clock.step_started_s
    now = _conditions(script, script.on(start_s))
    horizon_s = min(float(until), script.next_edge(start_s))
    most = max(1, MOST_CELLS // script.run.nodes)
    n_steps = min(most, math.ceil((horizon_s - start_s) / now.shortest_s) + 1)
    if script.run.max_steps is not None:
        n_steps = min(n_steps, script.run.max_steps - clock.step)
    if now.stuck:
        n_steps = 1
    rows = steps_under(script, now, first=clock.step, n_steps=n_steps, start_s=start_s)
    _make_room(script, clock, now, rows)
    rows = rows[: max(1, int(np.searchsorted(rows.start_s, horizon_s)))]
    crash = _get_stuck(script, rows)
    end_s = rows.end_s
    n_over = int(np.searchsorted(end_s, until, side="right"))
    if crash is None or n_over < len(rows):
        return rows, _count(clock, rows, n_over)
    return rows, _give_up(script, _count(clock, rows, n_over - 1), crash, float(end_s[-1]))


def _make_room(script: Script, clock: RunClock, now: Conditions, rows: Rows) -> None:
    """Let the first step do what has fallen due since the one before began."""
    at_s, since_s, run = clock.step_started_s, clock.due_until_s, script.run
    acts = script.begun(since_s, at_s)
    rhythm_s = max(since_s, clock.phase_since_s)
    pause_s = sum(act.magnitude for act in acts if act.kind == "recompile")
    after_s = sum(act.end_s - act.start_s for act in acts if act.kind == "evaluation")
    if script.is_due(run.evaluate_every_s, rhythm_s, at_s):
        after_s += EVALUATION_S
    checkpoints = [act for act in acts if act.kind in {"checkpoint", "checkpoint_slow"}]
    is_due = script.is_due(run.checkpoint_every_s, rhythm_s, at_s)
    if not (checkpoints or is_due):
        checkpoint_s = brief_s = 0.0
    else:
        checkpoint_s, brief_s = _checkpoint_s(script, now, clock.step, checkpoints)
    if pause_s or after_s or checkpoint_s:
        add_one_offs(
            rows,
            pause_s=grain(pause_s),
            checkpoint_s=checkpoint_s,
            brief_s=brief_s,
            after_s=grain(after_s),
        )


def _checkpoint_s(
    script: Script, now: Conditions, step: int, acts: list[Act]
) -> tuple[float, float]:
    """Return how long a checkpoint takes, and how long those write whose storage is not slow."""
    told = [a.end_s - a.start_s for a in acts if a.kind == "checkpoint" and a.end_s < FOREVER_S]
    if told:
        return grain(max(told)), grain(max(told))
    noise = windows("normal", mixed(script.key("checkpoint"), np.array([step])), 1)
    lasts_s = now.checkpoint_s * (1 + CHECKPOINT_NOISE * float(noise[0, 0]))
    return grain(lasts_s), grain(lasts_s * now.brief_ratio)


def _get_stuck(script: Script, rows: Rows) -> Act | None:
    """Hold up the last step where a worker hangs or a node crashes; return the crash.

    Conditions change where an act begins, so no step but the last can see one begin. Nobody can
    be missed in a collective that all have joined: a hang that begins later holds up the next
    step; a crash after the exchange cuts off what follows it, and holds up the next step too.
    """
    row = len(rows) - 1
    start_s = float(rows.start_s[row])
    for act in sorted(script.acts, key=lambda act: act.start_s):
        in_time = act.start_s < rows.end_s[row] and act.end_s > start_s
        if not in_time or not rows.active[row, act.rows].any():
            continue
        ready_s = start_s + float(rows.ready_s[row])
        if act.kind == "hang" and act.start_s < ready_s:
            rows.hold(row, act.rows, until_s=grain(act.end_s))
        exchanged_s = ready_s + float(rows.transfer_s[row])
        if act.kind == "node_crash" and act.start_s >= exchanged_s:
            _cut_off(rows, row, after_s=grain(act.start_s - exchanged_s))
        elif act.kind == "node_crash":
            gives_up_s = grain(max(act.start_s, start_s) + PEER_TIMEOUT_S)
            rows.hold(row, act.rows, until_s=gives_up_s)
            rows.transfer_s[row] = rows.checkpoint_s[row] = rows.after_s[row] = 0.0
            rows.brief_s[row] = 0.0
            rows.is_step[row] = False
            return act
    return None


def _cut_off(rows: Rows, row: int, *, after_s: float) -> None:
    """Let what follows the exchange of a step, a checkpoint or an evaluation, end early."""
    rows.checkpoint_s[row] = min(float(rows.checkpoint_s[row]), after_s)
    rows.brief_s[row] = min(float(rows.brief_s[row]), after_s)
    rows.after_s[row] = min(float(rows.after_s[row]), after_s - float(rows.checkpoint_s[row]))


def _count(clock: RunClock, rows: Rows, n_over: int) -> RunClock:
    """Return the clock after the first ``n_over`` of these steps."""
    if n_over == 0:
        return clock
    written = np.flatnonzero(rows.checkpoint_s[:n_over])
    return replace(
        clock,
        step=clock.step + n_over,
        step_started_s=float(rows.end_s[n_over - 1]),
        due_until_s=float(rows.start_s[n_over - 1]),
        n_tokens=clock.n_tokens + int(rows.tokens[:n_over].sum()),
        checkpoint_step=int(rows.step[written[-1]]) + 1 if len(written) else clock.checkpoint_step,
    )


def _give_up(script: Script, clock: RunClock, crash: Act, at_s: float) -> RunClock:
    """Return the clock after a crash: failed, or waiting for the node to come back."""
    lost = replace(
        clock,
        n_restarts=clock.n_restarts + 1,
        n_steps_lost=clock.n_steps_lost + clock.step - clock.checkpoint_step,
        checkpoint_step=clock.step,
    )
    if not script.run.restarts:
        return _enter(lost, "failed", at_s, None)
    return _enter(lost, "pending", at_s, max(1.0, crash.end_s - at_s))
