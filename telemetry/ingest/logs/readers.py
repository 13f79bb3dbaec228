"""Steps as neuronx-distributed's training examples print them, tensor-parallel and ZeRO-1."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from telemetry.ingest.logs.records import LogLine, StepRecord, TrainingTotals

EXPONENT = r"(?:e[-+]?\d{1,4})?"
NUMBER = (
    rf"[-+]?(?:\d{{1,18}}(?:,\d{{3}})*(?:\.\d*)?{EXPONENT}"
    rf"|\.\d{{1,18}}{EXPONENT}|nan|inf(?:inity)?)"
)
PAIR = re.compile(rf"([\w/.-]{{1,60}})=({NUMBER})", re.ASCII | re.IGNORECASE)
MAX_STEP = 2_000_000_000
MAX_STEP_S = 1e6

FLAGS = re.ASCII | re.IGNORECASE
RATE = rf"(?P<rate>{NUMBER}|\?)\s?(?P<unit>s/it|it/s)(?P<rest>[^\]]*)"
BAR = re.compile(
    rf"\d{{1,3}}%\|[^|]{{0,300}}\|\s{{0,4}}(?P<n>\d{{1,12}})/(?P<total>\d{{1,12}})\s{{0,4}}"
    rf"\[(?P<clock>[\d:]{{1,20}})<[^,\]]{{0,40}},\s{{0,4}}{RATE}",
    FLAGS,
)
OPEN_BAR = re.compile(
    rf"(?P<n>\d{{1,12}})it\s{{0,4}}\[(?P<clock>[\d:]{{1,20}}),\s{{0,4}}{RATE}", FLAGS
)
NAME = "Optimum-Neuron"
DICTIONARY = re.compile(r"\{\s{0,4}['\"][^{}]{1,8000}\}")
ITEM = re.compile(rf"['\"]([\w/ .-]{{1,60}})['\"]\s{{0,4}}:\s{{0,4}}['\"]?({NUMBER})['\"]?", FLAGS)
STEPS = ("step", "global_step", "train/global_step")
LOSSES = ("loss", "train/loss")
TOKEN_RATES = ("train/tokens_per_sec", "tokens_per_sec", "train_tokens_per_second")
STEP_TIMES = ("train/step_time", "step_time", "train_step_runtime")
SEQUENCE_RATES = ("train_step_samples_per_second", "samples_per_second")
MAX_SOURCES = 10_000
TRAINING = (*LOSSES, *TOKEN_RATES, *STEP_TIMES)
LIGHTNING_NAME = "NxDT"
LIGHTNING_LOSSES = ("reduced_train_loss", "train_loss", "train_loss_step", "loss")
NORMS = ("gradient_norm", "grad_norm")
TIMES = ("iteration_time", "train_step_timing")
EPOCH = re.compile(r"epoch (\d{1,3})$", re.ASCII)
NOT_TRAINING = ("valid", "sanity", "test", "predict", "eval")
MEGATRON_NAME = "Megatron"
MS = 1e3
ITERATION = re.compile(r"\biteration\s{1,12}(\d{1,12})\s{0,4}/", FLAGS)
ELAPSED = re.compile(rf"elapsed time per iteration \((ms|s)\):\s{{0,8}}({NUMBER})", FLAGS)
OPTIMIZER = re.compile(r"optimizer \.{3,60} ([A-Za-z0-9_.-]{1,40})", re.ASCII)
VALUE = re.compile(NUMBER, FLAGS)
MEGATRON_LOSSES = ("lm loss", "loss", "lm_loss", "train loss")
NEURONX_NAME = "neuronx-distributed"
STEP = re.compile(r"\bstep[ :=]{1,4}(\d{1,12})\b", FLAGS)
EPOCH_AND_STEP = re.compile(r"\(\s{0,4}\d{1,9},\s{0,4}(\d{1,12})\)", FLAGS)
STEP_TIME = re.compile(rf"\bstep_time[ :=]{{1,4}}({NUMBER})\s?s\b", FLAGS)
THROUGHPUT = re.compile(rf"\bthroughput[ :=]{{1,4}}({NUMBER})\s?seq/s", FLAGS)
LOSS = re.compile(rf"\b(?:step[ _])?loss[ :=]{{1,4}}({NUMBER})", FLAGS)
NEURONX_RATE = re.compile(rf"\blearning_rate[ :=]{{1,4}}({NUMBER})", FLAGS)
NORM = re.compile(rf"\bgrad[ _-]norm[ :=]{{1,4}}({NUMBER})", FLAGS)


def figure(text: str | None) -> float:
    """Return a figure; what is missing or not finite is NaN."""
    if text is None:
        return math.nan
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def positive(text: str | None, *, most: float = 1e15) -> float:
    """Return a figure that only makes sense above zero; NaN where it does not."""
    value = figure(text)
    return value if 0 < value <= most else math.nan


def step_number(text: str | None) -> int | None:
    """Return the number of a step, which may be written as 29.0; None where it is none."""
    value = figure(text)
    if not 0 <= value <= MAX_STEP or value != int(value):
        return None
    return int(value)


def step_seconds(text: str | None) -> float:
    """Return how long a step took; NaN where that cannot be."""
    return positive(text, most=MAX_STEP_S)


def clock_seconds(text: str) -> float:
    """Return what a progress bar's clock says: 12:34, or 1:02:03."""
    parts = text.split(":")
    if not 1 < len(parts) <= 3 or not all(part.isdecimal() and len(part) < 8 for part in parts):
        return math.nan
    total = 0
    for part in parts:
        total = 60 * total + int(part)
    return float(total)


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """One state of a progress bar; ``total`` is None where the bar does not know its end."""

    label: str
    n: int
    total: int | None
    elapsed_s: float
    rate_s: float
    figures: dict[str, str]


