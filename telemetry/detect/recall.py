"""What was calm and has not changed since: steps that nobody need judge twice."""

import zlib

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.steps import StepBatch

Fingerprint = tuple[int, ...]


class Recall:
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
    return (*steps.step[[0, -1]].tolist(), *(zlib.crc32(_bytes(each)) for each in figures))


def _bytes(values: FloatArray) -> memoryview:
    return np.ascontiguousarray(values).data.cast("B")
