"""Reading a training log: each line goes to the reader of its kind."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from telemetry.compiles import FAIL, HIT, MISS, Compile
from telemetry.ingest.logs.records import (
    HardwareError,
    LogLine,
    StepRecord,
    TrainingTotals,
    lines_of,
    opened,
    pieces_of,
    prefix_of,
)
from telemetry.ingest.logs.steps import LineSteps

# Every line of a log is searched for these; no reader knows a line without one of them.
ANY = re.compile(
    rb"loss|step_time|s/it|it/s|NEURON_|NCC_WRAPPER|Compiler status |"
    rb"elapsed time per iteration|'train|\"train|summary/|optimizer \.\.\."
)
# A line with one of these is of a known kind; if it cannot be read, it is damaged.
KNOWN = (
    b"step_time",
    b"step_loss",
    b"elapsed time per iteration",
    b"NEURON_CC_WRAPPER||",
    b"NEURON_HW_ERR=",
    b"{'loss'",
    b'{"loss"',
)
# Families of lines with steps. Tables are imported in the same way as logs.
NEURONX, MEGATRON, NXDT, OPTIMUM = "neuronx-distributed", "Megatron", "NxDT", "Optimum-Neuron"
TABLE = "table"
FAMILIES = (NEURONX, MEGATRON, NXDT, OPTIMUM, TABLE)
COMPILE_CACHE, HARDWARE_ERRORS = "compile cache", "hardware errors"
MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARS = 120
MAX_COMPILES = 200_000
MAX_ERRORS = 1_000


@dataclass(frozen=True, slots=True)
class LogContext:
    """Facts that a log may lack: the year and time zone of its lines, and how often it logs."""

    year: int = 1970
    utc_offset_s: float = 0.0
    log_every: int = 1


@dataclass(frozen=True, slots=True)
class UnreadLine:
    file: str
    number: int
    text: str


@dataclass(slots=True)
class Log:
    """A log's content; ``understood`` counts lines by kind, ``damaged`` are partly understood."""

    gathered: dict[str, LineSteps] = field(
        default_factory=lambda: {name: LineSteps() for name in FAMILIES}
    )
    compiles: list[Compile] = field(default_factory=list)
    errors: dict[HardwareError, int] = field(default_factory=dict)
    totals: TrainingTotals = field(default_factory=TrainingTotals)
    understood: Counter[str] = field(default_factory=Counter)
    optimizer: str = ""
    n_lines: int = 0
    n_other: int = 0
    n_damaged: int = 0
    n_left_out: int = 0
    n_counted: int = 0
    others: list[UnreadLine] = field(default_factory=list)
    damaged: list[UnreadLine] = field(default_factory=list)

    @property
    def family(self) -> str:
        """The family of lines with most steps; empty without steps."""
        best = max(FAMILIES, key=lambda name: len(self.gathered[name]))
        return best if len(self.gathered[best]) else ""

    @property
    def n_guessed(self) -> int:
        """How many steps were numbered by counting lines, because the log has no numbers."""
        return self.n_counted if self.family == OPTIMUM else 0

    @property
    def steps(self) -> LineSteps:
        """The steps of ``family``."""
        return self.gathered[self.family or FAMILIES[0]]


def read_logs(paths: Sequence[Path], about: LogContext) -> Log:
    reading = LogReader(about)
    for path in paths:
        with opened(path) as file:
            reading.read(lines_of(file), file=path.name)
    return reading.finish()


