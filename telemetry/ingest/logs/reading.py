"""A training log read from beginning to end: each line to the reader that knows its kind."""

import gzip
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import BinaryIO, cast

from telemetry.compiles import Compile
from telemetry.ingest.logs import compiler, readers
from telemetry.ingest.logs.compiler import Compiler
from telemetry.ingest.logs.readers import MAX_STEP, HuggingFace, Lightning
from telemetry.ingest.logs.records import HardwareError, LogLine, StepRecord, TrainingTotals
from telemetry.ingest.logs.steps import LineSteps

ANY = re.compile(
    rb"loss|step_time|s/it|it/s|NEURON_|NCC_WRAPPER|Compiler status |"
    rb"elapsed time per iteration|'train|\"train|summary/|optimizer \.\.\."
)
# A line with one of these is of a known kind; where nothing can be read of it, it is damaged.
SURE = (
    b"step_time",
    b"step_loss",
    b"elapsed time per iteration",
    b"NEURON_CC_WRAPPER||",
    b"NEURON_HW_ERR=",
    b"{'loss'",
    b'{"loss"',
)

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTH = "|".join(MONTHS)
CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<frac>\d{1,9}))?"
ZONE = r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
TIMES = (
    re.compile(
        rf"\[?(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d)[T _]{CLOCK}{ZONE}"
        r"(?P<colon>:?)\]?\s*",
        re.ASCII,
    ),
    re.compile(
        rf"(?:LOG\s+)?\[?(?:[A-Z][a-z]{{2}}\s+)(?P<name>{MONTH})\s+(?P<day>\d{{1,2}})\s+"
        rf"{CLOCK}\s+(?P<year>\d{{4}})\]?\s*",
        re.ASCII,
    ),
    re.compile(rf"(?P<name>{MONTH})\s+(?P<day>\d{{1,2}})\s+{CLOCK}\s+", re.ASCII),
)
TAGS = (
    re.compile(r"\[(?P<who>pod/[^\]\s]{1,200})\]\s*", re.ASCII),
    re.compile(r"\[(?:rank|default|local_rank)?[ :=]?(?P<rank>\d{1,6})\]:?\s*", re.ASCII),
    re.compile(r"\[\d{1,6},(?P<rank>\d{1,6})\]<std(?:out|err)>:\s?", re.ASCII),
    re.compile(r"\s{0,8}(?P<rank>\d{1,6}):\s", re.ASCII),
    re.compile(r"[Rr]ank[ _:=]?(?P<rank>\d{1,6})[\]:,]?\s+", re.ASCII),
    re.compile(r"std(?:out|err) [FP] ", re.ASCII),
)
MAX_PREFIXES = 6
FIRST_YEAR, LAST_YEAR = 2000, 2199
GZIP = b"\x1f\x8b"
# Progress bars rewrite one line for hours; a line longer than this is read in part.
MAX_LINE_BYTES = 1 << 20
MAX_PIECE_CHARS = 16_384
COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
UNPRINTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Tables are no logs, but become runs as these do.
TABLE = "table"
FAMILIES = (
    readers.NEURONX_NAME,
    readers.MEGATRON_NAME,
    readers.LIGHTNING_NAME,
    readers.NAME,
    TABLE,
)
MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARS = 120
MAX_COMPILES = 200_000
MAX_ERRORS = 1_000


def may_matter(line: bytes) -> bool:
    """Whether any reader could know a line; every line of a log passes here."""
    return ANY.search(line) is not None