def bar_of(text: str) -> ProgressBar | None:
    """Return the last progress bar on a line, None where there is none."""
    match = next(iter(reversed([*BAR.finditer(text)])), None) or OPEN_BAR.search(text)
    if match is None:
        return None
    n = step_number(match["n"])
    if n is None:
        return None
    total = match.groupdict().get("total")
    return ProgressBar(
        label=text[: match.start()].strip(" \t:").lower()[:80],
        n=n,
        total=int(total) if total else None,
        elapsed_s=clock_seconds(match["clock"]),
        rate_s=_seconds_each(match["rate"], match["unit"]),
        figures={name.lower(): value for name, value in PAIR.findall(match["rest"])},
    )


def _seconds_each(rate: str, unit: str) -> float:
    value = positive(None if rate == "?" else rate)
    if math.isnan(value):
        return math.nan
    return value if unit.lower() == "s/it" else 1.0 / value


class HuggingFace:
    """Reader of dictionaries, and of the bar that tells which step they are about.

    A dictionary without a step belongs to the training bar's newest count; a log without bars
    has its dictionaries counted, ``every`` steps each. The training bar is the first one without
    words before it; evaluations have bars of other lengths.
    """

    def __init__(self, *, every: int = 1) -> None:
        self.totals = TrainingTotals()
        self.n_counted = 0
        self._counts: dict[str, int] = {}
        self._every = every
        self._length: int | None = None
        self._at: tuple[int, float, float] | None = None

    def read(self, entry: LogLine) -> StepRecord | TrainingTotals | bool:
        """Read one line: a step, the end's totals, or whether it was understood at all."""
        has_bar = self._follow(entry.text)
        match = DICTIONARY.search(entry.text)
        figures = dict(_items(match[0])) if match else {}
        if "train_runtime" in figures or any(name.startswith("summary/") for name in figures):
            return _totals(figures)
        if not any(name in figures for name in TRAINING):
            return has_bar or any(name.startswith("eval") for name in figures)
        return self._said(entry, figures)

    def _follow(self, text: str) -> bool:
        """Keep up with the training bar; return whether this line moved it."""
        bar = bar_of(text)
        if bar is None or bar.label or bar.total is None:
            return False
        self._length = self._length or bar.total
        if bar.total == self._length:
            self._at = (bar.n, bar.elapsed_s, bar.rate_s)
        return True

    def _said(self, entry: LogLine, figures: Mapping[str, str]) -> StepRecord:
        step = step_number(_first(figures, STEPS))
        n, elapsed_s, rate_s = self._at or (None, math.nan, math.nan)
        if step is None and n is None:
            n = self._counted(entry.source, has_loss=any(name in figures for name in LOSSES))
        return StepRecord(
            step if step is not None else n or 0,
            at_s=entry.at_s,
            step_s=step_seconds(_first(figures, STEP_TIMES)),
            seq_per_s=positive(_first(figures, SEQUENCE_RATES)),
            tokens_per_s=positive(_first(figures, TOKEN_RATES)),
            loss=figure(_first(figures, LOSSES)),
            grad_norm=figure(figures.get("grad_norm")),
            learning_rate=figure(figures.get("learning_rate")),
            elapsed_s=elapsed_s,
            rate_s=rate_s,
        )

    def _counted(self, source: str, *, has_loss: bool) -> int:
        """Count a rank's dictionaries; of two for one step, the one with the loss counts."""
        so_far = self._counts.get(source, 0)
        count = so_far + (has_loss or not so_far)
        if source in self._counts or len(self._counts) < MAX_SOURCES:
            self._counts[source] = count
        self.n_counted = max(self.n_counted, count)
        return count * self._every


def _items(text: str) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in ITEM.findall(text)]