class LogReader:
    """Reads logs line by line; memory grows with steps and graphs, not with lines."""

    def __init__(self, about: LogContext) -> None:
        self.log = Log()
        self._about = about
        self._lightning = Lightning()
        self._trainer = HuggingFace(every=about.log_every)
        self._compiler = Compiler()

    def read(self, lines: Iterable[tuple[int, bytes, bool]], *, file: str = "") -> None:
        """Read the lines of one file: number, bytes and whether they are whole."""
        for number, line, is_whole in lines:
            self.log.n_lines += 1
            is_read = False
            if ANY.search(line):
                # A progress bar rewrites its line: each state is read.
                for piece in pieces_of(line):
                    start = prefix_of(
                        piece, year=self._about.year, utc_offset_s=self._about.utc_offset_s
                    )
                    text, source = piece[start.end :], file + start.source
                    if kind := self._kind(LogLine(number, text, start.at_s, source, start.rank)):
                        self.log.understood[kind] += 1
                        is_read = True
            if not is_whole or (not is_read and any(mark in line for mark in KNOWN)):
                self.log.n_damaged += 1
                _add_example(self.log.damaged, number, line, file)
            elif not is_read and not line.isspace():
                self.log.n_other += 1
                _add_example(self.log.others, number, line, file)

    def finish(self) -> Log:
        for event in self._compiler.rest():
            self._keep(event)
        self.log.totals = self._trainer.totals
        self.log.n_counted = self._trainer.n_counted
        return self.log

    def _kind(self, entry: LogLine) -> str:
        """Read an entry and return its kind; empty if it is not understood."""
        text = entry.text
        if "NEURON_HW_ERR=" in text:
            error = read_kernel(entry)
            if error and (error in self.log.errors or len(self.log.errors) < MAX_ERRORS):
                self.log.errors[error] = self.log.errors.get(error, 0) + 1
            elif error:
                self.log.n_left_out += 1
            return HARDWARE_ERRORS if error else ""
        if "||" in text or "Compiler status " in text:
            ended = self._compiler.read(entry)
            for event in ended or ():
                self._keep(event)
            return COMPILE_CACHE if ended is not None else ""
        if "elapsed time per iteration" in text:
            return self._add_step(MEGATRON, read_megatron(entry))
        if optimizer := OPTIMIZER.fullmatch(text.strip()):
            self.log.optimizer = optimizer[1]
            return "arguments"
        if "step_loss" in text or ("step_time" in text and "seq/s" in text):
            return self._add_step(NEURONX, read_neuronx(entry))
        return self._bar_or_dictionary(entry)

    def _bar_or_dictionary(self, entry: LogLine) -> str:
        if record := self._lightning.read(entry):
            return self._add_step(NXDT, record)
        parsed = self._trainer.read(entry)
        if isinstance(parsed, TrainingTotals):
            known = {
                name: value
                for name in TrainingTotals.__slots__
                if not math.isnan(value := getattr(parsed, name))
            }
            self._trainer.totals = replace(self._trainer.totals, **known)
            return OPTIMUM
        if isinstance(parsed, StepRecord):
            return self._add_step(OPTIMUM, parsed)
        return "progress" if parsed else ""

    def _add_step(self, family: str, record: StepRecord | None) -> str:
        if record is None or record.step > MAX_STEP:
            return ""
        self.log.gathered[family].add(record)
        return family

    def _keep(self, event: Compile) -> None:
        if len(self.log.compiles) < MAX_COMPILES:
            self.log.compiles.append(event)
        else:
            self.log.n_left_out += 1


def _add_example(examples: list[UnreadLine], number: int, line: bytes, file: str) -> None:
    if len(examples) < MAX_EXAMPLES:
        shown = " ".join(next(pieces_of(line[: 4 * MAX_EXAMPLE_CHARS]), "").split())
        printable = "".join(c for c in shown if c.isprintable())
        examples.append(UnreadLine(file, number, printable[:MAX_EXAMPLE_CHARS]))


# Figures and progress bars, in all families.
FLAGS = re.ASCII | re.IGNORECASE
EXPONENT = r"(?:e[-+]?\d{1,4})?"
NUMBER = (
    rf"[-+]?(?:\d{{1,18}}(?:,\d{{3}})*(?:\.\d*)?{EXPONENT}"
    rf"|\.\d{{1,18}}{EXPONENT}|nan|inf(?:inity)?)"
)
PAIR = re.compile(rf"([\w/.-]{{1,60}})=({NUMBER})", FLAGS)
MAX_STEP = 2_000_000_000
MAX_STEP_S = 1e6
RATE = rf"(?P<rate>{NUMBER}|\?)\s?(?P<unit>s/it|it/s)(?P<rest>[^\]]*)"
BAR = re.compile(
    rf"\d{{1,3}}%\|[^|]{{0,300}}\|\s{{0,4}}(?P<n>\d{{1,12}})/(?P<total>\d{{1,12}})\s{{0,4}}"
    rf"\[(?P<clock>[\d:]{{1,20}})<[^,\]]{{0,40}},\s{{0,4}}{RATE}",
    FLAGS,
)
OPEN_BAR = re.compile(
    rf"(?P<n>\d{{1,12}})it\s{{0,4}}\[(?P<clock>[\d:]{{1,20}}),\s{{0,4}}{RATE}", FLAGS
)


