"""What network and collective probes print, as rows in bytes, seconds and bytes per second."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan

import msgspec

from telemetry.ingest.logs.reading import pieces_of

MICRO = 1e-6
MEGA = 1e6
GIGA = 1e9
GIBI = 2.0**30
KIBI = 1024.0
SCALES = {"": 1.0, "k": KIBI, "m": KIBI**2, "g": KIBI**3}
FIGURE = re.compile(r"[=^]?([0-9]{1,18}(?:\.[0-9]{0,9})?(?:e[-+]?[0-9]{1,3})?)([kmg]?)", re.I)
ABSENT = ("n/a", "-", "nan")

NCCOM, NCCL, PINGPONG = "nccom-test", "nccl-tests", "fi_pingpong"
HEADER = re.compile(r"#\s+size\s+count\s+type\b", re.I)
MEAN = re.compile(r"#\s{0,4}Avg bus bandwidth\s{0,8}:\s{0,8}([0-9.]{1,20})", re.I)
WRONG = re.compile(r"#\s{0,4}Out of bounds values\s{0,8}:\s{0,8}([0-9]{1,12})", re.I)
FAILURES = ("test nccl failure", "test cuda failure", "test failure", "nccl error")
N_RUN = 4
N_HEADS = (2, 3, 4, 5)
SIZE = "size(b)"
TIMES = ("time:avg(us)", "time(us)")
PERCENTILE = re.compile(r"time:p(\d{1,2})\(us\)")
NCCOM_MEAN = re.compile(r"Avg bus bandwidth:\s{0,12}([0-9.]{1,20})\s{0,2}GB/s", re.I)
NCCOM_FAILURES = (
    "failure running",
    "errors found",
    "test failed",
    "is not running",
    "nccom error",
)
COLUMNS = ("bytes", "#sent", "#ack", "total", "time", "mb/sec", "usec/xfer", "mxfers/sec")
PINGPONG_FAILURES = ("fi_", "error", "failed")
MAX_BYTES = 16 << 20
MAX_ROWS = 100_000
MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARS = 120


def figure(word: str) -> float | None:
    """Return a figure, NaN where it says that there is none, None where it is no figure."""
    if word.lower() in ABSENT:
        return math.nan
    match = FIGURE.fullmatch(word)
    if match is None:
        return None
    value = float(match[1]) * SCALES[match[2].lower()]
    return value if math.isfinite(value) else math.nan


def above_zero(value: float | None) -> float:
    """Return a time or a size, NaN where it is none."""
    return value if value is not None and value > 0 else math.nan


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One size that was measured; NaN and None where the probe does not say.

    Parameters
    ----------
    size_bytes : bytes of a message, or of a collective's buffer
    time_s : seconds of one transfer or collective, the mean
    algbw_bytes_per_s : bytes over time
    busbw_bytes_per_s : the same, with the factor that makes operations comparable
    n_errors : wrong elements, None where nothing was checked
    element : type of an element, as the probe names it
    algorithm : how a collective was done, as the probe names it
    in_place : whether a collective wrote over what it read; None where that means nothing
    is_warm_up : whether the row includes setting up the connection, and should not be judged
    percentiles_s : seconds by percentile, 50 for the median
    """

    size_bytes: float
    time_s: float = nan
    algbw_bytes_per_s: float = nan
    busbw_bytes_per_s: float = nan
    n_errors: int | None = None
    element: str = ""
    algorithm: str = ""
    in_place: bool | None = None
    is_warm_up: bool = False
    percentiles_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether there is a time to judge."""
        return not isnan(self.time_s)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a probe says went wrong, and at which size, NaN where it was not at one."""

    text: str
    size_bytes: float = nan


