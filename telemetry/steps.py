"""Training steps: the phases of every step, per worker."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray, mean

PHASES = ("compute_s", "wait_s", "transfer_s", "input_s", "checkpoint_s", "other_s")
EXCHANGE = ("wait_s", "transfer_s")
ESSENTIAL = ("compute_s", *EXCHANGE)
# A sampled exchange is timed in one of so many steps at least.
SPARSEST_STEPS = 100
# Protocol: agents and workers wait for up to 30 s between two attempts to send, and the next
# heartbeat of a worker comes within 10 s. After a silence of all, each has so long to be back.
RETURN_S = 40.0
# A loss that a job reported as NaN, apart from one that it did not report, which is any other NaN.
# R marks its missing values in this way. The bit below the quiet bit survives 32 bit, too.
NAN_BITS = 0x7FFC_0000_0000_0000
REPORTED_NAN = float(np.array(NAN_BITS, "u8").view("f8"))


def is_reported(loss: FloatArray) -> NDArray[np.bool_]:
    """Whether each loss was reported, as a number, as infinite or as NaN."""
    bits = np.ascontiguousarray(loss, "f8").view("u8")
    marked = (bits & np.uint64(NAN_BITS)) == np.uint64(NAN_BITS)
    return np.asarray(~np.isnan(loss) | marked)


def is_not_finite(loss: FloatArray) -> NDArray[np.bool_]:
    """Whether each loss was reported, and is NaN or infinite."""
    return np.asarray(is_reported(loss) & ~np.isfinite(loss))


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What a worker said last: at ``heard_s`` it had done ``activity`` since ``since_s``.

    ``activity`` is step, input, checkpoint, other or compile; empty where it is unknown.
    ``since_s`` is 0 where it never sent a heartbeat. It announced ``n_workers`` (0: unknown);
    ``began_s`` is when the first of them was heard in this start of the run, ``back_s`` when it
    was heard again after a silence in which others are dead (0: never).
    """

    node: str
    heard_s: float
    activity: str
    since_s: float
    rank: int = 0
    n_workers: int = 0
    began_s: float = math.nan
    back_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Merged:
    """How many steps each row of a batch covers, and the tokens of all of them together.

    Both are (n_rows,); NaN where unknown.
    """

    n_steps: FloatArray
    tokens: FloatArray


# The worker of a batch of averages.
AVERAGE = ("mean",)