def figure(text: str | None) -> float:
    """Parse a figure; NaN if missing or not finite."""
    if text is None:
        return math.nan
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return math.nan
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


def step_seconds(text: str | None) -> float:
    return positive(text, most=MAX_STEP_S)


def clock_seconds(text: str) -> float:
    """Parse a progress bar's clock: 12:34, or 1:02:03."""
    parts = text.split(":")
    if not 1 < len(parts) <= 3 or not all(part.isdecimal() and len(part) < 8 for part in parts):
        return math.nan
    total = 0
    for part in parts:
        total = 60 * total + int(part)
    return float(total)


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """One state of a progress bar; ``total`` is None if the bar has no end."""

    label: str
    n: int
    total: int | None
    elapsed_s: float
    rate_s: float
    figures: dict[str, str]


def bar_of(text: str) -> ProgressBar | None:
    """Return the last progress bar on a line."""
    match = next(iter(reversed([*BAR.finditer(text)])), None) or OPEN_BAR.search(text)
    if match is None:
        return None
    n = step_number(match["n"])
    if n is None:
        return None
    total = match.groupdict().get("total")
    rate = positive(None if match["rate"] == "?" else match["rate"])
    return ProgressBar(
        label=text[: match.start()].strip(" \t:").lower()[:80],
        n=n,
        total=int(total) if total else None,
        elapsed_s=clock_seconds(match["clock"]),
        rate_s=rate if match["unit"].lower() == "s/it" else 1.0 / rate,
        figures={name.lower(): value for name, value in PAIR.findall(match["rest"])},
    )


