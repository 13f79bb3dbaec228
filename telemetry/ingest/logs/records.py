"""What a line of a training log says: a step, a compile, an error of the hardware."""

from dataclasses import dataclass
from math import nan

from telemetry.compiles import FAIL, HIT, MISS, Compile

__all__ = [
    "FAIL",
    "HIT",
    "MISS",
    "Compile",
    "HardwareError",
    "LogLine",
    "StepRecord",
    "TrainingTotals",
]


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line on its way to the readers, without the prefixes that others put before it.

    ``at_s`` is in Unix seconds, NaN where the line has no time; ``source`` tells one stream of
    a mixed log from another (file, pod, rank), and ``rank`` is None where nobody says it.
    """

    number: int
    text: str
    at_s: float = nan
    source: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one line says of one step, in seconds, sequences and tokens; NaN where unsaid.

    ``elapsed_s`` is a progress bar's own clock, ``rate_s`` its seconds per iteration, which are
    smoothed; ``consumed`` counts the sequences trained so far.
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
    elapsed_s: float = nan
    rate_s: float = nan


@dataclass(frozen=True, slots=True)
class HardwareError:
    """One error that the kernel's driver reported of a device."""

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
    """What a training script says of itself when it is over; NaN where unsaid."""

    runtime_s: float = nan
    n_steps: float = nan
    n_tokens: float = nan
    global_batch: float = nan
