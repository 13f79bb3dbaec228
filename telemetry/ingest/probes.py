"""Outputs of network and collective probes, as rows in bytes, seconds and bytes per second."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan

import msgspec

from telemetry.ingest.logs.records import pieces_of

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
WRONG_COUNT = re.compile(r"#\s{0,4}Out of bounds values\s{0,8}:\s{0,8}([0-9]{1,12})", re.I)
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


def parse_number(word: str) -> float | None:
    """Parse a number with an optional k, m or g; NaN for "n/a", None if it is not a number."""
    if word.lower() in ABSENT:
        return math.nan
    match = FIGURE.fullmatch(word)
    if match is None:
        return None
    value = float(match[1]) * SCALES[match[2].lower()]
    return value if math.isfinite(value) else math.nan


def positive_or_nan(value: float | None) -> float:
    """Return a positive value, else NaN."""
    return value if value is not None and value > 0 else math.nan


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One measured size; NaN and None where the probe prints nothing.

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
        """Whether the row has a time."""
        return not isnan(self.time_s)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that a probe printed, and its message size, NaN if it has none."""

    text: str
    size_bytes: float = nan


@dataclass(slots=True)
class Probe:
    """The parsed output of one probe; ``tool`` is empty if no table was found.

    ``n_skipped`` of ``n_lines`` were not understood; ``skipped`` has the first of them with
    their line numbers.
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
        """Whether there are rows, no wrong elements and no failures."""
        is_right = not self.n_wrong and not any(row.n_errors for row in self.rows)
        return bool(self.rows) and not self.failures and is_right


class NcclTestReader:
    """Reads nccl-tests; comments start with a hash, rows do not."""

    def __init__(self) -> None:
        self._has_header = False

    def read(self, line: str, probe: Probe) -> bool:
        """Read a line; return whether it was understood."""
        if HEADER.search(line):
            self._has_header, probe.tool = True, NCCL
        elif mean := MEAN.search(line):
            probe.mean_busbw_bytes_per_s = positive_or_nan(parse_number(mean[1])) * GIGA
        elif wrong := WRONG_COUNT.search(line):
            probe.n_wrong = int(wrong[1])
        elif any(words in line.lower() for words in FAILURES):
            probe.failures.append(Failure(line.strip()[:300]))
        elif self._has_header and (rows := _rows(line.split())):
            probe.rows.extend(rows)
        else:
            return line.lstrip().startswith("#")
        return True


def _rows(words: list[str]) -> list[ProbeRow]:
    """Parse a line into two rows: size, count, type, operation, root, then four numbers twice.

    Operations without reduction or root omit those columns.
    """
    n_head = len(words) - 2 * N_RUN
    if n_head not in N_HEADS:
        return []
    size = parse_number(words[0])
    runs = [
        [parse_number(word) for word in words[start : start + N_RUN]]
        for start in (n_head, n_head + N_RUN)
    ]
    if size is None or math.isnan(size) or any(value is None for run in runs for value in run):
        return []
    return [
        ProbeRow(
            size_bytes=size,
            time_s=positive_or_nan(time_us) * MICRO,
            algbw_bytes_per_s=math.nan if algbw is None else algbw * GIGA,
            busbw_bytes_per_s=math.nan if busbw is None else busbw * GIGA,
            n_errors=None if wrong is None or math.isnan(wrong) else int(wrong),
            element=words[2] if n_head > 2 else "",
            in_place=bool(place),
        )
        for place, (time_us, algbw, busbw, wrong) in enumerate(runs)
    ]


class NccomReader:
    """Reads nccom-test; the header names the columns."""

    def __init__(self) -> None:
        self._columns: tuple[str, ...] = ()

    def read(self, line: str, probe: Probe) -> bool:
        """Read a line; return whether it was understood."""
        words = line.split()
        if mean := NCCOM_MEAN.search(line):
            probe.mean_busbw_bytes_per_s = positive_or_nan(parse_number(mean[1])) * GIBI
        elif words and words[0].lower() == SIZE and "algbw(gb/s)" in line.lower():
            self._columns, probe.tool = tuple(word.lower() for word in words), NCCOM
        elif any(words_of in line.lower() for words_of in NCCOM_FAILURES):
            size = parse_number(words[0]) if words[1:2] == ["Failure"] else None
            probe.failures.append(Failure(line.strip()[:300], positive_or_nan(size)))
        elif self._columns and (row := _row(dict(zip(self._columns, words, strict=False)))):
            probe.rows.append(row)
        else:
            return False
        return True


def read_report(document: object, probe: Probe) -> None:
    """Read the rows of nccom-test's JSON report."""
    results = document.get("results") if isinstance(document, Mapping) else None
    probe.tool = NCCOM
    for each in results if isinstance(results, Sequence) and not isinstance(results, str) else ():
        entry = each if isinstance(each, Mapping) else {}
        words = {str(name).lower(): str(value) for name, value in entry.items()}
        if row := _row(words):
            probe.rows.append(row)
        else:
            probe.n_skipped += 1


def decode_report(text: str) -> object | None:
    """Decode a JSON document; None if the text is not one."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        document: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return document


def _row(words: Mapping[str, str]) -> ProbeRow | None:
    """Parse a row, given as words by column; None without size or time."""
    figures = {name: parse_number(word) for name, word in words.items()}
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
        time_s=positive_or_nan(time_us) * MICRO,
        algbw_bytes_per_s=_rate(figures.get("algbw(gb/s)")),
        busbw_bytes_per_s=_rate(figures.get("busbw(gb/s)")),
        element=words.get("type", ""),
        algorithm=words.get("algorithm", ""),
        percentiles_s=percentiles,
    )


def _rate(value: float | None) -> float:
    """Return bytes per second; a printed 0 stays 0."""
    return math.nan if value is None else value * GIBI


class PingpongReader:
    """Reads fi_pingpong."""

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
    """Parse a row; the time is one way, because the table counts transfers.

    The first row of a table includes connection set-up and is marked as warm-up.
    """
    if len(words) != len(COLUMNS):
        return None
    figures = [
        parse_number(word.removesuffix("s") if i == 4 else word) for i, word in enumerate(words)
    ]
    size, rate, each_us = figures[0], figures[5], figures[6]
    if size is None or math.isnan(size) or each_us is None or rate is None:
        return None
    sent, ack = figures[1], figures[2]
    lost = None if sent is None or ack is None else max(0.0, sent - ack)
    return ProbeRow(
        size_bytes=size,
        time_s=positive_or_nan(each_us) * MICRO,
        algbw_bytes_per_s=rate * MEGA,
        busbw_bytes_per_s=rate * MEGA,
        n_errors=None if lost is None or math.isnan(lost) else int(lost),
        is_warm_up=is_first,
    )


def read_probe(data: bytes) -> Probe:
    """Read the output of nccom-test (table or JSON), nccl-tests or fi_pingpong.

    Never raises: lines that are not understood are counted, and a long output is cut.
    """
    data, probe = data[:MAX_BYTES], Probe()
    document = decode_report(data.decode("utf-8", "replace"))
    if document is not None:
        read_report(document, probe)
        return probe
    readers = (NccomReader(), NcclTestReader(), PingpongReader())
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
