"""Reading a training log: each line goes to the reader of its kind."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from importers.logs.envelopes import Envelopes, Prefix, lines_of, opened, prefix_of
from importers.logs.errors import MARKS as ERROR_MARKS
from importers.logs.errors import ErrorReader, LoggedError
from importers.logs.families import FAMILIES, MARKS, MAX_STEP, OPTIMUM, PROGRESS, StepReader
from importers.logs.records import HardwareError, LogLine, TrainingTotals
from importers.logs.steps import LineSteps
from telemetry.compiles import FAIL, MISS, Compile
from telemetry.ingest.lines import MAX_PIECE_CHARS, pieces_of
from trnwatch.compiles import CACHE, CACHED, ENDED, MODULE, facts_of

# No reader knows a line without one of these. A line with colours is read anyway.
ALWAYS = ("NEURON_", "NCC_WRAPPER", "Compiler status ", "optimizer ...", "\x1b")
ANY = re.compile("|".join(re.escape(mark) for mark in (*MARKS, *ALWAYS, *ERROR_MARKS)).encode())
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
OPTIMIZER = re.compile(r"optimizer \.{3,60} ([A-Za-z0-9_.-]{1,40})", re.ASCII)
# Tables are imported in the same way as logs.
TABLE = "table"
COMPILE_CACHE, HARDWARE_ERRORS, ERRORS = "compile cache", "hardware errors", "errors"
# What a line that looks like training has at least two of.
STEP = re.compile(
    rb"\b(?:[Ss]teps?|[Ii]ter(?:ation)?s?|[Bb]atch|[Uu]pdates?)\b\W{0,6}\d|\d (?:steps|updates)\b"
)
TIME = re.compile(
    rb"[Tt]ime|[Ee]lapsed|[Tt]hroughput|[Ss]peed|/it\b|/s(ec)?\b|per.?sec|\b[tuw]ps\b"
    rb"|\d ?(m?s|sec(onds)?)\b"
)
FIGURE = re.compile(
    rb"[Ll]oss|[Pp]erplexity|\bppl\b|grad|\blr\b|[Ll]earning.rate|[Tt]ok|[Ss]amples"
)
LOOKS = {"step": STEP, "time": TIME, "figure": FIGURE}
MAX_LIKELY = 3
MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARS = 120
MAX_COMPILES = 200_000
MAX_BAR_STEPS = 100_000
MAX_ERRORS = 1_000
# A kernel's log may follow the job's: errors this long before the last step did not end it.
BEFORE_END_S = 60.0


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
    """A log's content; ``understood`` counts lines by kind, ``damaged`` are partly understood.

    ``failures`` has the first line of each error by name and place, ``final`` those after the
    last step.
    """

    gathered: dict[str, LineSteps] = field(
        default_factory=lambda: {name: LineSteps() for name in (*FAMILIES, TABLE)}
    )
    compiles: list[Compile] = field(default_factory=list)
    errors: dict[HardwareError, int] = field(default_factory=dict)
    totals: TrainingTotals = field(default_factory=TrainingTotals)
    understood: Counter[str] = field(default_factory=Counter)
    failures: dict[tuple[object, ...], LoggedError] = field(default_factory=dict)
    final: list[LoggedError] = field(default_factory=list)
    optimizer: str = ""
    n_lines: int = 0
    n_other: int = 0
    n_damaged: int = 0
    n_left_out: int = 0
    n_counted: int = 0
    others: list[UnreadLine] = field(default_factory=list)
    damaged: list[UnreadLine] = field(default_factory=list)
    likely: list[UnreadLine] = field(default_factory=list)
    lacks: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)

    @property
    def family(self) -> str:
        """The family of lines with most steps; empty without steps."""
        n_steps = {name: len(steps) for name, steps in self.gathered.items() if len(steps)}
        # Bare progress bars may count anything.
        return max(n_steps, key=lambda name: (name != PROGRESS, n_steps[name]), default="")

    @property
    def n_guessed(self) -> int:
        """How many steps were numbered by counting lines, because the log has no numbers."""
        return self.n_counted if self.family == OPTIMUM else 0

    @property
    def steps(self) -> LineSteps:
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
        self._steps = StepReader(every=about.log_every)
        self._compiler = Compiler()
        self._errors = ErrorReader()
        self._likely: list[tuple[frozenset[str], UnreadLine]] = []
        self._has_steps = False
        self._newest_s = -math.inf

    def read(self, lines: Iterable[tuple[int, bytes, bool]], *, file: str = "") -> None:
        """Read the lines of one file: number, bytes and whether they are whole."""
        envelopes = Envelopes(utc_offset_s=self._about.utc_offset_s)
        for number, line, is_whole in lines:
            self.log.n_lines += 1
            is_read = False
            if ANY.search(line):
                for entry in self._entries(number, line, envelopes, file):
                    if kind := self._kind(entry, file):
                        self.log.understood[kind] += 1
                        is_read = True
            if not is_whole or (not is_read and any(mark in line for mark in KNOWN)):
                self.log.n_damaged += 1
                _add_example(self.log.damaged, number, line, file)
            elif not is_read and not line.isspace():
                self.log.n_other += 1
                _add_example(self.log.others, number, line, file)
            if not is_read and not self._has_steps:
                self._add_likely(number, line, file)

    def _entries(
        self, number: int, line: bytes, envelopes: Envelopes, file: str
    ) -> Iterator[LogLine]:
        """Yield what one line says; a progress bar rewrites its line: each state is read."""
        for message in envelopes.messages(line):
            head = Prefix()
            for i, piece in enumerate(pieces_of(message.text)):
                start = prefix_of(
                    piece,
                    year=self._about.year,
                    utc_offset_s=self._about.utc_offset_s,
                    outer=message,
                )
                # A collector stamps the line, not its states.
                head = start if not i else head
                at_s = head.at_s if math.isnan(start.at_s) else start.at_s
                clock_s = head.clock_s if math.isnan(start.clock_s) else start.clock_s
                rank = head.rank if start.rank is None else start.rank
                host = start.host or head.host
                source = f"{file}{host}#{'' if rank is None else rank}"
                yield LogLine(number, piece[start.end :], at_s, source, rank, host, clock_s)

    def _add_likely(self, number: int, line: bytes, file: str) -> None:
        """Keep the lines that look most like training; the first of them count."""
        kept, start = self._likely, line[:MAX_PIECE_CHARS]
        if len(kept) == MAX_LIKELY and not kept[-1][0]:
            return
        if not (STEP.search(start) or FIGURE.search(start)):
            return
        lacks = {name for name, pattern in LOOKS.items() if not pattern.search(start)}
        if len(lacks) < 2:
            kept.append((frozenset(lacks), _unread_line(number, line, file)))
            kept.sort(key=lambda each: len(each[0]))
            del kept[MAX_LIKELY:]

    def finish(self) -> Log:
        for event in self._compiler.rest():
            self._keep(event)
        if self._likely and not self._has_steps:
            self.log.likely = [line for _, line in self._likely]
            self.log.lacks = self._likely[0][0]
        over_s = self._newest_s - BEFORE_END_S
        self.log.final = [error for error in self.log.final if not error.at_s < over_s]
        self.log.totals = self._steps.totals
        self.log.n_counted = self._steps.n_counted
        return self.log

    def _kind(self, entry: LogLine, file: str) -> str:
        """Read an entry and return its kind; empty if it is not understood."""
        text = entry.text
        failure = self._errors.read(entry, file=file)
        if failure is not None:
            self._fail(failure)
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
        if optimizer := OPTIMIZER.fullmatch(text.strip()):
            self.log.optimizer = optimizer[1]
            return "arguments"
        length = self._steps.longest
        kind, record = self._steps.read(entry)
        if self._steps.longest > length:
            self.log.gathered[PROGRESS] = LineSteps()
        if record is None:
            return kind or (ERRORS if failure else "")
        if record.step > MAX_STEP:
            return ""
        self._has_steps = True
        self.log.final.clear()
        self._errors.forget()
        self._newest_s = max(self._newest_s, record.at_s)
        if kind != PROGRESS or len(self.log.gathered[PROGRESS]) < MAX_BAR_STEPS:
            self.log.gathered[kind].add(record)
        return kind

    def _fail(self, error: LoggedError) -> None:
        """Keep the first line of each error and place."""
        key = (error.name, error.rank, error.device, error.core, error.node)
        if key not in self.log.failures and len(self.log.failures) >= MAX_ERRORS:
            self.log.n_left_out += 1
            return
        self.log.failures.setdefault(key, error)
        if len(self.log.final) < MAX_ERRORS:
            self.log.final.append(error)

    def _keep(self, event: Compile) -> None:
        if len(self.log.compiles) < MAX_COMPILES:
            self.log.compiles.append(event)
        else:
            self.log.n_left_out += 1


def _add_example(examples: list[UnreadLine], number: int, line: bytes, file: str) -> None:
    if len(examples) < MAX_EXAMPLES:
        examples.append(_unread_line(number, line, file))


def _unread_line(number: int, line: bytes, file: str) -> UnreadLine:
    shown = " ".join(next(pieces_of(line[: 4 * MAX_EXAMPLE_CHARS]), "").split())
    printable = "".join(c for c in shown if c.isprintable())
    return UnreadLine(file, number, printable[:MAX_EXAMPLE_CHARS])


# The compiler's wrapper: graphs found in the cache, compiled, or failed.
PROCESS = re.compile(r"\s{0,8}(\d{1,10})\s{1,8}[A-Z]{3,10}\s{1,4}\|\|", re.ASCII)
WRAPPER = re.compile(r"\|\|N\w{2,30}\|\|", re.ASCII)
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
        match = PROCESS.match(text)
        process = match[1] if match else ""
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
        facts = facts_of(entry.text, cache=self._cache.get(entry.source, ""))
        return Compile(
            module=_module(entry.text),
            outcome=outcome,
            at_s=entry.at_s,
            rank=entry.rank,
            process=f"{entry.source}:{process}",
            compiler=facts["compiler"],
            flags=facts["flags"][:MAX_FLAGS_CHARS],
            cache=facts["cache"],
        )


def _module(text: str) -> str:
    match = MODULE.search(text)
    return match[0].removesuffix(".hlo") if match else ""


ERROR = re.compile(r"NEURON_HW_ERR=([A-Z][A-Z0-9_]{2,59})\b", re.ASCII)
FIELD = re.compile(r"\b([a-z][a-z-]{1,20})=([^\s=]{1,100})", re.ASCII)


def read_kernel(entry: LogLine) -> HardwareError | None:
    """Read one line of the kernel's log; None if it names no error."""
    error = ERROR.search(entry.text)
    if error is None:
        return None
    fields: dict[str, str] = dict(FIELD.findall(entry.text, error.end()))
    return HardwareError(
        kind=error[1],
        at_s=entry.at_s,
        node=fields.get("hostname") or entry.host,
        instance=fields.get("instance-id", ""),
        device=_index(fields.get("nd-id")),
        core=_index(fields.get("nc-id")),
        serial=fields.get("serial-num", ""),
        action=fields.get("action", ""),
    )


def _index(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 6 else None
