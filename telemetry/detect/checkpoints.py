"""The rule checkpoint_slow: checkpoints that take much longer to write than expected."""

from dataclasses import dataclass, replace

import numpy as np

from telemetry.detect.causes import phase_of
from telemetry.detect.findings import (
    CauseScore,
    Problem,
    json_number,
    onset_of_alert,
    problem_of,
    score_of_alert,
)
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import (
    CHECKPOINT,
    COMPILING,
    CORES,
    HOST,
    INPUT,
    LATE,
    LOADING,
    LONG_S,
    MOST,
    OLDEST_S,
    Flags,
    activities,
    hosts_between,
    since_ages,
    standstill,
    training_nodes,
)
from telemetry.steps import StepBatch, once
from telemetry.units import MINUTE_S

PHASE = "checkpoint_s"
CAUSE = "checkpoint_slow"
RULE, RATIO = "checkpoint_slow", "slower_by_ratio"
LEAST_S = RULES[RULE].limits["least_s"]
# Each second of the newest minutes is read.
LONGEST_S = 4 * MINUTE_S
# Fewer earlier checkpoints may all have been slow.
ENOUGH_CHECKPOINTS = 3
# Weights in 16 bit and Adam states in 32 bit per parameter. Nodes write their shards in parallel
# at this rate, after a fixed overhead.
BYTES_PER_PARAMETER, BYTES_PER_S, OPENING_S = 14.0, 2e9, 2.0


