"""Readers of lines with steps, by the families of families.toml."""

import math
import re
import string
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from importers.logs.records import LogLine, StepRecord, TrainingTotals
from telemetry.errors import whole_number

OPTIMUM, NXDT, LIGHTNING = "Optimum-Neuron", "NxDT", "Lightning"
# Progress bars that nothing else explains.
PROGRESS = "progress"

EXPONENT = r"(?:[eE][-+]?\d{1,4})?"
NUMBER = (
    rf"[-+]?(?:\d{{1,18}}(?:,\d{{3}})*(?:\.\d*)?{EXPONENT}"
    rf"|\.\d{{1,18}}{EXPONENT}|(?i:nan|inf(?:inity)?))"
    r"(?:[KMBGT](?![A-Za-z])|[kMG](?=it\b))?"
)
# Libraries print their own numbers: np.float64(2.5), tensor(2.5), Array(2.5, dtype=float32).
WRAPPED = r"(?:(?:np\.|torch\.|jnp\.)?(?:float\d\d|int\d\d|tensor|Array)\()?"
# Thousand, million, …, as nanotron and tqdm (1.02kit) write their figures.
SUFFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
LETTERS = "".join(SUFFIXES)
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
        lacks: Sequence[str] = (),
        counted: bool = False,
        **names: str,
    ) -> None:
        self.family = family
        self.has = has
        self.continues = continues
        self.bar = bar
        self.counted = counted
        self._lacks = lacks
        self._needs = needs
        self._patterns = {}
        for field, text in names.items():
            whole = text.replace(" #", f"{SEPARATOR}{WRAPPED}({NUMBER})").replace(
                "#", f"({NUMBER})"
            )
            self._patterns[field] = re.compile(whole, re.ASCII)

    def figures(self, text: str) -> dict[str, str]:
        """Return the figures of a line by field; empty if it is of another kind or not whole."""
        if not all(map(text.__contains__, self.has)) or any(map(text.__contains__, self._lacks)):
            return {}
        texts = {}
        for name, pattern in self._patterns.items():
            for match in pattern.finditer(text):
                if text[match.start() - 1 : match.start()] not in PARTS:
                    # Of alternatives, one has the figure.
                    texts[name] = match[match.lastindex or 1]
                    break
        return texts if not self._needs or any(name in texts for name in self._needs) else {}


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LINES, (BARS,), (TRAINER,), (TOTALS,), (ANNOUNCED,) = (
    [Row(**block) for block in TABLE[kind]]
    for kind in ("line", "bar", "dictionary", "totals", "announced")
)
# Of families with as many steps, the first is the run: a trainer rather than its engine.
FAMILIES = (OPTIMUM, *dict.fromkeys(each.family for each in LINES), NXDT, LIGHTNING, PROGRESS)
# Each line that is read has one of these.
MARKS = (*(each.has[0] for each in LINES), "%|", "s/it", "it/s", "{", "train batch size")