def _first(figures: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((figures[name] for name in names if name in figures), None)


# Optimum-Neuron and Hugging Face's trainer.
DICTIONARY = re.compile(r"\{\s{0,4}['\"][^{}]{1,8000}\}")
ITEM = re.compile(rf"['\"]([\w/ .-]{{1,60}})['\"]\s{{0,4}}:\s{{0,4}}['\"]?({NUMBER})['\"]?", FLAGS)
STEPS = ("step", "global_step", "train/global_step")
LOSSES = ("loss", "train/loss")
TOKEN_RATES = ("train/tokens_per_sec", "tokens_per_sec", "train_tokens_per_second")
STEP_TIMES = ("train/step_time", "step_time", "train_step_runtime")
SEQUENCE_RATES = ("train_step_samples_per_second", "samples_per_second")
TRAINING = (*LOSSES, *TOKEN_RATES, *STEP_TIMES)
MAX_SOURCES = 10_000


class HuggingFace:
    """Reader of dictionaries, and of the training bar, which has their step numbers.

    A dictionary without a step belongs to the training bar's newest count. In a log without bars
    the dictionaries are counted, ``every`` steps each. The training bar is the first one without
    a label; evaluations have bars of other lengths.
    """

    def __init__(self, *, every: int = 1) -> None:
        self.totals = TrainingTotals()
        self.n_counted = 0
        self._counts: dict[str, int] = {}
        self._every = every
        self._length: int | None = None
        self._at: tuple[int, float, float] | None = None

    def read(self, entry: LogLine) -> StepRecord | TrainingTotals | bool:
        """Read one line: a step, the totals at the end, or whether it was understood at all."""
        bar = bar_of(entry.text)
        has_bar = bar is not None and not bar.label and bar.total is not None
        if bar is not None and has_bar:
            self._length = self._length or bar.total
            if bar.total == self._length:
                self._at = (bar.n, bar.elapsed_s, bar.rate_s)
        match = DICTIONARY.search(entry.text)
        items = ITEM.findall(match[0]) if match else []
        figures = {name.lower(): value for name, value in items}
        if "train_runtime" in figures or any(name.startswith("summary/") for name in figures):
            steps_per_s = positive(figures.get("train_steps_per_second"))
            return TrainingTotals(
                runtime_s=positive(figures.get("train_runtime")),
                n_steps=positive(figures.get("summary/total_steps")),
                n_tokens=positive(figures.get("summary/total_tokens_processed")),
                global_batch=positive(figures.get("train_samples_per_second")) / steps_per_s,
            )
        if not any(name in figures for name in TRAINING):
            return has_bar or any(name.startswith("eval") for name in figures)
        return self._step(entry, figures)

    def _step(self, entry: LogLine, figures: Mapping[str, str]) -> StepRecord:
        step = step_number(_first(figures, STEPS))
        n, elapsed_s, rate_s = self._at or (None, math.nan, math.nan)
        if step is None and n is None:
            n = self._count(entry.source, has_loss=any(name in figures for name in LOSSES))
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

    def _count(self, source: str, *, has_loss: bool) -> int:
        """Count a rank's dictionaries; of two for one step, the one with the loss counts."""
        so_far = self._counts.get(source, 0)
        count = so_far + (has_loss or not so_far)
        if source in self._counts or len(self._counts) < MAX_SOURCES:
            self._counts[source] = count
        self.n_counted = max(self.n_counted, count)
        return count * self._every


# NxDT, by Lightning's progress bar.
LIGHTNING_LOSSES = ("reduced_train_loss", "train_loss", "train_loss_step", "loss")
LIGHTNING_TIMES = ("iteration_time", "train_step_timing")
LIGHTNING_TRAINING = {*LIGHTNING_LOSSES, *LIGHTNING_TIMES, "global_step", "throughput"}
EPOCH = re.compile(r"epoch (\d{1,3})$", re.ASCII)
NOT_TRAINING = ("valid", "sanity", "test", "predict", "eval")


class Lightning:
    """Reader of progress bars with figures.

    A large figure behind a bar is rounded (``1.23e+5``). A step's number is then the bar's own
    count, plus the difference that exact numbers had.
    """

    def __init__(self) -> None:
        self._ahead = 0

    def read(self, entry: LogLine) -> StepRecord | None:
        """Read one line; None without a bar with figures of training."""
        bar = bar_of(entry.text)
        if bar is None or bar.label.startswith(NOT_TRAINING):
            return None
        figures = bar.figures
        if LIGHTNING_TRAINING.isdisjoint(figures):
            return None
        consumed = figures.get("consumed_samples", "")
        return StepRecord(
            self._step(bar),
            at_s=entry.at_s,
            step_s=step_seconds(_first(figures, LIGHTNING_TIMES)),
            seq_per_s=positive(figures.get("throughput")),
            loss=figure(_first(figures, LIGHTNING_LOSSES)),
            grad_norm=figure(_first(figures, ("gradient_norm", "grad_norm"))),
            learning_rate=figure(figures.get("lr")),
            consumed=math.nan if "e" in consumed.lower() else positive(consumed),
            elapsed_s=bar.elapsed_s,
            rate_s=bar.rate_s,
        )

    def _step(self, bar: ProgressBar) -> int:
        # The bar begins again with each epoch.
        epoch = EPOCH.search(bar.label)
        position = bar.n + (int(epoch[1]) * bar.total if epoch and bar.total else 0)
        text = bar.figures.get("global_step", "")
        step = step_number(text)
        if step is None:
            return position
        if "e" in text.lower():
            return max(0, position + self._ahead)
        self._ahead = step - position
        return step


MS = 1e3
ITERATION = re.compile(r"\biteration\s{1,12}(\d{1,12})\s{0,4}/", FLAGS)
ELAPSED = re.compile(rf"elapsed time per iteration \((ms|s)\):\s{{0,8}}({NUMBER})", FLAGS)
OPTIMIZER = re.compile(r"optimizer \.{3,60} ([A-Za-z0-9_.-]{1,40})", re.ASCII)
VALUE = re.compile(NUMBER, FLAGS)
MEGATRON_LOSSES = ("lm loss", "loss", "lm_loss", "train loss")


def read_megatron(entry: LogLine) -> StepRecord | None:
    """Read one line of Megatron; None if it is not whole.

    The time is the mean over the iterations since the last line. Throughput is given in FLOP/s
    per device, from which tokens do not follow, and ignored.
    """
    number, elapsed = ITERATION.search(entry.text), ELAPSED.search(entry.text)
    step = step_number(number[1]) if number else None
    if step is None or elapsed is None:
        return None
    elapsed_in_unit = positive(elapsed[2])
    step_s = elapsed_in_unit / MS if elapsed[1].lower() == "ms" else elapsed_in_unit
    parts = (part.partition(":") for part in entry.text.split("|"))
    named = ((name.strip().lower(), value.strip()) for name, _, value in parts)
    fields = {name: value for name, value in named if VALUE.fullmatch(value)}
    return StepRecord(
        step,
        at_s=entry.at_s,
        step_s=step_s if step_s <= MAX_STEP_S else math.nan,
        loss=figure(_first(fields, MEGATRON_LOSSES)),
        grad_norm=figure(fields.get("grad norm")),
        learning_rate=figure(fields.get("learning rate")),
        global_batch=positive(fields.get("global batch size")),
        consumed=positive(fields.get("consumed samples")),
    )


STEP = re.compile(r"\bstep[ :=]{1,4}(\d{1,12})\b", FLAGS)
EPOCH_AND_STEP = re.compile(r"\(\s{0,4}\d{1,9},\s{0,4}(\d{1,12})\)", FLAGS)
STEP_TIME = re.compile(rf"\bstep_time[ :=]{{1,4}}({NUMBER})\s?s\b", FLAGS)
THROUGHPUT = re.compile(rf"\bthroughput[ :=]{{1,4}}({NUMBER})\s?seq/s", FLAGS)
LOSS = re.compile(rf"\b(?:step[ _])?loss[ :=]{{1,4}}({NUMBER})", FLAGS)
LEARNING_RATE = re.compile(rf"\blearning_rate[ :=]{{1,4}}({NUMBER})", FLAGS)
NORM = re.compile(rf"\bgrad[ _-]norm[ :=]{{1,4}}({NUMBER})", FLAGS)


def read_neuronx(entry: LogLine) -> StepRecord | None:
    """Read one line of neuronx-distributed's examples; None if it is not whole."""
    text = entry.text
    step = step_number(_found(EPOCH_AND_STEP if "step_loss" in text else STEP, text))
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
        learning_rate=figure(_found(LEARNING_RATE, text)),
    )


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None


