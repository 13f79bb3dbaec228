"""Steps as Hugging Face's trainers log them, Optimum-Neuron's too: a dictionary per line."""

import math
import re
from collections.abc import Mapping

from telemetry.ingest.logs.bars import bar_of
from telemetry.ingest.logs.figures import NUMBER, figure, positive, step_number, step_seconds
from telemetry.ingest.logs.records import Entry, Said, Totals

NAME = "Optimum-Neuron"
FLAGS = re.ASCII | re.IGNORECASE
DICTIONARY = re.compile(r"\{\s{0,4}['\"][^{}]{1,8000}\}")
ITEM = re.compile(rf"['\"]([\w/ .-]{{1,60}})['\"]\s{{0,4}}:\s{{0,4}}['\"]?({NUMBER})['\"]?", FLAGS)
STEPS = ("step", "global_step", "train/global_step")
LOSSES = ("loss", "train/loss")
TOKEN_RATES = ("train/tokens_per_sec", "tokens_per_sec", "train_tokens_per_second")
STEP_TIMES = ("train/step_time", "step_time", "train_step_runtime")
SEQUENCE_RATES = ("train_step_samples_per_second", "samples_per_second")
MOST_SOURCES = 10_000
TRAINING = (*LOSSES, *TOKEN_RATES, *STEP_TIMES)


class HuggingFace:
    """Reader of dictionaries, and of the bar that tells which step they are about.

    A dictionary without a step belongs to the training bar's newest count; a log without bars
    has its dictionaries counted, ``every`` steps each. The training bar is the first one without
    words before it; evaluations have bars of other lengths.
    """

    def __init__(self, *, every: int = 1) -> None:
        self.totals = Totals()
        self.n_counted = 0
        self._counts: dict[str, int] = {}
        self._every = every
        self._length: int | None = None
        self._at: tuple[int, float, float] | None = None

    def read(self, entry: Entry) -> Said | Totals | bool:
        """Read one line: a step, the end's totals, or whether it was understood at all."""
        has_bar = self._follow(entry.text)
        match = DICTIONARY.search(entry.text)
        told = dict(_items(match[0])) if match else {}
        if "train_runtime" in told or any(name.startswith("summary/") for name in told):
            return _totals(told)
        if not any(name in told for name in TRAINING):
            return has_bar or any(name.startswith("eval") for name in told)
        return self._said(entry, told)

    def _follow(self, text: str) -> bool:
        """Keep up with the training bar; return whether this line moved it."""
        bar = bar_of(text)
        if bar is None or bar.label or bar.total is None:
            return False
        self._length = self._length or bar.total
        if bar.total == self._length:
            self._at = (bar.n, bar.elapsed_s, bar.rate_s)
        return True

    def _said(self, entry: Entry, told: Mapping[str, str]) -> Said:
        step = step_number(_first(told, STEPS))
        n, elapsed_s, rate_s = self._at or (None, math.nan, math.nan)
        if step is None and n is None:
            n = self._counted(entry.source, has_loss=any(name in told for name in LOSSES))
        return Said(
            step if step is not None else n or 0,
            at_s=entry.at_s,
            step_s=step_seconds(_first(told, STEP_TIMES)),
            seq_per_s=positive(_first(told, SEQUENCE_RATES)),
            tokens_per_s=positive(_first(told, TOKEN_RATES)),
            loss=figure(_first(told, LOSSES)),
            grad_norm=figure(told.get("grad_norm")),
            learning_rate=figure(told.get("learning_rate")),
            elapsed_s=elapsed_s,
            rate_s=rate_s,
        )

    def _counted(self, source: str, *, has_loss: bool) -> int:
        """Count a rank's dictionaries; of two for one step, the one with the loss counts."""
        so_far = self._counts.get(source, 0)
        count = so_far + (has_loss or not so_far)
        if source in self._counts or len(self._counts) < MOST_SOURCES:
            self._counts[source] = count
        self.n_counted = max(self.n_counted, count)
        return count * self._every


def _items(text: str) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in ITEM.findall(text)]


def _first(told: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((told[name] for name in names if name in told), None)


def _totals(told: Mapping[str, str]) -> Totals:
    """Return what the end of a run sums up."""
    runtime_s, steps_per_s = (
        positive(told.get("train_runtime")),
        positive(told.get("train_steps_per_second")),
    )
    return Totals(
        runtime_s=runtime_s,
        n_steps=positive(told.get("summary/total_steps")),
        n_tokens=positive(told.get("summary/total_tokens_processed")),
        global_batch=positive(told.get("train_samples_per_second")) / steps_per_s,
    )