UNIT = r"it(?:er)?s?|batch(?:es)?|steps?|ba"
RATE = rf"(?P<rate>{NUMBER}|\?)\s?(?P<unit>s/(?:{UNIT})|(?:{UNIT})/s)(?P<rest>[^\]]*)"
# NeMo's bar leaves the rate out.
BAR = re.compile(
    rf"\d{{1,3}}%\|[^|]{{0,300}}\|\s{{0,4}}(?P<n>\d{{1,12}})/(?P<total>\d{{1,12}})\s{{0,4}}"
    rf"\[(?P<clock>[\d:]{{1,20}})<[^,\]]{{0,40}},\s{{0,4}}"
    rf"(?:{RATE}|(?P<figures>[A-Za-z_][^\]]*))",
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
NOT_TRAINING = re.compile(
    r"\b(?:valid(?:at\w*)?|sanity checking|test(?:ing)?|predict\w*|eval\w*)\b(?: dataloader)?"
    r"[ \d:]*$"
)
DIGITS = re.compile(r"\d+")
OPENING_CHARS, MAX_OPENINGS, MAX_LABELS = 200, 500, 100
# Where a record says that a figure was logged, and that it was not finite.
NOT_FINITE = {"loss": "loss_kind", "grad_norm": "grad_norm_kind"}
FIELDS = {each.name for each in fields(StepRecord)} - {"step", "at_s"}
TRAINING = {"loss", "step", "step_s", "seq_per_s"}
MAX_SOURCES = 10_000


def figure(text: str | None) -> float:
    """Parse a figure; NaN if missing or not finite."""
    if text is None:
        return math.nan
    value = float(text.rstrip(LETTERS).replace(",", ""))
    if scale := SUFFIXES.get(text[-1:]):
        # 1.13 thousand is 1130, not 1129.9999999999998.
        value = round(value * scale, 6)
    return value if math.isfinite(value) else math.nan


def kind_of(text: str) -> float:
    """Return 0.0 for a finite figure, 1.0 for NaN, 2.0 and 3.0 for both infinities."""
    value = float(text.rstrip(LETTERS).replace(",", ""))
    if math.isfinite(value):
        return 0.0
    return 1.0 if math.isnan(value) else 2.0 if value > 0 else 3.0


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
    opening: str = ""

    @property
    def position(self) -> int:
        """Its count since the beginning; Lightning's bar begins again with each epoch."""
        epoch = EPOCH.search(self.label)
        return self.n + (int(epoch[1]) * self.total if epoch and self.total else 0)


def bar_of(text: str) -> ProgressBar | None:
    match = next(iter(reversed([*BAR.finditer(text)])), None) or OPEN_BAR.search(text)
    if match is None and "•" in text:
        match = RICH_BAR.search(text)
    if match is None or (n := step_number(match["n"])) is None:
        return None
    groups = match.groupdict()
    total, rest = groups.get("total"), groups.get("figures") or match["rest"] or ""
    rate = positive(None if match["rate"] in (None, "?") else match["rate"])
    return ProgressBar(
        label=text[: match.start()].strip(" \t:").lower()[:80],
        n=n,
        total=whole_number(total or "", most=MAX_STEP),
        elapsed_s=clock_seconds(match["clock"]),
        rate_s=rate if (match["unit"] or "").startswith("s/") else 1.0 / rate,
        rest=rest,
        opening=DIGITS.sub("0", text[: match.start()].strip(" \t"))[:OPENING_CHARS],
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
    "iteration_ms": ("iteration_s", lambda text: positive(text) / 1e3),
    "own_ms": ("own_s", lambda text: positive(text) / 1e3),
    "elapsed_ms": ("elapsed_s", lambda text: positive(text) / 1e3),
    "steps_per_s": ("step_s", lambda text: 1.0 / positive(text)),
    "elapsed_h": ("elapsed_s", lambda text: positive(text) * 3_600.0),
    "elapsed_clock": ("elapsed_s", clock_seconds),
} | {name: (name, figure) for name in ("loss", "grad_norm", "learning_rate")}


def record_of(
    figures: Mapping[str, str], step: int, entry: LogLine, *, clock: ProgressBar | None = None
) -> StepRecord:
    """Convert figures to a record in its units; a bar adds its clock."""
    values: dict[str, float] = {"elapsed_s": entry.clock_s} if math.isnan(entry.at_s) else {}
    if clock is not None:
        values |= {"elapsed_s": clock.elapsed_s, "rate_s": clock.rate_s}
    for name, text in figures.items():
        field, convert = UNITS.get(name, (name, positive))
        # A bar rounds large counts: 1.02e+8.
        if field not in FIELDS or (field == "consumed" and "e" in text.lower()):
            continue
        value = convert(text)
        if math.isfinite(value) and (field != "step_s" or value <= MAX_STEP_S):
            values[field] = value
        if name in NOT_FINITE:
            values[NOT_FINITE[name]] = kind_of(text)
    return StepRecord(step, at_s=entry.at_s, **values)


class StepReader:
    """Reads the lines of all families; knows the step of lines that do not number it.

    A line without a step continues the newest step of its family and source. A dictionary of
    Hugging Face's trainer belongs to the newest count of the training bar, which is the first bar
    without a label; in a log without bars they are counted, ``every`` steps each. What stands
    before a bar and also begins other lines is no label, but a prefix of a collector.
    """

    def __init__(self, *, every: int = 1) -> None:
        self.totals = TrainingTotals()
        self.n_counted = 0
        self.longest = 0
        self._every = every
        self._newest: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}
        self._epochs: dict[str, Epochs] = {}
        self._training: ProgressBar | None = None
        self._ahead = 0
        self._openings: set[str] = set()
        self._prefixes: set[str] = set()
        self._labelled: dict[str, ProgressBar] = {}

    def read(self, entry: LogLine) -> tuple[str, StepRecord | None]:
        """Return the kind of a line, empty if it is not understood, and its step."""
        for row in LINES:
            if (figures := row.figures(entry.text)) and (
                step := self._step_of(row, figures, entry)
            ) is not None:
                clock = bar_of(entry.text) if row.bar else None
                return row.family, record_of(figures, step, entry, clock=clock)
        bar = self._unlabelled(bar_of(entry.text), entry.text)
        if bar and not NOT_TRAINING.search(bar.label):
            figures = BARS.figures(bar.rest)
            if "consumed" in figures or "reduced_train_loss" in bar.rest:
                return NXDT, self._of_bar(figures, bar, entry)
            if (EPOCH.search(bar.label) and bar.n) or "v_num=" in bar.rest:
                return LIGHTNING, self._of_bar(figures, bar, entry)
            if not TRAINING.isdisjoint(figures):
                return PROGRESS, self._of_bar(figures, bar, entry)
        return self._of_trainer(entry, bar)

    def _step_of(self, row: Row, figures: Mapping[str, str], entry: LogLine) -> int | None:
        """Return the number of the step of a line, counted over all epochs; None if unknown."""
        key = row.family, entry.source
        step = step_number(figures.get("step"))
        if step is None and row.counted:
            return self._count(f"{row.family} {entry.source}", is_new=True)
        if step is None and row.continues and "step" not in figures:
            step = self._newest.get(key)
        if step is None:
            return None
        if "step" in figures and (epoch := step_number(figures.get("epoch"))) is not None:
            length = step_number(figures.get("epoch_steps"))
            step = self._epochs.setdefault(row.family, Epochs()).place(epoch, step, length)
        if key in self._newest or len(self._newest) < MAX_SOURCES:
            self._newest[key] = step
        return step

    def _unlabelled(self, bar: ProgressBar | None, text: str) -> ProgressBar | None:
        """Take a collector's prefix off the label of a bar, once other lines show that it is."""
        if bar is None:
            opening = DIGITS.sub("0", text[:OPENING_CHARS].lstrip())
            if len(self._openings) < MAX_OPENINGS:
                self._openings.add(opening)
            for label in [each for each in self._labelled if opening.startswith(each)]:
                self._prefixes.add(label)
                before = replace(self._labelled.pop(label), label="")
                self._training = self._training or (before if before.total else None)
            return None
        if not bar.opening:
            return bar
        if bar.opening not in self._prefixes:
            if any(each.startswith(bar.opening) for each in self._openings):
                self._prefixes.add(bar.opening)
            else:
                if len(self._labelled) < MAX_LABELS or bar.opening in self._labelled:
                    self._labelled[bar.opening] = bar
                return bar
        return replace(bar, label="")

    def _of_bar(self, figures: Mapping[str, str], bar: ProgressBar, entry: LogLine) -> StepRecord:
        text = figures.get("step", "")
        step = step_number(text or None)
        if step is None:
            return record_of(figures, bar.position, entry, clock=bar)
        if "e" in text.lower():
            # A large number is rounded: the bar's count and the usual difference have it.
            step = max(0, bar.position + self._ahead)
        self._ahead = step - bar.position
        # A bar may count the batches of accumulated gradients, several for each step.
        rate_s = bar.rate_s * max(1, round(bar.position / (step + 1)))
        return record_of(figures, step, entry, clock=replace(bar, rate_s=rate_s))

    def _of_trainer(
        self, entry: LogLine, bar: ProgressBar | None
    ) -> tuple[str, StepRecord | None]:
        is_bar = bar is not None and not bar.label and bar.total is not None
        if bar is not None and is_bar:
            first = self._training or bar
            self._training = bar if bar.total == first.total else first
        match = DICTIONARY.search(entry.text)
        text = match[0] if match else ""
        if totals := TOTALS.figures(text) or ANNOUNCED.figures(entry.text):
            known = {name: positive(text) for name, text in totals.items() if name != "summary"}
            batch = known.pop("seq_per_s", math.nan) / known.pop("steps_per_s", math.nan)
            known = {name: value for name, value in known.items() if not math.isnan(value)}
            # What was announced is exact.
            if not math.isnan(batch) and math.isnan(self.totals.global_batch):
                known["global_batch"] = batch
            self.totals = replace(self.totals, **known)
            return OPTIMUM, None
        if figures := TRAINER.figures(text):
            before = NUMBERED.search(entry.text, 0, match.start()) if match else None
            step = step_number(figures.get("step") or (before[1] if before else None))
            if step is None:
                bar = self._training
                step = bar.n if bar else self._count(entry.source, is_new="loss" in figures)
            return OPTIMUM, record_of(figures, step, entry, clock=self._training)
        if bar is None or not is_bar:
            return (PROGRESS if re.search(r"['\"]eval", text) else ""), None
        self.longest = max(self.longest, bar.total or 0)
        if not bar.n or bar.total != self.longest:
            return PROGRESS, None
        return PROGRESS, record_of({}, bar.n, entry, clock=bar)

    def _count(self, source: str, *, is_new: bool) -> int:
        """Count a rank's dictionaries; of two for one step, the one with the loss counts."""
        so_far = self._counts.get(source, 0)
        count = so_far + (is_new or not so_far)
        if source in self._counts or len(self._counts) < MAX_SOURCES:
            self._counts[source] = count
        self.n_counted = max(self.n_counted, count)
        return count * self._every


class Epochs:
    """Numbers steps over all epochs, for families whose count may begin again in each.

    An epoch is as long as the family says, else as long as its highest step so far.
    """

    def __init__(self) -> None:
        self._base: dict[int, int] = {}
        self._highest: dict[int, int] = {}

    def place(self, epoch: int, step: int, length: int | None) -> int:
        if epoch not in self._base:
            if len(self._base) >= MAX_SOURCES:
                return step
            before = max((each for each in self._base if each < epoch), default=None)
            base = 0
            if before is None:
                base = max(0, epoch - 1) * (length or 0)
            elif step <= self._highest[before] - self._base[before]:
                base = self._base[before] + (epoch - before) * (
                    length or self._highest[before] - self._base[before]
                )
            else:
                base = self._base[before]
            self._base[epoch] = base
        placed = self._base[epoch] + step
        self._highest[epoch] = max(placed, self._highest.get(epoch, 0))
        return placed
