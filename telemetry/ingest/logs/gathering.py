"""Steps as they gather from lines: each once, however many ranks tell of it."""

import math
from array import array

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.ingest.logs.records import Said

COLUMNS = (
    "at_s",
    "step_s",
    "seq_per_s",
    "tokens_per_s",
    "tokens",
    "loss",
    "grad_norm",
    "learning_rate",
    "global_batch",
    "consumed",
    "elapsed_s",
    "rate_s",
)
N = len(COLUMNS)
KEPT_FIRST = {COLUMNS.index("at_s"), COLUMNS.index("elapsed_s")}
MOST_STEPS = 1_000_000
# A step that is told again so much later was trained again, after a restart.
AGAIN_S = 60.0
AGAIN_STEPS = 5.0


class TooManyStepsError(ValueError):
    """A log of more steps than are read at once."""


class Gathered:
    """The steps of one family of lines; memory grows with steps, not with lines.

    Of what several lines say of one step the newest counts, but for the time: the first line
    that tells of a step is nearest to its end.
    """

    def __init__(self) -> None:
        self._row_of: dict[int, int] = {}
        self._values = array("d")
        self.n_lines = 0
        self.n_again = 0

    def __len__(self) -> int:
        """Count the steps."""
        return len(self._row_of)

    def add(self, said: Said) -> None:
        """Take in what a line says of a step."""
        self.n_lines += 1
        new = [getattr(said, name) for name in COLUMNS]
        row = self._row_of.get(said.step)
        if row is None:
            if len(self._row_of) >= MOST_STEPS:
                raise TooManyStepsError(
                    f"FILE: has more than {MOST_STEPS:,} steps; split it, or thin it out"
                )
            self._row_of[said.step] = len(self._row_of)
            self._values.extend(new)
            return
        start = row * N
        is_again = self._is_again(start, said)
        self.n_again += is_again
        for i, value in enumerate(new):
            is_kept = i in KEPT_FIRST and not is_again and not math.isnan(self._values[start + i])
            if not math.isnan(value) and not is_kept:
                self._values[start + i] = value

    def _is_again(self, start: int, said: Said) -> bool:
        """Whether a step was trained anew, rather than told by another rank."""
        later_s = said.at_s - self._values[start]
        step_s = self._values[start + 1]
        usual_s = 0.0 if math.isnan(step_s) else step_s
        return later_s > max(AGAIN_S, AGAIN_STEPS * usual_s)

    def columns(self) -> dict[str, FloatArray]:
        """Return the steps in order: ``step`` (n,) and each of COLUMNS (n,), NaN where unsaid."""
        steps = np.fromiter(self._row_of, "i8", len(self._row_of))
        order = np.argsort(steps, kind="stable")
        values = np.array(self._values).reshape(-1, N)[order]
        return {"step": steps[order].astype("f8")} | {
            name: values[:, i] for i, name in enumerate(COLUMNS)
        }
