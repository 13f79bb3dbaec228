"""Readings of a span: one figure of each node, the most of its parts, what was measured anew."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.detect.rules import RULES
from telemetry.steps import PHASES, StepBatch

Fingerprint = tuple[int, ...]


class CalmCache:
    """Remembers of each run which steps were found to be calm, by their figures alone.

    A step lasts for seconds, and detection looks each second. Where no alert is open, steps that
    showed nothing, and led nobody to look at hardware, show nothing the second time.
    """

    def __init__(self) -> None:
        self._calm: dict[str, Fingerprint] = {}

    def is_calm(self, steps: StepBatch) -> bool:
        """Tell whether these very steps were found to be calm."""
        held = self._calm.get(steps.run)
        return held is not None and held == fingerprint(steps)

    def note(self, steps: StepBatch, *, is_calm: bool) -> None:
        """Remember what was found."""
        self._calm.pop(steps.run, None)
        if is_calm:
            self._calm[steps.run] = fingerprint(steps)


def fingerprint(steps: StepBatch) -> Fingerprint:
    """Return a few numbers that differ where any figure of the steps does, but for bad luck."""
    figures = (steps.ended_at_s, steps.tokens, *steps.phases.values())
    return (
        *steps.step[[0, -1]].tolist(),
        *(zlib.crc32(np.ascontiguousarray(each).data.cast("B")) for each in figures),
    )


EXCHANGE = ("wait_s", "transfer_s")
ESSENTIAL = ("compute_s", *EXCHANGE)


@dataclass(frozen=True, slots=True)
class OpenProblem:
    """An open alert of the run, or of a node of it: what was believed when it was last seen."""

    rule: str
    cause: str
    node: str | None = None
    device: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DetectionInput:
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
    open_problems: tuple[OpenProblem, ...] = ()
    reads_hardware: bool = True
    hardware_at: Callable[[Sequence[str], Sequence[int]], Span] | None = None
    earlier: Callable[[float], StepBatch] | None = None
    checkpoint_s: float | None = None
    calm_cache: CalmCache | None = None

    def node_of(self, worker: str) -> str | None:
        """Return the node a worker runs on: itself, or what stands before the first slash."""
        node = worker.partition("/")[0]
        return node if node in self.nodes else None

    @property
    def stage(self) -> IntArray:
        """Pipeline stage of each worker's last rank: (n_workers,)."""
        n_workers = len(self.steps.workers)
        return (np.arange(1, n_workers + 1) * self.n_stages - 1) // max(1, n_workers)


def sum_phases(steps: StepBatch, phases: Sequence[str]) -> FloatArray:
    """Return the sum of some phases: (n_steps, n_workers) seconds."""
    first, *others = (steps.phases[phase] for phase in phases)
    for values in others:
        first = first + values
    return first


def reported_steps(steps: StepBatch) -> StepBatch:
    """Keep the steps that somebody reported, and of each step the workers that did.

    A worker counts where it told its compute time. Input, checkpoint and other time that it does
    not split out are part of that, hence zero. Wait and transfer that nobody timed stay NaN: they
    are unknown, and part of the compute time. A worker that did not report is NaN in every phase.
    """
    reported = sum_phases(steps, ESSENTIAL)
    others = [steps.phases[phase] for phase in PHASES if phase not in ESSENTIAL]
    if (reported > 0).all() and all(np.isfinite(values).all() for values in (reported, *others)):
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


def with_timed_exchange(steps: StepBatch) -> StepBatch:
    """Keep the reported steps whose exchange was timed, and the workers that timed it."""
    timed = np.isfinite(sum_phases(steps, EXCHANGE))
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


Args = ParamSpec("Args")
Result = TypeVar("Result")


class AccessRecorder:
    """Vitals that note whether anybody looked at hardware."""

    def __init__(self, inputs: DetectionInput) -> None:
        self.was_read = False
        moments = inputs.hardware_at and self._noted(inputs.hardware_at)
        self.inputs = replace(inputs, hardware=self._noted(inputs.hardware), hardware_at=moments)

    def _noted(self, ask: Callable[Args, Result]) -> Callable[Args, Result]:
        def answer(*args: Args.args, **extra: Args.kwargs) -> Result:
            self.was_read = True
            return ask(*args, **extra)

        return answer


def node_values(span: Span, metric: str) -> FloatArray:
    """Return a figure that a node has one of: (n_ticks, n_nodes), NaN where nothing was said."""
    values = span.values.get(metric)
    if values is None or values.shape[2] == 0:
        return np.full((len(span.ticks), len(span.nodes)), np.nan)
    return np.asarray(values[..., 0], dtype=float)


def part_values(span: Span, metric: str) -> FloatArray:
    """Return a figure of all parts: (n_ticks, n_nodes, n_parts), one NaN where there is none."""
    values = span.values.get(metric)
    if values is None or values.shape[2] == 0:
        return np.full((len(span.ticks), len(span.nodes), 1), np.nan)
    return values


def node_peak(span: Span, metric: str) -> FloatArray:
    """Return the most of any part: (n_ticks, n_nodes), NaN where nothing was said."""
    values = part_values(span, metric)
    known = np.isfinite(values)
    most = np.where(known, values, -np.inf).max(axis=2)
    return np.where(known.any(axis=2), most, np.nan)


def new_measurements(values: FloatArray) -> NDArray[np.bool_]:
    """Return which ticks brought a measurement of their own: the shape of ``values``.

    A probe of each minute, or a report of each 5 s, stands in every second until the next one
    comes. A value that is equal to the last one told is that value held, and counts once.
    """
    new = np.zeros(values.shape, dtype=bool)
    last = np.full(values.shape[1:], np.nan)
    for tick, now in enumerate(values):
        known = np.isfinite(now)
        new[tick] = known & (now != last)
        last = np.where(known, now, last)
    return new


def newest_measurements(values: FloatArray, n: int) -> FloatArray:
    """Return the newest measurements of each part: (n, ...), oldest first, NaN where fewer."""
    new = new_measurements(values)
    age = np.cumsum(new[::-1], axis=0)[::-1]
    picked = [np.where(new & (age == i), values, 0.0).sum(axis=0) for i in range(n, 0, -1)]
    known = [(new & (age == i)).any(axis=0) for i in range(n, 0, -1)]
    return np.where(known, picked, np.nan)


def is_persistent(
    above: NDArray[np.bool_], reports: NDArray[np.bool_], *, least: int
) -> NDArray[np.bool_]:
    """Tell which parts stood out for long enough: (...), of (n_ticks, ...).

    Parameters
    ----------
    above : in which ticks a part stood out
    reports : which ticks brought a report of its own
    least : how many ticks it takes where each brings one

    Notes
    -----
    Where reports come less often, all of those in view must say so, and two at the least.
    """
    n_reports = reports.sum(axis=0)
    n_above = (above & reports).sum(axis=0)
    each_tick = n_reports >= least
    return np.asarray(
        np.where(each_tick, above.sum(axis=0) >= least, (n_reports > 1) & (n_above == n_reports))
    )