def _first(figures: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((figures[name] for name in names if name in figures), None)


def _totals(figures: Mapping[str, str]) -> TrainingTotals:
    """Return what the end of a run sums up."""
    runtime_s, steps_per_s = (
        positive(figures.get("train_runtime")),
        positive(figures.get("train_steps_per_second")),
    )
    return TrainingTotals(
        runtime_s=runtime_s,
        n_steps=positive(figures.get("summary/total_steps")),
        n_tokens=positive(figures.get("summary/total_tokens_processed")),
        global_batch=positive(figures.get("train_samples_per_second")) / steps_per_s,
    )


class Lightning:
    """Reader of bars that carry figures.

    Large figures behind a bar are rounded (``1.23e+5``). A step's number is then the bar's own
    count, at the distance from it that exact ones had.
    """

    def __init__(self) -> None:
        self._ahead = 0

    def read(self, entry: LogLine) -> StepRecord | None:
        """Read one line; None where it has no bar with figures of training."""
        bar = bar_of(entry.text)
        if bar is None or bar.label.startswith(NOT_TRAINING) or not _is_training(bar.figures):
            return None
        figures = bar.figures
        return StepRecord(
            self._step(bar),
            at_s=entry.at_s,
            step_s=step_seconds(_lightning_first(figures, TIMES)),
            seq_per_s=positive(figures.get("throughput")),
            loss=figure(_lightning_first(figures, LIGHTNING_LOSSES)),
            grad_norm=figure(_lightning_first(figures, NORMS)),
            learning_rate=figure(figures.get("lr")),
            consumed=_exact(figures.get("consumed_samples")),
            elapsed_s=bar.elapsed_s,
            rate_s=bar.rate_s,
        )

    def _step(self, bar: ProgressBar) -> int:
        text = bar.figures.get("global_step", "")
        step, position = step_number(text), _position(bar)
        if step is None:
            return position
        if "e" in text.lower():
            return max(0, position + self._ahead)
        self._ahead = step - position
        return step


def _position(bar: ProgressBar) -> int:
    """Return the bar's count over all epochs: each begins anew."""
    epoch = EPOCH.search(bar.label)
    return bar.n + (int(epoch[1]) * bar.total if epoch and bar.total else 0)


def _is_training(figures: Mapping[str, str]) -> bool:
    return any(
        name in figures for name in (*LIGHTNING_LOSSES, *TIMES, "global_step", "throughput")
    )


def _lightning_first(figures: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((figures[name] for name in names if name in figures), None)


def _exact(text: str | None) -> float:
    """Return a count; one that is rounded is no count."""
    return math.nan if text is None or "e" in text.lower() else positive(text)


def read_megatron(entry: LogLine) -> StepRecord | None:
    """Read one line; None where it is not whole.

    The time is the mean over the iterations since the last line. Throughput is figures in FLOP/s
    per device, which is no count of tokens, and left alone.
    """
    number, elapsed = ITERATION.search(entry.text), ELAPSED.search(entry.text)
    step = step_number(number[1]) if number else None
    if step is None or elapsed is None:
        return None
    elapsed_in_unit = positive(elapsed[2])
    step_s = elapsed_in_unit / MS if elapsed[1].lower() == "ms" else elapsed_in_unit
    fields = fields_of(entry.text)
    loss = next((fields[name] for name in MEGATRON_LOSSES if name in fields), None)
    return StepRecord(
        step,
        at_s=entry.at_s,
        step_s=step_s if step_s <= MAX_STEP_S else float("nan"),
        loss=figure(loss),
        grad_norm=figure(fields.get("grad norm")),
        learning_rate=figure(fields.get("learning rate")),
        global_batch=positive(fields.get("global batch size")),
        consumed=positive(fields.get("consumed samples")),
    )


def optimizer_of(text: str) -> str:
    """Return the optimizer that a line of Megatron's printed arguments names; empty: none."""
    found = OPTIMIZER.fullmatch(text.strip())
    return found[1] if found else ""


def fields_of(text: str) -> dict[str, str]:
    """Return the figures between the bars of a line, by name."""
    parts = (part.partition(":") for part in text.split("|"))
    named = ((name.strip().lower(), value.strip()) for name, _, value in parts)
    return {name: value for name, value in named if VALUE.fullmatch(value)}


def read_neuronx(entry: LogLine) -> StepRecord | None:
    """Read one line; None where it is not whole."""
    text = entry.text
    number = EPOCH_AND_STEP.search(text) if "step_loss" in text else STEP.search(text)
    step = step_number(number[1]) if number else None
    throughput = positive(_found(THROUGHPUT, text))
    step_s = step_seconds(_found(STEP_TIME, text))
    if step is None or (math.isnan(throughput) and math.isnan(step_s)):
        return None
    return StepRecord(
        step,
        at_s=entry.at_s,
        step_s=step_s,
        seq_per_s=throughput,
        loss=figure(_found(LOSS, text)),
        grad_norm=figure(_found(NORM, text)),
        learning_rate=figure(_found(NEURONX_RATE, text)),
    )


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None