# The compiler's wrapper: graphs found in the cache, compiled, or failed.
CACHED = {"Got a cached failed neff at": FAIL, "Using a cached neff": HIT}
ENDED = {"Compilation Successfully Completed": MISS, "Compilation failed": FAIL}
PROCESS = re.compile(r"\s{0,8}(\d{1,10})\s{1,8}[A-Z]{3,10}\s{1,4}\|\|", re.ASCII)
WRAPPER = re.compile(r"\|\|N\w{2,30}\|\|", re.ASCII)
MODULE = re.compile(r"MODULE_[0-9A-Za-z_]{1,60}(?:\+[0-9A-Za-z]{1,40})?", re.ASCII)
COMPILER = re.compile(r"neuronxcc-([0-9A-Za-z.+_-]{1,60})/", re.ASCII)
COMMAND = re.compile(r"neuronx?-cc compile\s+(.*)", re.ASCII)
CACHE = re.compile(r"Compile cache path: (\S{1,500})", re.ASCII)
CACHED_AT = re.compile(r"(?: at| from) (\S{1,500}?)/?(?:neuronxcc-|MODULE_)", re.ASCII)
PATHS = re.compile(r"\s?(?:--output[ =]\S+|\S*\.hlo_module\.pb|\S*\.neff)")
MAX_FLAGS_CHARS = 500
MAX_OPEN = 10_000


@dataclass(slots=True)
class _Begun:
    """A compile whose end has not been seen yet."""

    event: Compile
    passed: bool = False

    def ended(self, outcome: str, at_s: float) -> Compile:
        took_s = at_s - self.event.at_s
        return replace(self.event, outcome=outcome, seconds=took_s if took_s >= 0 else math.nan)


