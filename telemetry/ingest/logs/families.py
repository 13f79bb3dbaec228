"""Readers of lines with steps, by the families of families.toml."""

import math
import re
import string
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from telemetry.errors import whole_number
from telemetry.ingest.logs.records import LogLine, StepRecord, TrainingTotals

OPTIMUM, NXDT, LIGHTNING = "Optimum-Neuron", "NxDT", "Lightning"
# Progress bars that nothing else explains.
PROGRESS = "progress"

EXPONENT = r"(?:[eE][-+]?\d{1,4})?"
NUMBER = (
    rf"[-+]?(?:\d{{1,18}}(?:,\d{{3}})*(?:\.\d*)?{EXPONENT}"
    rf"|\.\d{{1,18}}{EXPONENT}|(?i:nan|inf(?:inity)?))"
)
SEPARATOR = r"['\"]?[ \t:=]{1,16}['\"\[]?"
# A name behind one of these is a part of a longer one: loss of eval/loss or nll_loss.
PARTS = frozenset("/.-_" + string.ascii_letters + string.digits)
MAX_STEP = 2_000_000_000
MAX_STEP_S = 1e6


class Row:
    """A block of families.toml: a kind of line, and where its figures are."""

    def __init__(
        self,
        family: str,
        has: Sequence[str] = (),
        needs: Sequence[str] = (),
        *,
        continues: bool = False,
        bar: bool = False,
        **names: str,
    ) -> None:
        self.family = family
        self.has = has
        self.continues = continues
        self.bar = bar
        self._needs = needs
        self._patterns = {}
        for field, text in names.items():
            whole = text.replace(" #", f"{SEPARATOR}({NUMBER})").replace("#", f"({NUMBER})")
            self._patterns[field] = re.compile(whole, re.ASCII)

    def figures(self, text: str) -> dict[str, str]:
        """Return the figures of a line by field; empty if it is of another kind or not whole."""
        if not all(map(text.__contains__, self.has)):
            return {}
        found = {}
        for name, pattern in self._patterns.items():
            for match in pattern.finditer(text):
                if text[match.start() - 1 : match.start()] not in PARTS:
                    found[name] = match[1]
                    break
        return found if not self._needs or any(name in found for name in self._needs) else {}


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LINES, (BARS,), (TRAINER,), (TOTALS,) = (
    [Row(**block) for block in TABLE[kind]] for kind in ("line", "bar", "dictionary", "totals")
)
# Of families with as many steps, the first is the run: a trainer rather than its engine.
FAMILIES = (
    OPTIMUM,
    *dict.fromkeys(each.family for each in LINES),
    NXDT,
    LIGHTNING,
    PROGRESS,
)
# Each line that is read has one of these.
MARKS = (*(each.has[0] for each in LINES), "s/it", "it/s", "{")

RATE = rf"(?P<rate>{NUMBER}|\?)\s?(?P<unit>s/it|it/s)(?P<rest>[^\]]*)"
BAR = re.compile(
    rf"\d{{1,3}}%\|[^|]{{0,300}}\|\s{{0,4}}(?P<n>\d{{1,12}})/(?P<total>\d{{1,12}})\s{{0,4}}"
    rf"\[(?P<clock>[\d:]{{1,20}})<[^,\]]{{0,40}},\s{{0,4}}{RATE}",
    re.ASCII,
)
OPEN_BAR = re.compile(
    rf"(?P<n>\d{{1,12}})it\s{{0,4}}\[(?P<clock>[\d:]{{1,20}}),\s{{0,4}}{RATE}", re.ASCII
)
# Lightning's bar by Rich: Epoch 0/9 ━━━━╸━━━ 100/500 0:00:50 • 0:03:20 2.00it/s loss: 2.5
RICH_BAR = re.compile(
    rf"(?:/-?\d{{1,9}})?[ \t]{{1,4}}[━╸╺ -]{{1,300}}(?P<n>\d{{1,12}})/(?P<total>\d{{1,12}}|--)"
    rf"[ \t]{{1,8}}(?P<clock>[\d:]{{1,20}}) • [\d:-]{{1,20}}[ \t]{{1,8}}{RATE}",
    re.ASCII,
)
DICTIONARY = re.compile(r"\{\s{0,4}['\"][^{}]{1,8000}\}")
NUMBERED = re.compile(r"\b(?:step|iter|iteration)[ :=]{1,3}(\d{1,12})\b", re.ASCII | re.IGNORECASE)
EPOCH = re.compile(r"epoch +(\d{1,3})$", re.ASCII)
LETTER = re.compile(r"(\d{1,6})([dhms])", re.ASCII)
LETTERED = re.compile(r"(?:\d{1,6}[dhms] ?){1,4}", re.ASCII)
SECONDS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
NOT_TRAINING = ("valid", "sanity", "test", "predict", "eval")
FIELDS = {each.name for each in fields(StepRecord)} - {"step", "at_s"}
TRAINING = {"loss", "step", "step_s", "seq_per_s"}
MAX_SOURCES = 10_000