def expected_checkpoint_s(*, n_parameters: float, n_nodes: int) -> float:
    """How long a checkpoint of a model should take: seconds.

    Notes
    -----
    Two bytes of weight and twelve of optimizer per parameter, sharded over the nodes, at what one
    node gets from a parallel file system: J. Mohan et al., "CheckFreq: Frequent, Fine-Grained DNN
    Checkpointing", USENIX FAST 2021.
    """
    return OPENING_S + BYTES_PER_PARAMETER * n_parameters / max(1, n_nodes) / BYTES_PER_S


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``took_s`` is the time so far if it is in progress; ``node`` wrote the longest.

    ``said_by`` are the nodes whose workers say that they write it, ``n_writers`` how many workers
    reported that they wrote it: one may write it for all. Where nothing says so, all write.
    """

    took_s: float
    ended_s: float
    node: str | None
    said_by: tuple[str, ...] = ()
    n_writers: int = 0


def find_slow_checkpoint(inputs: DetectionInput, steps: StepBatch) -> list[Problem]:
    """Find a slow checkpoint: the one being written, or the newest one.

    A finished checkpoint is reported for a minute. One in progress shows as an overdue step
    while cores are idle, and hosts write or workers say so; it has taken at least the overdue time
    less one usual step.
    """
    taken = _durations(steps)
    held = [alert for alert in inputs.open_problems if phase_of(alert.cause) == PHASE]
    # An accused node stays accused.
    accused = next((alert.node for alert in held if alert.node is not None), None)
    under_way = _in_progress(inputs, steps, is_held=bool(held), accused=accused)
    if under_way is not None and (found := _check(inputs, steps, taken, under_way)):
        return [found]
    # It is over, and the step that it interrupted is still to end or to be reported. Figures of an
    # open alert may be a minute old.
    last_s = max(steps.ended_at_s[-1:], default=0.0)
    for alert in held:
        onset_s, phase_s = onset_of_alert(alert, -np.inf), alert.evidence.get("phase_s") or 0.0
        if last_s <= onset_s + 1.0 and inputs.now_s - onset_s - phase_s <= 2 * MINUTE_S:
            keys = ("baseline_phase_s", "phase_s", "is_expected")
            kept = {key: alert.evidence.get(key) for key in keys}
            return [replace(problem_of(score_of_alert(alert), onset_s), extra=kept)]
    if not taken:
        return []
    row, took_s = taken[-1]
    ended_s = float(steps.ended_at_s[row])
    # With an open alert and the next checkpoint in progress it stays recent: whether the next one
    # is slow too is not known yet.
    if inputs.now_s - ended_s > MINUTE_S and not (held and under_way is not None):
        return []
    node = accused or _slowest(*_writing(inputs, steps, ended_s - took_s, ended_s))
    n_writers = int((steps.phases[PHASE][row] > 0).sum())
    this = Checkpoint(took_s, ended_s, node, n_writers=n_writers)
    found = _check(inputs, steps, taken[:-1], this)
    return [] if found is None else [found]


def _check(
    inputs: DetectionInput, steps: StepBatch, earlier: list[tuple[int, float]], this: Checkpoint
) -> Problem | None:
    """Compare a checkpoint with ``earlier`` ones: (row, seconds) each."""
    usual_s, is_expected = _usual_s(inputs, steps, earlier, this)
    limit_s = max(inputs.limit(RULE, RATIO) * usual_s, usual_s + LEAST_S)
    if not np.isfinite(usual_s) and this.said_by:
        # What is usual is unknown, but workers say what takes so long.
        usual_s, limit_s = np.nan, LONG_S
    if not (np.isfinite(limit_s) and this.took_s >= limit_s):
        return None
    strength = this.took_s / limit_s
    score = CauseScore(CAUSE, strength, PHASE, this.took_s, usual_s, 0, "s", this.node)
    extra = {
        "baseline_phase_s": json_number(usual_s),
        "phase_s": this.took_s,
        "said_by": list(this.said_by),
        # What a model of this size should take: there was no checkpoint to compare with.
        "is_expected": is_expected and bool(np.isfinite(usual_s)),
    }
    return Problem(CAUSE, score, "checkpoint", this.ended_s - this.took_s, strength, extra=extra)


def _in_progress(
    inputs: DetectionInput, steps: StepBatch, *, is_held: bool, accused: str | None
) -> Checkpoint | None:
    stall = standstill(inputs)
    if stall is None:
        return None
    said, said_by = activities(inputs, stall.since_s), tuple[str, ...]()
    if said is not None:
        # All save, or one does for all, and the others wait for it.
        said_by = tuple(node for node in inputs.nodes if said.doing.get(node) == CHECKPOINT)
        if not said_by and said.common == INPUT:
            # Their hosts read.
            return None
    if not stall.loads.any():
        # What workers say does not show which node writes; hosts that write do.
        if said is None or not said_by:
            return None
        return Checkpoint(said.lasts_s(CHECKPOINT, inputs.now_s), inputs.now_s, accused, said_by)
    nodes, writes = _writing(inputs, steps, stall.since_s, inputs.now_s)
    # Most nodes writing at one moment: a checkpoint.
    is_common = stall.loads.mean() > MOST or bool((writes.mean(axis=1) > MOST).any())
    if not (is_common or is_held or said_by):
        return None
    # While all nodes write no one stands out.
    node = _slowest(nodes, writes[-LONGEST_S:]) or accused
    # The pace of a run whose steps are no longer stored does not matter while it writes.
    step_s = np.nan_to_num(stall.step_s) if is_held else stall.step_s
    return Checkpoint(float(stall.overdue_s - step_s), inputs.now_s, node, said_by)


def _writing(
    inputs: DetectionInput, steps: StepBatch, from_s: float, until_s: float
) -> tuple[tuple[str, ...], Flags]:
    """Which node wrote when, while its cores were idle: (n_moments, n_nodes), oldest first.

    A few moments of all the time, and each of its newest seconds.
    """
    nodes, now = training_nodes(inputs, steps), int(inputs.now_s)
    if inputs.hardware_at is None:
        return nodes, np.zeros((0, len(nodes)), bool)
    newest, oldest = now - int(until_s), now - int(from_s)
    seconds = range(newest, min(oldest, newest + LONGEST_S))
    ages = sorted({age for age in since_ages(inputs, from_s) if age >= newest} | {*seconds})
    span = inputs.hardware_at((CORES, HOST), ages[::-1]).of(nodes)
    return span.nodes, hosts_between(span, LOADING, COMPILING) > 0


def _slowest(nodes: tuple[str, ...], writes: Flags) -> str | None:
    """Return the node that wrote longer than the others by half; None where no single one did."""
    wrote_s = writes.sum(axis=0)
    if len(nodes) < 2 or not wrote_s.size:
        return None
    order = np.argsort(wrote_s)
    most, next_s = float(wrote_s[order[-1]]), float(wrote_s[order[-2]])
    return nodes[order[-1]] if most >= max(LATE.steps * next_s, next_s + LEAST_S) else None


@once
def _durations(steps: StepBatch) -> list[tuple[int, float]]:
    """Row and duration (seconds) of every checkpoint."""
    took_s = np.fmax.reduce(steps.phases[PHASE], axis=1, initial=0.0)
    return [(int(row), float(took_s[row])) for row in np.flatnonzero(took_s > 0)]


def _usual_s(
    inputs: DetectionInput, steps: StepBatch, taken: list[tuple[int, float]], this: Checkpoint
) -> tuple[float, bool]:
    """Usual duration of a checkpoint in seconds, infinity: unknown; whether it is by its size.

    The fastest earlier checkpoint counts, so several slow ones do not become usual. With half the
    nodes, each writes twice as much; one that writes for all writes it all.
    """
    for alert in inputs.open_problems:
        held = alert.evidence.get("baseline_phase_s")
        if phase_of(alert.cause) == PHASE and held is not None:
            return float(held), bool(alert.evidence.get("is_expected"))
    earlier = [took_s for _, took_s in taken]
    before_s = min(steps.ended_at_s[:1].tolist(), default=this.ended_s)
    if not earlier and inputs.earlier is not None:
        before_s = inputs.now_s - OLDEST_S
        past = inputs.earlier(before_s)
        n_then = np.isfinite(past.phases["compute_s"]).sum(axis=1)
        newest = np.isfinite(steps.phases["compute_s"][-1:]).sum()
        n_now = max(1, int(newest)) if len(steps) else len(inputs.nodes)
        earlier = [
            OPENING_S + max(0.0, took_s - OPENING_S) * float(n_then[row]) / n_now
            for row, took_s in _durations(past)
            if past.ended_at_s[row] < this.ended_s
        ]
    if len(earlier) < ENOUGH_CHECKPOINTS and inputs.saved is not None:
        earlier += inputs.saved(before_s)
    if len(earlier) >= ENOUGH_CHECKPOINTS or (earlier and inputs.checkpoint_s is None):
        return min(earlier), False
    n_writers = len(this.said_by) or this.n_writers or np.inf
    n_writers = max(1, min(n_writers, len(training_nodes(inputs, steps))))
    due_s = (inputs.checkpoint_s or np.inf) * max(1.0, len(inputs.nodes) / n_writers)
    return min([*earlier, due_s]), due_s < min(earlier, default=np.inf)