class Compiler:
    """Reader that joins the beginning and the end of each compile, process by process.

    ``Compiler status PASS`` names neither module nor process: it ends the newest compile of its
    source, unless a line that names the module follows. Durations need lines with times.
    """

    def __init__(self) -> None:
        self._begun: dict[tuple[str, str, str], _Begun] = {}
        self._cache: dict[str, str] = {}

    def read(self, entry: LogLine) -> list[Compile] | None:
        """Read one line: the compiles that it ends, None if it is not understood."""
        text = entry.text
        found = PROCESS.match(text)
        process = found[1] if found else ""
        for words, outcome in CACHED.items():
            if words in text:
                return [self._event(entry, process, outcome)]
        if "Call compiler with cmd" in text:
            return self._begin(entry, process)
        for words, outcome in ENDED.items():
            if words in text:
                begun = self._begun.pop((entry.source, process, _module(text)), None)
                if begun is None:
                    return [self._event(entry, process, outcome)]
                return [begun.ended(outcome, entry.at_s)]
        if "Compiler status " in text:
            return self._status(entry)
        if (path := CACHE.search(text)) and len(self._cache) < MAX_OPEN:
            self._cache[entry.source] = path[1]
        return [] if WRAPPER.search(text) else None

    def rest(self) -> Iterator[Compile]:
        """Yield the compiles that have no end in the log."""
        for begun in self._begun.values():
            yield begun.event
        self._begun.clear()

    def _begin(self, entry: LogLine, process: str) -> list[Compile]:
        event = self._event(entry, process, MISS)
        over = self._begun.pop((entry.source, process, event.module), None)
        self._begun[entry.source, process, event.module] = _Begun(event)
        ended = [over.event] if over else []
        # A process compiles one graph after the other: those that passed are over.
        for key, begun in list(self._begun.items())[:-1]:
            if begun.passed and key[:2] == (entry.source, process):
                ended.append(self._begun.pop(key).event)
        if len(self._begun) > MAX_OPEN:
            ended.append(self._begun.pop(next(iter(self._begun))).event)
        return ended

    def _status(self, entry: LogLine) -> list[Compile]:
        waiting = [
            key
            for key, begun in self._begun.items()
            if key[0] == entry.source and not begun.passed
        ]
        if waiting and "Compiler status PASS" in entry.text:
            self._begun[waiting[-1]].passed = True
            return []
        return [self._begun.pop(key).ended(FAIL, entry.at_s) for key in waiting[-1:]]

    def _event(self, entry: LogLine, process: str, outcome: str) -> Compile:
        text = entry.text
        compiler, command = COMPILER.search(text), COMMAND.search(text)
        cached = CACHED_AT.search(text)
        return Compile(
            module=_module(text),
            outcome=outcome,
            at_s=entry.at_s,
            rank=entry.rank,
            process=f"{entry.source}:{process}",
            compiler=compiler[1] if compiler else "",
            flags=PATHS.sub("", command[1]).strip()[:MAX_FLAGS_CHARS] if command else "",
            cache=cached[1].rstrip("/") if cached else self._cache.get(entry.source, ""),
        )


def _module(text: str) -> str:
    found = MODULE.search(text)
    return found[0].removesuffix(".hlo") if found else ""


ERROR = re.compile(r"NEURON_HW_ERR=([A-Z][A-Z0-9_]{2,59})\b", re.ASCII)
FIELD = re.compile(r"\b([a-z][a-z-]{1,20})=([^\s=]{1,100})", re.ASCII)
SYSLOG_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,99}) kernel:", re.ASCII)


def read_kernel(entry: LogLine) -> HardwareError | None:
    """Read one line of the kernel's log; None if it names no error."""
    error = ERROR.search(entry.text)
    if error is None:
        return None
    fields: dict[str, str] = dict(FIELD.findall(entry.text, error.end()))
    host = SYSLOG_HOST.match(entry.text)
    return HardwareError(
        kind=error[1],
        at_s=entry.at_s,
        node=fields.get("hostname") or (str(host[1]) if host else ""),
        instance=fields.get("instance-id", ""),
        device=_index(fields.get("nd-id")),
        core=_index(fields.get("nc-id")),
        serial=fields.get("serial-num", ""),
        action=fields.get("action", ""),
    )


def _index(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 6 else None
