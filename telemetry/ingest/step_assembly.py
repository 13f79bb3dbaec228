"""Assembling a step from its workers' reports: waiting, transfer, compute, end."""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from telemetry.blocks import FloatArray
from telemetry.ingest.step_reports import StepLine
from telemetry.steps import PHASES, REPORTED_NAN, StepBatch

# Clocks of machines are comparable if all workers leave a collective within this time.
CLOCKS_AGREE_S = 0.02
# A repeated report that is placed this far from the first copy replaces it.
MOVED_S = 1.0
# What a sum of tokens loses as a 32-bit float.
COUNTED_ALIKE = 1e-6


class WorkerStep(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """One worker's report of one step, with times by our clock; None where not reported."""

    worker: str
    node: str
    rank: int
    stage: int
    group: str
    n_workers: int
    ended_at_s: float
    step_s: float
    collectives: list[float] | None = None
    arrivals: list[float] | None = None
    input_s: float | None = None
    checkpoint_s: float | None = None
    other_s: float | None = None
    tokens: float | None = None
    loss: float | None = None
    # The estimate of the worker's clock that placed it; infinite if unknown.
    offset_s: float = math.inf
    executing_s: float | None = None
    barrier_s: float | None = None
    collective_trace_s: float | None = None
    other_comm_s: float | None = None
    # What was added to the worker's own times; unknown of what an older release stored.
    correction_s: float = math.nan

    def is_improved_by(self, repeat: "WorkerStep") -> bool:
        """Whether a repeat of this report is placed elsewhere, by a better estimate.

        A delay is never shorter than the clock's offset, so the smaller estimate is better.
        """
        is_moved = abs(repeat.ended_at_s - self.ended_at_s) >= MOVED_S
        return is_moved and repeat.offset_s < self.offset_s

    def later_s(self, other: "WorkerStep") -> float:
        """By how much this report's step ended later, by the worker's own clock."""
        return self.ended_at_s - self.correction_s - other.ended_at_s + other.correction_s

    def is_other_than(self, stored: "WorkerStep") -> bool:
        """Whether this is no repeat of a stored report of its number, but another step.

        A repeat has the same end. A worker makes one step after the other, so the ends of two are
        at least as far apart as the later one takes.
        """
        later_s = self.later_s(stored)
        lasted_s = self.step_s if later_s > 0 else stored.step_s
        return abs(later_s) >= max(MOVED_S, lasted_s)

    def is_of_namesake_of(self, stored: "WorkerStep") -> bool:
        """Whether another process reported a step of this number under the same name.

        A repeat has the same rank and duration.
        """
        return (self.rank, self.step_s) != (stored.rank, stored.step_s)


def worker_step_of(
    line: StepLine, *, correction_s: float, offset_s: float = math.inf
) -> WorkerStep:
    """Convert a step line.

    ``correction_s`` is added to the worker's times; ``offset_s`` is the estimate it follows from.
    """
    arrivals = line.arrivals
    return WorkerStep(
        line.worker,
        line.runs_on,
        line.rank or 0,
        line.stage or 0,
        line.group,
        line.n_workers or 0,
        line.ended_at + correction_s,
        line.step_s,
        line.collectives,
        None if arrivals is None else [moment + correction_s for moment in arrivals],
        line.input_s,
        line.checkpoint_s,
        line.other_s,
        line.tokens,
        None if line.loss is None else float(line.loss),
        offset_s,
        line.executing_s,
        line.barrier_s,
        line.collective_trace_s,
        line.other_comm_s,
        correction_s,
    )


def assemble_steps(
    run: str,
    steps: Mapping[int, Sequence[WorkerStep]],
    workers: Sequence[str],
    *,
    tokens: float = math.nan,
    n_nodes: int = 1,
) -> StepBatch:
    """Assemble steps from worker reports; a worker without a report is NaN.

    Parameters
    ----------
    steps : the reports of each step, by its number
    workers : (n_workers,) names of all workers of the run, in order
    tokens : tokens of a step if no worker reports them, or each its own
    n_nodes : of the run, which has as many workers at least
    """
    order = sorted(steps)
    rows = [_row(steps[number], workers, n_nodes) for number in order]
    values = np.stack(rows) if rows else np.zeros((0, len(PHASES), len(workers)))
    return StepBatch(
        run=run,
        workers=tuple(workers),
        step=np.array(order, int),
        ended_at_s=np.array([_median(p.ended_at_s for p in steps[number]) for number in order]),
        phases={phase: values[:, i] for i, phase in enumerate(PHASES)},
        tokens=np.array([_tokens(steps[number], tokens) for number in order], float),
        reported_loss=_losses([[p.loss for p in steps[number]] for number in order]),
        reported_other_comm_s=_means([[p.other_comm_s for p in steps[i]] for i in order]),
    )


def _median(values: Iterable[float]) -> float:
    return float(np.median(np.fromiter(values, float)))


def _tokens(worker_steps: Sequence[WorkerStep], otherwise: float) -> float:
    lowest, highest = tokens_range(worker_steps)
    return lowest if is_same_count(lowest, highest) else otherwise


def tokens_range(worker_steps: Sequence[WorkerStep]) -> tuple[float, float]:
    """Return the fewest and the most tokens that workers report for one step; NaN without any."""
    values = [step.tokens for step in worker_steps if step.tokens is not None]
    return min(values, default=math.nan), max(values, default=math.nan)


def is_same_count(lowest: float, highest: float) -> bool:
    """Whether workers agree on a step's tokens: else each reports its own, not the job's."""
    return highest - lowest <= COUNTED_ALIKE * highest


def _losses(steps: Sequence[Sequence[float | None]]) -> FloatArray | None:
    """Return the mean loss of each step, REPORTED_NAN where a worker's is NaN: (n_steps,)."""
    means = _means(steps)
    if means is not None:
        is_known = [any(value is not None for value in step) for step in steps]
        means[np.isnan(means) & is_known] = REPORTED_NAN
    return means


def _means(steps: Sequence[Sequence[float | None]]) -> FloatArray | None:
    """Return the mean of each step over workers that report a value: (n_steps,); None without."""
    values = [[value for value in step if value is not None] for step in steps]
    if not any(values):
        return None
    return np.array([_mean(each) for each in values])


def _mean(values: Sequence[float]) -> float:
    if not all(map(math.isfinite, values)):
        # Both infinities together are NaN.
        return sum(values)
    return math.fsum(values) / len(values) if values else math.nan


def _row(
    worker_steps: Sequence[WorkerStep], workers: Sequence[str], least_workers: int
) -> FloatArray:
    """Return one step: (len(PHASES), n_workers) seconds."""
    place = {name: i for i, name in enumerate(workers)}
    columns = [place[step.worker] for step in worker_steps]
    wait_s, transfer_s = shared(worker_steps, least_workers)
    values = [
        [p.step_s, p.input_s, p.checkpoint_s, p.other_s, p.executing_s] for p in worker_steps
    ]
    step_s, input_s, checkpoint_s, other_s, executing_s = np.array(values, float).T
    traced_s = traced_wait_s(worker_steps, least_workers)
    is_traced = np.isnan(wait_s) & np.isfinite(traced_s)
    wait_s, transfer_s = np.where(
        is_traced, (traced_s, np.zeros_like(traced_s)), (wait_s, transfer_s)
    )
    # A core that executes nothing is not computing; hooks may know what for.
    idle_s = step_s - executing_s - np.nan_to_num(input_s) - np.nan_to_num(checkpoint_s)
    other_s = np.where(is_traced & np.isnan(other_s), np.maximum(0.0, idle_s), other_s)
    parts = (wait_s, transfer_s, input_s, checkpoint_s, other_s)
    exchange_s = np.array([math.fsum(step.collectives or ()) for step in worker_steps])
    # Of one alone how long it waited is unknown; most of an exchange that grows is waiting.
    is_alone = np.isnan(wait_s) & np.array([step.collectives is not None for step in worker_steps])
    parts[0][is_alone], parts[1][is_alone] = exchange_s[is_alone], 0.0
    exchange_s[is_traced] = traced_s[is_traced]
    rest_s = step_s - exchange_s - np.nansum(parts[2:], axis=0)
    compute_s = np.maximum(0.0, rest_s)
    row = np.full((len(PHASES), len(workers)), np.nan)
    row[:, columns] = np.stack([compute_s, *parts])
    return row


def shared(
    worker_steps: Sequence[WorkerStep], least_workers: int = 1
) -> tuple[FloatArray, FloatArray]:
    """Split each worker's gradient exchange into waiting and transferring.

    Parameters
    ----------
    worker_steps : the reports of one step
    least_workers : how many the run has at least, where reports do not say

    Returns
    -------
    wait_s, transfer_s : (n_workers,) seconds; NaN for workers without collectives,
        and for one whose group members are all missing

    Notes
    -----
    All workers of a group leave a collective together, so the last to arrive only transfers:
    per collective ``transfer_s`` is the minimum over the group and ``wait_s`` the rest. Where
    all report arrival times, and their clocks agree, these are used instead.
    """
    wait_s, transfer_s = np.full((2, len(worker_steps)), np.nan)
    is_whole = _is_whole(worker_steps, least_workers)
    for members in _groups(worker_steps):
        rows = [i for i in members if worker_steps[i].collectives is not None]
        if len(rows) > 1 or (rows and is_whole):
            seconds = _table([worker_steps[i].collectives for i in rows])
            moments = _moments([worker_steps[i].arrivals for i in rows], seconds)
            moved = _transfer_s(seconds, moments)
            transfer_s[rows] = moved.sum(axis=1)
            wait_s[rows] = (seconds - moved).sum(axis=1)
    return wait_s, transfer_s


def traced_wait_s(worker_steps: Sequence[WorkerStep], least_workers: int = 1) -> FloatArray:
    """Return how long each worker waited, by a runtime's trace: (n_workers,) seconds.

    That is its time at barriers, and its time in collectives beyond the shortest of its group:
    a collective ends for all at once, so who enters it early waits in it. NaN without a trace.
    The rest of the collectives may overlap with compute and is not counted.
    """
    wait_s = np.full(len(worker_steps), np.nan)
    is_whole = _is_whole(worker_steps, least_workers)
    for members in _groups(worker_steps):
        rows = [i for i in members if worker_steps[i].barrier_s is not None]
        if len(rows) > 1 or (rows == members and is_whole):
            barrier, collective = np.array(
                [
                    (worker_steps[i].barrier_s, worker_steps[i].collective_trace_s or 0.0)
                    for i in rows
                ],
                float,
            ).T
            wait_s[rows] = barrier + collective - collective.min()
    return wait_s


def _is_whole(worker_steps: Sequence[WorkerStep], least_workers: int) -> bool:
    """Whether all workers have reported the step."""
    return len(worker_steps) >= max(
        (step.n_workers for step in worker_steps if step.n_workers), default=least_workers
    )


def _groups(worker_steps: Sequence[WorkerStep]) -> list[list[int]]:
    """Return the indices of each data-parallel group."""
    by_group: dict[tuple[int, str], list[int]] = {}
    for i, step in enumerate(worker_steps):
        by_group.setdefault((step.stage, step.group), []).append(i)
    return list(by_group.values())


def _table(values: Sequence[Sequence[float] | None]) -> FloatArray:
    """Return (n_workers, n_collectives); one column of sums if workers' counts differ."""
    lists = [value or [] for value in values]
    if len({len(each) for each in lists}) == 1 and lists[0]:
        return np.array(lists, float)
    return np.array([[math.fsum(each)] for each in lists], float)


def _moments(values: Sequence[Sequence[float] | None], seconds: FloatArray) -> FloatArray | None:
    """Return when each worker arrived at each collective; None if clocks do not agree."""
    if any(value is None or len(value) != seconds.shape[1] for value in values):
        return None
    moments = np.array(values, float)
    ends = moments + seconds
    return moments if (np.ptp(ends, axis=0) <= CLOCKS_AGREE_S).all() else None


def _transfer_s(seconds: FloatArray, moments: FloatArray | None) -> FloatArray:
    """Return how long each worker transferred in each collective: (n_workers, n_collectives)."""
    if moments is None:
        return np.broadcast_to(seconds.min(axis=0), seconds.shape)
    left = moments + seconds - moments.max(axis=0)
    return np.asarray(np.clip(left, 0.0, seconds))
