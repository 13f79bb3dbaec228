"""Steps as neuronx-distributed-training shows them: figures behind Lightning's progress bar."""

import math
import re
from collections.abc import Mapping

from telemetry.ingest.logs.bars import Bar, bar_of
from telemetry.ingest.logs.figures import figure, positive, step_number, step_seconds
from telemetry.ingest.logs.records import Entry, Said

NAME = "NxDT"
LOSSES = ("reduced_train_loss", "train_loss", "train_loss_step", "loss")
NORMS = ("gradient_norm", "grad_norm")
TIMES = ("iteration_time", "train_step_timing")
EPOCH = re.compile(r"epoch (\d{1,3})$", re.ASCII)
NOT_TRAINING = ("valid", "sanity", "test", "predict", "eval")


class Lightning:
    """Reader of bars that carry figures.

    Large figures behind a bar are rounded (``1.23e+5``). A step's number is then the bar's own
    count, at the distance from it that exact ones had.
    """

    def __init__(self) -> None:
        self._ahead = 0

    def read(self, entry: Entry) -> Said | None:
        """Read one line; None where it has no bar with figures of training."""
        bar = bar_of(entry.text)
        if bar is None or bar.label.startswith(NOT_TRAINING) or not _is_training(bar.figures):
            return None
        told = bar.figures
        return Said(
            self._step(bar),
            at_s=entry.at_s,
            step_s=step_seconds(_first(told, TIMES)),
            seq_per_s=positive(told.get("throughput")),
            loss=figure(_first(told, LOSSES)),
            grad_norm=figure(_first(told, NORMS)),
            learning_rate=figure(told.get("lr")),
            consumed=_exact(told.get("consumed_samples")),
            elapsed_s=bar.elapsed_s,
            rate_s=bar.rate_s,
        )

    def _step(self, bar: Bar) -> int:
        text = bar.figures.get("global_step", "")
        told, position = step_number(text), _position(bar)
        if told is None:
            return position
        if "e" in text.lower():
            return max(0, position + self._ahead)
        self._ahead = told - position
        return told


def _position(bar: Bar) -> int:
    """Return the bar's count over all epochs: each begins anew."""
    epoch = EPOCH.search(bar.label)
    return bar.n + (int(epoch[1]) * bar.total if epoch and bar.total else 0)


def _is_training(told: Mapping[str, str]) -> bool:
    return any(name in told for name in (*LOSSES, *TIMES, "global_step", "throughput"))


def _first(told: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((told[name] for name in names if name in told), None)


def _exact(text: str | None) -> float:
    """Return a count; one that is rounded is no count."""
    return math.nan if text is None or "e" in text.lower() else positive(text)