def figure(text: str | None) -> float:
    """Parse a figure; NaN if missing or not finite."""
    if text is None:
        return math.nan
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else math.nan


def positive(text: str | None, *, most: float = 1e15) -> float:
    value = figure(text)
    return value if 0 < value <= most else math.nan


def step_number(text: str | None) -> int | None:
    """Parse the number of a step, which may be written as 29.0; None if it is invalid."""
    value = figure(text)
    if not 0 <= value <= MAX_STEP or value != int(value):
        return None
    return int(value)


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """One state of a progress bar; ``total`` is None if the bar has no end."""

    label: str
    n: int
    total: int | None
    elapsed_s: float
    rate_s: float
    rest: str

    @property
    def position(self) -> int:
        """Its count since the beginning; Lightning's bar begins again with each epoch."""
        epoch = EPOCH.search(self.label)
        return self.n + (int(epoch[1]) * self.total if epoch and self.total else 0)


def bar_of(text: str) -> ProgressBar | None:
    """Return the last progress bar on a line."""
    match = next(iter(reversed([*BAR.finditer(text)])), None) or OPEN_BAR.search(text)
    if match is None and "•" in text:
        match = RICH_BAR.search(text)
    if match is None or (n := step_number(match["n"])) is None:
        return None
    total = match.groupdict().get("total")
    rate = positive(None if match["rate"] == "?" else match["rate"])
    return ProgressBar(
        label=text[: match.start()].strip(" \t:").lower()[:80],
        n=n,
        total=whole_number(total or "", most=MAX_STEP),
        elapsed_s=clock_seconds(match["clock"]),
        rate_s=rate if match["unit"].lower() == "s/it" else 1.0 / rate,
        rest=match["rest"],
    )


def clock_seconds(text: str) -> float:
    """Parse a progress bar's clock: 12:34, 1:02:03, or 1h 2m 3s."""
    if LETTERED.fullmatch(text):
        return sum(float(n) * SECONDS[unit] for n, unit in LETTER.findall(text))
    parts = text.split(":")
    if not 1 < len(parts) <= 3 or not all(part.isdecimal() and len(part) < 8 for part in parts):
        return math.nan
    total = 0
    for part in parts:
        total = 60 * total + int(part)
    return float(total)


# Units other than those of StepRecord: the field, and the function of its text.
UNITS: Mapping[str, tuple[str, Callable[[str], float]]] = {
    "step_ns": ("step_s", lambda text: positive(text) / 1e9),
    "step_ms": ("step_s", lambda text: positive(text) / 1e3),
    "steps_per_s": ("step_s", lambda text: 1.0 / positive(text)),
    "elapsed_h": ("elapsed_s", lambda text: positive(text) * 3_600.0),
    "elapsed_clock": ("elapsed_s", clock_seconds),
} | {name: (name, figure) for name in ("loss", "grad_norm", "learning_rate")}


def record_of(
    figures: Mapping[str, str], step: int, at_s: float, *, clock: ProgressBar | None = None
) -> StepRecord:
    """Convert figures to a record in its units; a bar adds its clock."""
    found = {} if clock is None else {"elapsed_s": clock.elapsed_s, "rate_s": clock.rate_s}
    for name, text in figures.items():
        field, convert = UNITS.get(name, (name, positive))
        # A bar rounds large counts: 1.02e+8.
        if field not in FIELDS or (field == "consumed" and "e" in text.lower()):
            continue
        value = convert(text)
        if math.isfinite(value) and (field != "step_s" or value <= MAX_STEP_S):
            found[field] = value
    if "iterations" in figures and "step_s" in found:
        found["step_s"] *= positive(figures["iterations"]) // step if step else math.nan
    return StepRecord(step, at_s=at_s, **found)


