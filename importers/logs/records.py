"""Records of a training log: lines, steps, hardware errors and totals."""

from dataclasses import dataclass
from math import nan


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line without its prefixes (time, pod, rank).

    ``at_s`` is in Unix seconds, NaN without a time; ``clock_s`` in seconds since midnight, for
    times without a date. ``source`` distinguishes the streams of a mixed log: file, host, pod,
    rank. ``rank`` is None, ``host`` empty if unknown.
    """

    number: int
    text: str
    at_s: float = nan
    source: str = ""
    rank: int | None = None
    host: str = ""
    clock_s: float = nan


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The figures of a step in one line, in seconds, sequences and tokens; NaN if missing.

    ``elapsed_s`` is a progress bar's own clock, ``rate_s`` its smoothed seconds per iteration;
    ``consumed`` counts the sequences trained so far, ``consumed_tokens`` the tokens.
    ``iteration`` counts batches whose gradients are accumulated, ``iteration_s`` is the time of
    one. ``own_s`` is the time of this step alone, not of those since the line before.
    ``mean_seq_per_s`` is a rate averaged over earlier steps. ``loss_kind`` and
    ``grad_norm_kind`` are 0 for a finite figure, 1 for NaN, 2 for infinity, 3 for its negative.
    """

    step: int
    at_s: float = nan
    step_s: float = nan
    seq_per_s: float = nan
    tokens_per_s: float = nan
    tokens: float = nan
    loss: float = nan
    grad_norm: float = nan
    learning_rate: float = nan
    global_batch: float = nan
    consumed: float = nan
    consumed_tokens: float = nan
    elapsed_s: float = nan
    rate_s: float = nan
    iteration: float = nan
    iteration_s: float = nan
    own_s: float = nan
    mean_seq_per_s: float = nan
    loss_kind: float = nan
    grad_norm_kind: float = nan


@dataclass(frozen=True, slots=True)
class HardwareError:
    """A device error that the kernel driver logged."""

    kind: str
    at_s: float = nan
    node: str = ""
    instance: str = ""
    device: int | None = None
    core: int | None = None
    serial: str = ""
    action: str = ""


@dataclass(frozen=True, slots=True)
class TrainingTotals:
    """The totals that a training script logs at its end; NaN if missing."""

    runtime_s: float = nan
    n_steps: float = nan
    n_tokens: float = nan
    global_batch: float = nan