def is_known_kind(line: bytes) -> bool:
    """Whether a line is surely of a kind that is read."""
    return any(mark in line for mark in SURE)


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stood before a line: Unix seconds or NaN, who wrote it, and where the rest begins."""

    at_s: float = math.nan
    source: str = ""
    rank: int | None = None
    end: int = 0


def prefix_of(text: str, *, year: int, utc_offset_s: float = 0.0) -> Prefix:
    """Read the prefixes of a line; ``year`` and ``utc_offset_s`` are for times that lack them."""
    at_s, has_zone, who, rank = math.nan, False, "", None
    end = len(text) - len(text.lstrip())
    for _ in range(MAX_PREFIXES):
        if time := next((m for each in TIMES if (m := each.match(text, end))), None):
            second = _unix_s(time, year=year, utc_offset_s=utc_offset_s)
            is_better = math.isnan(at_s) or (not has_zone and bool(_group(time, "zone")))
            if is_better and not math.isnan(second):
                at_s, has_zone = second, bool(_group(time, "zone"))
            end = time.end()
        elif tag := next((m for each in TAGS if (m := each.match(text, end))), None):
            who = _group(tag, "who") or who
            rank = int(found) if (found := _group(tag, "rank")) else rank
            end = tag.end()
        else:
            break
    return Prefix(at_s, f"{who}#{'' if rank is None else rank}", rank, end)


def _group(match: re.Match[str], name: str) -> str:
    return match.groupdict().get(name) or ""


def _unix_s(time: re.Match[str], *, year: int, utc_offset_s: float) -> float:
    """Return a moment in Unix seconds; one that the calendar does not know is NaN."""
    found = time.groupdict()
    month = MONTHS.index(found["name"]) + 1 if "name" in found else int(found["month"])
    try:
        moment = datetime(
            int(found.get("year") or year),
            month,
            int(found["day"]),
            int(found["h"]),
            int(found["m"]),
            int(found["s"]),
            tzinfo=_zone(found.get("zone") or "", utc_offset_s),
        )
    except ValueError:
        return math.nan
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        return math.nan
    return moment.timestamp() + _fraction_s(found)


def _zone(text: str, utc_offset_s: float) -> timezone:
    if not text:
        return timezone(timedelta(seconds=utc_offset_s))
    if text == "Z":
        return UTC
    sign = -1 if text[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(text[1:3]), minutes=int(text[-2:])))


def _fraction_s(found: dict[str, str | None]) -> float:
    """Return the part of a second; Neuron's compiler writes milliseconds as six digits."""
    digits = found.get("frac") or ""
    if not digits:
        return 0.0
    if found.get("colon") and len(digits) == 6 and digits.startswith("000"):
        return int(digits) / 1e3
    return int(digits) / 10.0 ** len(digits)


def opened(path: Path) -> BinaryIO:
    """Open a log for reading, gzipped or not, by its first bytes rather than its name."""
    with path.open("rb") as file:
        is_gzipped = file.read(2) == GZIP
    return cast("BinaryIO", gzip.open(path)) if is_gzipped else path.open("rb")