@dataclass(slots=True)
class Probe:
    """What one output holds; ``tool`` is empty where no table was found.

    ``n_lines`` that are neither row nor failure nor known words count as ``n_skipped``;
    ``skipped`` are the first of them with their line numbers.
    """

    tool: str = ""
    rows: list[ProbeRow] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    mean_busbw_bytes_per_s: float = nan
    n_wrong: int | None = None
    n_lines: int = 0
    n_skipped: int = 0
    skipped: list[tuple[int, str]] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether there are rows, none has wrong elements, and nothing failed."""
        is_right = not self.n_wrong and not any(row.n_errors for row in self.rows)
        return bool(self.rows) and not self.failures and is_right


class NcclTestReader:
    """Reads the lines of one output; comments begin with a hash, rows do not."""

    def __init__(self) -> None:
        self._has_header = False

    def read(self, line: str, probe: Probe) -> bool:
        """Read a line; return whether it was understood."""
        if HEADER.search(line):
            self._has_header, probe.tool = True, NCCL
        elif mean := MEAN.search(line):
            probe.mean_busbw_bytes_per_s = above_zero(figure(mean[1])) * GIGA
        elif wrong := WRONG.search(line):
            probe.n_wrong = int(wrong[1])
        elif any(words in line.lower() for words in FAILURES):
            probe.failures.append(Failure(line.strip()[:300]))
        elif self._has_header and (rows := _rows(line.split())):
            probe.rows.extend(rows)
        else:
            return line.lstrip().startswith("#")
        return True


def _rows(words: list[str]) -> list[ProbeRow]:
    """Make two rows of a line: size, count, type, operation, root, then four figures twice.

    Operations without reduction or root leave out their columns.
    """
    n_head = len(words) - 2 * N_RUN
    if n_head not in N_HEADS:
        return []
    size = figure(words[0])
    runs = [
        [figure(word) for word in words[start : start + N_RUN]]
        for start in (n_head, n_head + N_RUN)
    ]
    if size is None or math.isnan(size) or any(value is None for run in runs for value in run):
        return []
    return [
        ProbeRow(
            size_bytes=size,
            time_s=above_zero(time_us) * MICRO,
            algbw_bytes_per_s=math.nan if algbw is None else algbw * GIGA,
            busbw_bytes_per_s=math.nan if busbw is None else busbw * GIGA,
            n_errors=None if wrong is None or math.isnan(wrong) else int(wrong),
            element=words[2] if n_head > 2 else "",
            in_place=bool(place),
        )
        for place, (time_us, algbw, busbw, wrong) in enumerate(runs)
    ]


class Nccom:
    """Reads the lines of one output; the header says which column is what."""

    def __init__(self) -> None:
        self._columns: tuple[str, ...] = ()

    def read(self, line: str, probe: Probe) -> bool:
        """Read a line; return whether it was understood."""
        words = line.split()
        if mean := NCCOM_MEAN.search(line):
            probe.mean_busbw_bytes_per_s = above_zero(figure(mean[1])) * GIBI
        elif words and words[0].lower() == SIZE and "algbw(gb/s)" in line.lower():
            self._columns, probe.tool = tuple(word.lower() for word in words), NCCOM
        elif any(words_of in line.lower() for words_of in NCCOM_FAILURES):
            size = figure(words[0]) if words[1:2] == ["Failure"] else None
            probe.failures.append(Failure(line.strip()[:300], above_zero(size)))
        elif self._columns and (row := _row(dict(zip(self._columns, words, strict=False)))):
            probe.rows.append(row)
        else:
            return False
        return True


def read_report(document: object, probe: Probe) -> None:
    """Read the rows of a report as JSON."""
    results = document.get("results") if isinstance(document, Mapping) else None
    probe.tool = NCCOM
    for each in results if isinstance(results, Sequence) and not isinstance(results, str) else ():
        told = each if isinstance(each, Mapping) else {}
        words = {str(name).lower(): str(value) for name, value in told.items()}
        if row := _row(words):
            probe.rows.append(row)
        else:
            probe.n_skipped += 1


def is_report(text: str) -> object | None:
    """Return a JSON document, None where the text is none."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        document: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return document


