"""What detection looks at: the steps of one run, and its hardware where there is a reason."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.detect.recall import Recall
from telemetry.detect.rules import RULES
from telemetry.steps import PHASES, StepBatch

EXCHANGE = ("wait_s", "transfer_s")
ESSENTIAL = ("compute_s", *EXCHANGE)


@dataclass(frozen=True, slots=True)
class Standing:
    """An open alert of the run, or of a node of it: what was believed when it was last seen."""

    rule: str
    cause: str
    node: str | None = None
    device: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Vitals:
    """One run as seen now.

    ``steps`` are those of the last minutes, of all workers. ``hardware(metrics, last_s)`` fetches
    the newest seconds of the run's nodes, ``moments(metrics, ages_s)`` single seconds of so long
    ago, oldest first. ``counts`` holds the ECC counts at a few moments of the last minutes, oldest
    first, or None where nobody looked. ``cores_per_device`` counts cores as the runtime does;
    ``n_stages`` is the depth of the pipeline, whose stages hold whole blocks of workers.
    ``phase`` is what the run says of itself, since ``phase_since_s`` (None: unknown).
    ``standing`` are the open alerts of the run and of its nodes. Where ``looks`` is False nobody
    looks at hardware for its own sake this second. ``earlier(since_s)`` fetches steps from before
    the window. ``checkpoint_s`` is how long a checkpoint should take. ``recall`` remembers from
    one look to the next what need not be judged again; without it everything is.
    """

    run: str
    nodes: tuple[str, ...]
    steps: StepBatch
    hardware: Callable[[Sequence[str], int], Span]
    now_s: float
    limit_ratio: float = RULES["allreduce_share"].limits["limit_ratio"]
    resolve_ratio: float = RULES["allreduce_share"].limits["resolve_ratio"]
    cores_per_device: int = 1
    n_stages: int = 1
    counts: Span | None = None
    phase: str = "training"
    phase_since_s: float | None = None
    standing: tuple[Standing, ...] = ()
    looks: bool = True
    moments: Callable[[Sequence[str], Sequence[int]], Span] | None = None
    earlier: Callable[[float], StepBatch] | None = None
    checkpoint_s: float | None = None
    recall: Recall | None = None

    def node_of(self, worker: str) -> str | None:
        """Return the node a worker runs on: itself, or what stands before the first slash."""
        node = worker.partition("/")[0]
        return node if node in self.nodes else None

    @property
    def stage(self) -> IntArray:
        """Pipeline stage of each worker's last rank: (n_workers,)."""
        n_workers = len(self.steps.workers)
        return (np.arange(1, n_workers + 1) * self.n_stages - 1) // max(1, n_workers)


def total(steps: StepBatch, phases: Sequence[str]) -> FloatArray:
    """Return the sum of some phases: (n_steps, n_workers) seconds."""
    first, *others = (steps.phases[phase] for phase in phases)
    for values in others:
        first = first + values
    return first


def reported(steps: StepBatch) -> StepBatch:
    """Keep the steps that somebody reported, and of each step the workers that did.

    A worker counts where it told its compute time. Input, checkpoint and other time that it does
    not split out are part of that, hence zero. Wait and transfer that nobody timed stay NaN: they
    are unknown, and part of the compute time. A worker that did not report is NaN in every phase.
    """
    told = total(steps, ESSENTIAL)
    others = [steps.phases[phase] for phase in PHASES if phase not in ESSENTIAL]
    if (told > 0).all() and all(np.isfinite(values).all() for values in (told, *others)):
        phases = {
            phase: values.astype(float, copy=False) for phase, values in steps.phases.items()
        }
        return replace(steps, phases=phases)
    known = np.isfinite(steps.phases["compute_s"]) & (steps.worker_step_s > 0)
    rows = np.asarray(known.any(axis=1))
    phases = {
        phase: np.where(
            known, values if phase in EXCHANGE else np.nan_to_num(values), np.nan
        ).astype(float)
        for phase, values in steps.phases.items()
    }
    return _kept(replace(steps, phases=phases), rows)


def divided(steps: StepBatch) -> StepBatch:
    """Keep the reported steps whose exchange was timed, and the workers that timed it."""
    timed = np.isfinite(total(steps, EXCHANGE))
    if (timed == np.isfinite(steps.phases["compute_s"])).all():
        return steps
    phases = {phase: np.where(timed, values, np.nan) for phase, values in steps.phases.items()}
    return _kept(replace(steps, phases=phases), np.asarray(timed.any(axis=1)))


def _kept(steps: StepBatch, rows: NDArray[np.bool_]) -> StepBatch:
    """Keep some steps."""
    return replace(
        steps,
        step=steps.step[rows],
        ended_at_s=steps.ended_at_s[rows],
        phases={phase: values[rows] for phase, values in steps.phases.items()},
        tokens=steps.tokens[rows],
        told_loss=None if steps.told_loss is None else steps.told_loss[rows],
    )