class StepReader:
    """Reads the lines of all families; knows the step of lines that do not number it.

    A line without a step continues the newest step of its family and source. A dictionary of
    Hugging Face's trainer belongs to the newest count of the training bar, which is the first bar
    without a label; in a log without bars they are counted, ``every`` steps each.
    """

    def __init__(self, *, every: int = 1) -> None:
        self.totals = TrainingTotals()
        self.n_counted = 0
        self.longest = 0
        self._every = every
        self._newest: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}
        self._training: ProgressBar | None = None
        self._ahead = 0

    def read(self, entry: LogLine) -> tuple[str, StepRecord | None]:
        """Return the kind of a line, empty if it is not understood, and its step."""
        for row in LINES:
            if figures := row.figures(entry.text):
                key = row.family, entry.source
                step = step_number(figures.get("step"))
                if step is None and row.continues and "step" not in figures:
                    step = self._newest.get(key)
                if step is None:
                    continue
                if "epoch_steps" in figures:
                    earlier = (step_number(figures.get("epoch")) or 1) - 1
                    step += earlier * (step_number(figures["epoch_steps"]) or 0)
                if key in self._newest or len(self._newest) < MAX_SOURCES:
                    self._newest[key] = step
                clock = bar_of(entry.text) if row.bar else None
                return row.family, record_of(figures, step, entry.at_s, clock=clock)
        bar = bar_of(entry.text)
        if bar and not bar.label.startswith(NOT_TRAINING):
            figures = BARS.figures(bar.rest)
            if "consumed" in figures or "reduced_train_loss" in bar.rest:
                return NXDT, self._of_bar(figures, bar, entry.at_s)
            if (EPOCH.search(bar.label) and bar.n) or "v_num=" in bar.rest:
                return LIGHTNING, self._of_bar(figures, bar, entry.at_s)
            if not TRAINING.isdisjoint(figures):
                return PROGRESS, self._of_bar(figures, bar, entry.at_s)
        return self._of_trainer(entry, bar)

    def _of_bar(self, figures: Mapping[str, str], bar: ProgressBar, at_s: float) -> StepRecord:
        text = figures.get("step", "")
        step = step_number(text or None)
        if step is None:
            return record_of(figures, bar.position, at_s, clock=bar)
        if "e" in text.lower():
            # A large number is rounded: the bar's count and the usual difference have it.
            step = max(0, bar.position + self._ahead)
        self._ahead = step - bar.position
        # A bar may count the batches of accumulated gradients, several for each step.
        rate_s = bar.rate_s * max(1, round(bar.position / (step + 1)))
        return record_of(figures, step, at_s, clock=replace(bar, rate_s=rate_s))

    def _of_trainer(
        self, entry: LogLine, bar: ProgressBar | None
    ) -> tuple[str, StepRecord | None]:
        is_bar = bar is not None and not bar.label and bar.total is not None
        if bar is not None and is_bar:
            first = self._training or bar
            self._training = bar if bar.total == first.total else first
        match = DICTIONARY.search(entry.text)
        text = match[0] if match else ""
        if totals := TOTALS.figures(text):
            known = {name: positive(text) for name, text in totals.items() if name != "summary"}
            batch = known.pop("seq_per_s", math.nan) / known.pop("steps_per_s", math.nan)
            known = {name: value for name, value in known.items() if not math.isnan(value)}
            if not math.isnan(batch):
                known["global_batch"] = batch
            self.totals = replace(self.totals, **known)
            return OPTIMUM, None
        if figures := TRAINER.figures(text):
            before = NUMBERED.search(entry.text, 0, match.start()) if match else None
            step = step_number(figures.get("step") or (before[1] if before else None))
            if step is None:
                bar = self._training
                step = bar.n if bar else self._count(entry.source, has_loss="loss" in figures)
            return OPTIMUM, record_of(figures, step, entry.at_s, clock=self._training)
        if bar is None or not is_bar:
            return (PROGRESS if re.search(r"['\"]eval", text) else ""), None
        self.longest = max(self.longest, bar.total or 0)
        if not bar.n or bar.total != self.longest:
            return PROGRESS, None
        return PROGRESS, record_of({}, bar.n, entry.at_s, clock=bar)

    def _count(self, source: str, *, has_loss: bool) -> int:
        """Count a rank's dictionaries; of two for one step, the one with the loss counts."""
        so_far = self._counts.get(source, 0)
        count = so_far + (has_loss or not so_far)
        if source in self._counts or len(self._counts) < MAX_SOURCES:
            self._counts[source] = count
        self.n_counted = max(self.n_counted, count)
        return count * self._every