def _row(words: Mapping[str, str]) -> ProbeRow | None:
    """Make a row of a table's words by column; None where size or time is missing."""
    figures = {name: figure(word) for name, word in words.items()}
    size = figures.get(SIZE)
    time_us = next((figures[name] for name in TIMES if name in figures), None)
    if size is None or time_us is None or math.isnan(size):
        return None
    percentiles = {
        int(match[1]): value * MICRO
        for name, value in figures.items()
        if (match := PERCENTILE.fullmatch(name)) and value is not None and value > 0
    }
    return ProbeRow(
        size_bytes=size,
        time_s=above_zero(time_us) * MICRO,
        algbw_bytes_per_s=_rate(figures.get("algbw(gb/s)")),
        busbw_bytes_per_s=_rate(figures.get("busbw(gb/s)")),
        element=words.get("type", ""),
        algorithm=words.get("algorithm", ""),
        percentiles_s=percentiles,
    )


def _rate(value: float | None) -> float:
    """Return bytes per second; what rounds to nothing is nothing, and not absent."""
    return math.nan if value is None else value * GIBI


class Pingpong:
    """Reads the lines of one output."""

    def __init__(self) -> None:
        self._has_header = False
        self._is_first = True

    def read(self, line: str, probe: Probe) -> bool:
        """Read a line; return whether it was understood."""
        words = line.split()
        if tuple(word.lower() for word in words) == COLUMNS:
            self._has_header = self._is_first = True
            probe.tool = PINGPONG
        elif self._has_header and (row := _pingpong_row(words, is_first=self._is_first)):
            self._is_first = False
            probe.rows.append(row)
        elif self._has_header and line.lower().startswith(PINGPONG_FAILURES):
            probe.failures.append(Failure(line.strip()[:300]))
        else:
            return False
        return True


def _pingpong_row(words: list[str], *, is_first: bool) -> ProbeRow | None:
    """Make a row; the time is that of one way, as the table counts transfers.

    What the connection's set-up is in, the first row of a table, is no measure of the network.
    """
    if len(words) != len(COLUMNS):
        return None
    figures = [figure(word.removesuffix("s") if i == 4 else word) for i, word in enumerate(words)]
    size, rate, each_us = figures[0], figures[5], figures[6]
    if size is None or math.isnan(size) or each_us is None or rate is None:
        return None
    sent, ack = figures[1], figures[2]
    lost = None if sent is None or ack is None else max(0.0, sent - ack)
    return ProbeRow(
        size_bytes=size,
        time_s=above_zero(each_us) * MICRO,
        algbw_bytes_per_s=rate * MEGA,
        busbw_bytes_per_s=rate * MEGA,
        n_errors=None if lost is None or math.isnan(lost) else int(lost),
        is_warm_up=is_first,
    )


def read_probe(data: bytes) -> Probe:
    """Read the output of nccom-test (table or report), nccl-tests or fi_pingpong.

    Never raises: what is not understood is counted, of what is too long the beginning is read.
    """
    data, probe = data[:MAX_BYTES], Probe()
    document = is_report(data.decode("utf-8", "replace"))
    if document is not None:
        read_report(document, probe)
        return probe
    readers = (Nccom(), NcclTestReader(), Pingpong())
    for number, line in enumerate(data.splitlines(), start=1):
        probe.n_lines += 1
        pieces = list(pieces_of(line))
        understood = [any(each.read(piece, probe) for each in readers) for piece in pieces]
        if pieces and not any(understood):
            probe.n_skipped += 1
            if len(probe.skipped) < MAX_EXAMPLES:
                probe.skipped.append((number, pieces[0].strip()[:MAX_EXAMPLE_CHARS]))
        if len(probe.rows) >= MAX_ROWS:
            break
    return probe


__all__ = ["Failure", "Probe", "ProbeRow", "read_probe"]