def lines_of(file: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
    """Yield number, bytes and whether it is whole, line by line; of a huge one the beginning.

    A compressed file that breaks off ends where it does: what was read counts.
    """
    number = 0
    try:
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            is_whole = line.endswith(b"\n") or len(line) < MAX_LINE_BYTES
            yield number, line, is_whole
            while not line.endswith(b"\n") and len(line) == MAX_LINE_BYTES:
                line = file.readline(MAX_LINE_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        yield number + 1, b"", False


def pieces_of(line: bytes) -> Iterator[str]:
    """Yield what a line showed, one after the other: a carriage return begins anew."""
    text = UNPRINTED.sub("", COLOURS.sub("", line.decode("utf-8", "replace")))
    for piece in text.rstrip("\n").split("\r"):
        if piece.strip():
            yield piece[:MAX_PIECE_CHARS]


@dataclass(frozen=True, slots=True)
class LogContext:
    """What people say of a log: its year where lines have none, its zone, its rhythm."""

    year: int = 1970
    utc_offset_s: float = 0.0
    log_every: int = 1


@dataclass(frozen=True, slots=True)
class UnreadLine:
    """A line that was not understood, and where it stands."""

    file: str
    number: int
    text: str


@dataclass(slots=True)
class Log:
    """What was read; ``understood`` counts lines by kind, ``damaged`` those half understood."""

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
        """The family of lines that tells of most steps; empty where none does."""
        best = max(FAMILIES, key=lambda name: len(self.gathered[name]))
        return best if len(self.gathered[best]) else ""

    @property
    def n_guessed(self) -> int:
        """How many steps have their number by counting, since the log has none."""
        return self.n_counted if self.family == readers.NAME else 0

    @property
    def steps(self) -> LineSteps:
        """The steps of that family."""
        return self.gathered[self.family or FAMILIES[0]]


class LogReader:
    """Reads logs line by line; what it keeps grows with steps and graphs, not with lines."""

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
            is_read = may_matter(line) and self._line(number, line, file)
            if not is_whole or (not is_read and is_known_kind(line)):
                self.log.n_damaged += 1
                self._note(self.log.damaged, number, line, file)
            elif not is_read and not line.isspace():
                self.log.n_other += 1
                self._note(self.log.others, number, line, file)

    def finish(self) -> Log:
        """Return what was read."""
        for event in self._compiler.rest():
            self._keep(event)
        self.log.totals = self._trainer.totals
        self.log.n_counted = self._trainer.n_counted
        return self.log

    def _line(self, number: int, line: bytes, file: str) -> bool:
        """Read each state that a line was in; return whether any was understood."""
        n_read = sum(self._piece(number, piece, file) for piece in pieces_of(line))
        return n_read > 0

    def _note(self, examples: list[UnreadLine], number: int, line: bytes, file: str) -> None:
        if len(examples) < MAX_EXAMPLES:
            shown = " ".join(next(pieces_of(line[: 4 * MAX_EXAMPLE_CHARS]), "").split())
            printable = "".join(c for c in shown if c.isprintable())
            examples.append(UnreadLine(file, number, printable[:MAX_EXAMPLE_CHARS]))

    def _piece(self, number: int, piece: str, file: str) -> bool:
        prefix = prefix_of(piece, year=self._about.year, utc_offset_s=self._about.utc_offset_s)
        entry = LogLine(
            number, piece[prefix.end :], prefix.at_s, file + prefix.source, prefix.rank
        )
        kind = self._kind(entry)
        if kind:
            self.log.understood[kind] += 1
        return bool(kind)

    def _kind(self, entry: LogLine) -> str:
        """Hand an entry to the reader that knows it, and return whose it was; empty: nobody's."""
        text = entry.text
        if "NEURON_HW_ERR=" in text:
            return compiler.KERNEL_NAME if self._error(entry) else ""
        if "||" in text or "Compiler status " in text:
            ended = self._compiler.read(entry)
            for event in ended or ():
                self._keep(event)
            return compiler.NAME if ended is not None else ""
        if "elapsed time per iteration" in text:
            return self._step(readers.MEGATRON_NAME, readers.read_megatron(entry))
        if optimizer := readers.optimizer_of(text):
            self.log.optimizer = optimizer
            return "arguments"
        if "step_loss" in text or ("step_time" in text and "seq/s" in text):
            return self._step(readers.NEURONX_NAME, readers.read_neuronx(entry))
        return self._bar_or_dictionary(entry)

    def _bar_or_dictionary(self, entry: LogLine) -> str:
        if record := self._lightning.read(entry):
            return self._step(readers.LIGHTNING_NAME, record)
        parsed = self._trainer.read(entry)
        if isinstance(parsed, TrainingTotals):
            self._trainer.totals = _merge_totals(self._trainer.totals, parsed)
            return readers.NAME
        if isinstance(parsed, StepRecord):
            return self._step(readers.NAME, parsed)
        return "progress" if parsed else ""

    def _step(self, family: str, record: StepRecord | None) -> str:
        if record is None or record.step > MAX_STEP:
            return ""
        self.log.gathered[family].add(record)
        return family

    def _keep(self, event: Compile) -> None:
        if len(self.log.compiles) < MAX_COMPILES:
            self.log.compiles.append(event)
        else:
            self.log.n_left_out += 1

    def _error(self, entry: LogLine) -> bool:
        error = compiler.read_kernel(entry)
        if error is None:
            return False
        if error in self.log.errors or len(self.log.errors) < MAX_ERRORS:
            self.log.errors[error] = self.log.errors.get(error, 0) + 1
        else:
            self.log.n_left_out += 1
        return True


def read_logs(paths: Sequence[Path], about: LogContext) -> Log:
    """Read the files of one run as one log."""
    reading = LogReader(about)
    for path in paths:
        with opened(path) as file:
            reading.read(lines_of(file), file=path.name)
    return reading.finish()


def _merge_totals(old: TrainingTotals, new: TrainingTotals) -> TrainingTotals:
    """Lay newer totals over older ones, where they say something."""
    known = {
        name: value
        for name in TrainingTotals.__slots__
        if not math.isnan(value := getattr(new, name))
    }
    return replace(old, **known)