@dataclass(frozen=True)
class StepBatch:
    """Consecutive steps of one run.

    Notes
    -----
    ``compute_s`` is a worker's own work, tensor-parallel collectives included; ``wait_s`` is
    the time it had arrived at the gradient collective and its peers had not; ``transfer_s``
    is the time the bytes moved with all present without overlapping compute.
    Other communication is inside ``compute_s``, or inside ``other_s`` of a recorded trace.
    A batch never changes: many rules read the same steps every second, so what it computes of
    them is computed once and shared. Do not write into it.
    """

    run: str  # name of the run
    # (n_workers,) names; a worker is a node unless a report names finer ones
    workers: tuple[str, ...]
    step: IntArray  # (n_steps,) step numbers, rising
    ended_at_s: FloatArray  # (n_steps,) Unix seconds at which the step was over
    # For each of PHASES, (n_steps, n_workers) seconds; NaN where not reported
    phases: Mapping[str, FloatArray]
    tokens: FloatArray  # (n_steps,) tokens trained in the step
    # (n_steps,) training loss, NaN for a step without one, REPORTED_NAN for one that is NaN; None
    # if no step has one
    reported_loss: FloatArray | None = None
    # Where rows are averages of several steps, how many and with how many tokens in all; None
    # where each row is one step
    merged: Merged | None = None
    # (n_steps,) seconds in communication that exchanges no gradients, mean over workers; NaN for a
    # step without; None if no step has it
    reported_other_comm_s: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def worker_step_s(self) -> FloatArray:
        """Duration of each step by worker: (n_steps, n_workers) seconds.

        The sum of the reported phases; NaN without any.
        """
        phases = np.array([self.phases[phase] for phase in PHASES])
        total: FloatArray = phases.sum(axis=0)
        if not np.isnan(total).any():
            return total
        known = np.isfinite(phases)
        some: FloatArray = np.where(known, phases, 0.0).sum(axis=0)
        return np.where(known.any(axis=0), some, np.nan)

    @cached_property
    def step_s(self) -> FloatArray:
        """Duration of each step: (n_steps,) seconds, the mean over workers that reported."""
        return mean(self.worker_step_s, 1)

    @property
    def loss(self) -> FloatArray:
        """Training loss of each step: (n_steps,), NaN if not reported; see `is_reported`."""
        return np.full(len(self), np.nan) if self.reported_loss is None else self.reported_loss

    @property
    def other_comm_s(self) -> FloatArray:
        """Communication that exchanges no gradients: (n_steps,) seconds, NaN if not reported."""
        known = self.reported_other_comm_s
        return np.full(len(self), np.nan) if known is None else known

    @property
    def n_merged(self) -> FloatArray:
        """How many steps each row covers: (n_steps,), 1 unless rows are averages."""
        return np.ones(len(self)) if self.merged is None else self.merged.n_steps

    @property
    def all_tokens(self) -> FloatArray:
        """Tokens of all the steps that a row covers: (n_steps,)."""
        return self.tokens if self.merged is None else self.merged.tokens

    @property
    def wait_ratio(self) -> FloatArray:
        """Share of the step spent waiting for peers: (n_steps,), mean over workers."""
        return self._ratio("wait_s")

    @property
    def transfer_ratio(self) -> FloatArray:
        """Share of the step spent moving gradients: (n_steps,), mean over workers."""
        return self._ratio("transfer_s")

    @property
    def allreduce_share_ratio(self) -> FloatArray:
        """Exposed gradient all-reduce over step time: (n_steps,), waiting and transferring."""
        return self.wait_ratio + self.transfer_ratio

    def _ratio(self, phase: str) -> FloatArray:
        """Share of a phase: (n_steps,), mean over workers."""
        # A worker without any reported time has no share: 0 / 0, without a warning.
        with np.errstate(invalid="ignore"):
            return mean(self.phases[phase] / self.worker_step_s, 1)

    @cached_property
    def reported(self) -> Self:
        """The reported steps, and of each step the workers that reported.

        A worker counts where it reported its compute time. Input, checkpoint and other time that
        it does not report are part of that, hence zero. Untimed wait and transfer stay NaN:
        unknown, and part of the compute time. A worker without a report is NaN in every phase.
        """
        reported = self.sum_phases(ESSENTIAL)
        others = [self.phases[phase] for phase in PHASES if phase not in ESSENTIAL]
        is_whole = (reported > 0).all()
        if is_whole and all(np.isfinite(values).all() for values in (reported, *others)):
            phases = {
                phase: values.astype(float, copy=False) for phase, values in self.phases.items()
            }
            return replace(self, phases=phases)
        known = np.isfinite(self.phases["compute_s"]) & (self.worker_step_s > 0)
        rows = np.asarray(known.any(axis=1))
        phases = {
            phase: np.where(known, values, np.nan).astype(float, copy=False)
            for phase, values in self.phases.items()
        }
        for phase in set(PHASES) - set(EXCHANGE):
            phases[phase][known & np.isnan(phases[phase])] = 0.0
        timed = replace(self, phases=phases)
        return timed if rows.all() else timed[rows]

    @property
    def timed(self) -> Self:
        """The steps and workers with timed wait and transfer."""
        return self if self._partly_timed is None else self._partly_timed

    @cached_property
    def _partly_timed(self) -> Self | None:
        """None where all are timed: a batch that held itself would not be freed at once."""
        timed = np.isfinite(self.sum_phases(EXCHANGE))
        if (timed == np.isfinite(self.phases["compute_s"])).all():
            return None
        phases = {phase: np.where(timed, values, np.nan) for phase, values in self.phases.items()}
        return replace(self, phases=phases)[np.asarray(timed.any(axis=1))]

    @cached_property
    def is_timed_now(self) -> bool:
        """Whether the newest timed step is one of the newest, or as old as the sampling explains.

        A trace may have ended, or pause: then the share is unknown now.
        """
        if self._partly_timed is None:
            return len(self) > 0
        (timed,) = np.nonzero(np.isfinite(self.sum_phases(EXCHANGE)).any(axis=1))
        if not timed.size:
            return False
        usual = float(np.median(np.diff(timed))) if timed.size > 1 else float(SPARSEST_STEPS)
        return bool(len(self) - 1 - timed[-1] <= max(2.0, 2.0 * usual))

    @cached_property
    def computed(self) -> dict[Callable[..., Any], Any]:
        """What functions marked by `once` have computed of this batch."""
        return {}

    def averaged(self) -> Self:
        """Return the mean of all workers as the only one."""
        phases = {phase: mean(values, 1)[:, None] for phase, values in self.phases.items()}
        return replace(self, workers=AVERAGE, phases=phases)

    def sum_phases(self, phases: Sequence[str]) -> FloatArray:
        """Sum of some phases: (n_steps, n_workers) seconds."""
        first, *others = (self.phases[phase] for phase in phases)
        for values in others:
            first = first + values
        return first

    @cached_property
    def _newest(self) -> dict[int, Self]:
        return {}

    def last(self, n_steps: int) -> Self:
        if n_steps not in self._newest:
            self._newest[n_steps] = self[max(0, len(self) - n_steps) :]
        return self._newest[n_steps]

    def newest(self, within_s: float, *, at_least: int) -> Self:
        """Keep the steps that ended within ``within_s`` of the last one, or a number of them."""
        n_within = int((self.ended_at_s > self.ended_at_s[-1:] - within_s).sum())
        return self.last(max(n_within, at_least))

    def __getitem__(self, rows: slice | NDArray[np.bool_]) -> Self:
        phases = {phase: values[rows] for phase, values in self.phases.items()}
        return type(self)(
            self.run,
            self.workers,
            self.step[rows],
            self.ended_at_s[rows],
            phases,
            self.tokens[rows],
            None if self.reported_loss is None else self.reported_loss[rows],
            None
            if self.merged is None
            else Merged(self.merged.n_steps[rows], self.merged.tokens[rows]),
            None if self.reported_other_comm_s is None else self.reported_other_comm_s[rows],
        )

    @classmethod
    def empty(cls, run: str, workers: tuple[str, ...] = ()) -> Self:
        none = np.zeros((0, len(workers)))
        phases = dict.fromkeys(PHASES, none)
        return cls(run, workers, np.zeros(0, int), np.zeros(0), phases, np.zeros(0))

    @classmethod
    def joined(cls, batches: Sequence[Self]) -> Self:
        """Concatenate batches of one run with the same workers."""
        phases = {p: np.concatenate([b.phases[p] for b in batches]) for p in PHASES}
        any_reported = any(batch.reported_loss is not None for batch in batches)
        any_other_comm = any(batch.reported_other_comm_s is not None for batch in batches)
        is_merged = any(batch.merged is not None for batch in batches)
        return cls(
            batches[0].run,
            batches[0].workers,
            np.concatenate([batch.step for batch in batches]),
            np.concatenate([batch.ended_at_s for batch in batches]),
            phases,
            np.concatenate([batch.tokens for batch in batches]),
            np.concatenate([batch.loss for batch in batches]) if any_reported else None,
            Merged(
                np.concatenate([batch.n_merged for batch in batches]),
                np.concatenate([batch.all_tokens for batch in batches]),
            )
            if is_merged
            else None,
            np.concatenate([batch.other_comm_s for batch in batches]) if any_other_comm else None,
        )


T = TypeVar("T")
ITSELF = object()


def once(function: Callable[[StepBatch], T]) -> Callable[[StepBatch], T]:
    """Let a function of a batch compute its result once, and keep it with the batch."""

    @wraps(function)
    def remembered(steps: StepBatch) -> T:
        known = steps.computed
        if function not in known:
            result = function(steps)
            # A batch that held itself would not be freed at once.
            known[function] = ITSELF if result is steps else result
        answer = known[function]
        return cast("T", steps) if answer is ITSELF else answer

    return remembered
