"""Outputs of network and collective probes, singly and of a group of nodes.

File names in a group: ``pair__A__B.txt`` (fi_pingpong, nccom-test or nccl-tests of two nodes),
``device__A__3.txt`` (fi_pingpong of one EFA device over loop-back), ``collective__ANYTHING.txt``
(nccom-test or nccl-tests over all nodes), ``node__A.json`` (counts). A file that contains
``no answer`` is a pair or device that did not respond.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isnan, nan
from typing import Annotated

import msgspec
import numpy as np

from telemetry.blocks import FloatArray
from telemetry.checks.preflight_measurements import REST_COUNTERS, Collective, Measured
from telemetry.ingest.lines import pieces_of

NCCOM, NCCL, PINGPONG = "nccom-test", "nccl-tests", "fi_pingpong"
MAX_BYTES = 16 << 20
MAX_ROWS = 100_000
MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARS = 120
NODE = r"[A-Za-z0-9](?:[A-Za-z0-9.-]|_(?!_))*"
PAIR = re.compile(rf"pair__({NODE})__({NODE})(?:__\w+)?\.\w+")
DEVICE = re.compile(rf"device__({NODE})__(\d{{1,3}})(?:__\w+)?\.\w+")
NODE_FILE = re.compile(rf"node__({NODE})\.json")
COLLECTIVE = re.compile(r"collective(?:__[\w.-]*)?\.\w+")
FILE_NAMES = "pair__A__B.txt, device__A__0.txt, collective.txt and node__A.json"
# Written by the probe script if the peer did not respond.
NO_ANSWER = b"no answer"
# Latency is measured on messages up to this size, bandwidth on the largest.
SMALL_BYTES = 8192.0
Count = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
RackName = Annotated[str, msgspec.Meta(max_length=80)]
# Expected seconds of an all-reduce over so many nodes at these sizes, (k,) each.
Curve = Callable[[int, FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One measured size; NaN and None where the probe prints nothing."""

    size_bytes: float  # bytes of a message, or of a collective's buffer
    time_s: float = nan  # seconds of one transfer or collective, the mean
    # Bytes over time, with the factor that makes operations comparable
    busbw_bytes_per_s: float = nan
    n_errors: int | None = None  # wrong elements, None where nothing was checked
    element: str = ""  # type of an element, as the probe names it
    # Whether a collective wrote over what it read; None where that means nothing
    in_place: bool | None = None
    # Whether the row includes setting up the connection, and should not be judged
    is_warm_up: bool = False
    # Seconds by percentile, 50 for the median
    percentiles_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
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
    n_wrong: int | None = None
    n_lines: int = 0
    n_skipped: int = 0
    skipped: list[tuple[int, str]] = field(default_factory=list)


class GroupError(ValueError):
    """A file is not a valid probe output; the message names the file and the fix."""


class NodeCounts(msgspec.Struct, forbid_unknown_fields=True):
    """Hardware counts of a node; missing fields are unknown."""

    n_devices: Count | None = None
    n_efa: Count | None = None
    rest_s: Count | None = None
    rest: dict[str, Count] = {}
    ecc_uncorrected: Count | None = None
    hardware_errors: Count | None = None
    rack: RackName = ""


@dataclass(slots=True)
class ProbeFiles:
    """The parsed files: probes by pair and by device, collectives, counts."""

    pairs: dict[tuple[str, str], list[Probe]] = field(default_factory=dict)
    devices: dict[tuple[str, int], list[Probe]] = field(default_factory=dict)
    collectives: list[Probe] = field(default_factory=list)
    counts: dict[str, NodeCounts] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        ends = {end for pair in self.pairs for end in pair}
        return tuple(sorted(ends | {node for node, _ in self.devices} | set(self.counts)))


def read_group(files: Iterable[tuple[str, bytes]]) -> ProbeFiles:
    """Read the probe outputs of a group, as (name, content) in any order.

    Raises GroupError if a name or a content is invalid, or no file names a node.
    """
    read = ProbeFiles()
    for name, data in files:
        if match := NODE_FILE.fullmatch(name):
            try:
                counts = msgspec.json.decode(data, type=NodeCounts)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise GroupError(f"{name[:80]}: {error}") from error
            if strange := sorted(set(counts.rest) - set(REST_COUNTERS)):
                unknown, known = strange[0][:40], ", ".join(REST_COUNTERS)
                raise GroupError(f"{name[:80]}: rest.{unknown} is not one of {known}")
            read.counts[match[1]] = counts
            continue
        pair, device = PAIR.fullmatch(name), DEVICE.fullmatch(name)
        if not (pair or device or COLLECTIVE.fullmatch(name)):
            raise GroupError(f"{name[:80]}: unknown file name; name files {FILE_NAMES}")
        if pair and pair[1] == pair[2]:
            raise GroupError(f"{name[:80]}: names the same node twice; give two nodes")
        probe = read_probe(data)
        if not probe.rows and NO_ANSWER in data:
            probe.failures.append(Failure(NO_ANSWER.decode()))
        if not probe.rows and not probe.failures:
            raise GroupError(f"{name[:80]} has no table of fi_pingpong, nccom-test or nccl-tests")
        if pair:
            one, other = sorted((pair[1], pair[2]))
            read.pairs.setdefault((one, other), []).append(probe)
        elif device:
            read.devices.setdefault((device[1], int(device[2])), []).append(probe)
        else:
            read.collectives.append(probe)
    if not read.nodes:
        raise GroupError(f"no file names a node; name files {FILE_NAMES}")
    return read


def measured_group(read: ProbeFiles, *, n_efa: int, curve: Curve) -> Measured:
    """Return the files as one measurement; raises GroupError for an unknown device.

    Parameters
    ----------
    n_efa : int
        EFA devices of this instance type.
    curve : Curve
        Expected seconds of an all-reduce, by number of nodes and sizes.
    """
    measured = Measured.blank(read.nodes, n_efa=n_efa)
    place = {node: i for i, node in enumerate(measured.nodes)}
    if read.pairs:
        figures = np.array([figures_of(probes) for probes in read.pairs.values()])
        rows, columns = np.array([(place[one], place[other]) for one, other in read.pairs]).T
        names = ("p50_s", "p99_s", "bandwidth_bytes_per_s")
        measured = measured.with_pairs(rows, columns, dict(zip(names, figures.T, strict=True)))
    device_s = measured.device_s.copy()
    for (node, device), probes in read.devices.items():
        if device >= device_s.shape[1]:
            n = device_s.shape[1]
            raise GroupError(f"device {device} of {node}: this type has {n}, counted from 0")
        device_s[place[node], device] = figures_of(probes)[0]
    return replace(
        _with_counts(measured, read.counts),
        device_s=device_s,
        collectives=tuple(
            _collective(probe, read.nodes, curve) for probe in read.collectives if probe.rows
        ),
    )


def figures_of(probes: Sequence[Probe]) -> tuple[float, float, float]:
    """Return median and 99th percentile of small messages, and bytes per second of the largest.

    nccom-test can print percentiles. fi_pingpong prints means, so its percentiles are those of
    its rows over all runs of the pair: run it several times. Its first row includes connection
    set-up and is ignored. A probe without rows gives infinite latency and no bandwidth.
    """
    rows = [
        row for probe in probes for row in probe.rows if row.is_measured and not row.is_warm_up
    ]
    if not rows:
        return math.inf, math.inf, 0.0
    least = max(SMALL_BYTES, min(row.size_bytes for row in rows))
    small = [row for row in rows if row.size_bytes <= least]
    largest = max(row.size_bytes for row in rows)
    # Bus bandwidth where the tool prints it.
    rates = [
        row.busbw_bytes_per_s if 0 < row.busbw_bytes_per_s < math.inf else largest / row.time_s
        for row in rows
        if row.size_bytes == largest
    ]
    return (
        float(np.median([row.percentiles_s.get(50, row.time_s) for row in small])),
        float(np.percentile([row.percentiles_s.get(99, row.time_s) for row in small], 99)),
        float(np.median(rates)),
    )


def _with_counts(measured: Measured, counts: Mapping[str, NodeCounts]) -> Measured:
    by_node = [counts.get(node, NodeCounts()) for node in measured.nodes]
    rest_s = [each.rest_s for each in by_node if each.rest_s is not None]

    def column(name: str) -> FloatArray:
        return np.array([np.nan if (v := getattr(t, name)) is None else v for t in by_node])

    return replace(
        measured,
        racks=tuple(each.rack for each in by_node),
        n_devices=column("n_devices"),
        n_efa_seen=column("n_efa"),
        ecc_uncorrected=column("ecc_uncorrected"),
        hardware_errors=column("hardware_errors"),
        rest={
            name: np.array([each.rest.get(name, np.nan) for each in by_node])
            for name in REST_COUNTERS
            if any(name in each.rest for each in by_node)
        },
        rest_s=min(rest_s, default=nan),
    )


def _collective(probe: Probe, nodes: tuple[str, ...], curve: Curve) -> Collective:
    """Return one collective's times by size, out-of-place rows only."""
    if probe.tool == PINGPONG:
        raise GroupError(
            "collective: give the output of nccom-test or nccl-tests, not fi_pingpong"
        )
    rows = {row.size_bytes: row for row in reversed(probe.rows) if not row.in_place}
    sizes = np.array(sorted(rows))
    times = np.array([rows[size].time_s for size in sizes])
    return Collective(nodes, sizes, times, curve(len(nodes), sizes))


def read_probe(data: bytes) -> Probe:
    """Read the output of nccom-test (table or JSON), nccl-tests or fi_pingpong.

    Never raises: lines that are not understood are counted, and a long output is cut.
    """
    data, probe = data[:MAX_BYTES], Probe()
    if data.lstrip().startswith(b"{"):
        with suppress(msgspec.DecodeError, RecursionError, UnicodeError):
            read_report(msgspec.json.decode(data.decode("utf-8", "replace")), probe)
            return probe
    readers = (NccomReader(), NcclTestReader(), PingpongReader())
    for number, line in enumerate(data.splitlines(), start=1):
        probe.n_lines += 1
        pieces = list(pieces_of(line))
        understood = [any(reader.read(piece, probe) for reader in readers) for piece in pieces]
        if pieces and not any(understood):
            probe.n_skipped += 1
            if len(probe.skipped) < MAX_EXAMPLES:
                probe.skipped.append((number, pieces[0].strip()[:MAX_EXAMPLE_CHARS]))
        if len(probe.rows) >= MAX_ROWS:
            break
    return probe


MICRO = 1e-6
MEGA = 1e6
GIGA = 1e9
GIBI = 2.0**30
KIBI = 1024.0
SCALES = {"": 1.0, "k": KIBI, "m": KIBI**2, "g": KIBI**3}
FIGURE = re.compile(r"[=^]?([0-9]{1,18}(?:\.[0-9]{0,9})?(?:e[-+]?[0-9]{1,3})?)([kmg]?)", re.I)
ABSENT = ("n/a", "-", "nan")


def parse_number(word: str) -> float | None:
    """Parse a number with an optional k, m or g; NaN for "n/a", None if it is not a number."""
    if word.lower() in ABSENT:
        return nan
    match = FIGURE.fullmatch(word)
    if match is None:
        return None
    value = float(match[1]) * SCALES[match[2].lower()]
    return value if math.isfinite(value) else nan


def positive_or_nan(value: float | None) -> float:
    return value if value is not None and value > 0 else nan


HEADER = re.compile(r"#\s+size\s+count\s+type\b", re.I)
WRONG_COUNT = re.compile(r"#\s{0,4}Out of bounds values\s{0,8}:\s{0,8}([0-9]{1,12})", re.I)
FAILURES = ("test nccl failure", "test cuda failure", "test failure", "nccl error")
N_RUN = 4
N_HEADS = (2, 3, 4, 5)


class NcclTestReader:
    """Reads nccl-tests; comments start with a hash, rows do not."""

    def __init__(self) -> None:
        self._has_header = False

    def read(self, line: str, probe: Probe) -> bool:
        if HEADER.search(line):
            self._has_header, probe.tool = True, NCCL
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
    if size is None or isnan(size) or any(value is None for run in runs for value in run):
        return []
    return [
        ProbeRow(
            size_bytes=size,
            time_s=positive_or_nan(time_us) * MICRO,
            busbw_bytes_per_s=nan if busbw is None else busbw * GIGA,
            n_errors=None if wrong is None or isnan(wrong) else int(wrong),
            element=words[2] if n_head > 2 else "",
            in_place=bool(place),
        )
        for place, (time_us, _, busbw, wrong) in enumerate(runs)
    ]


SIZE = "size(b)"
TIMES = ("time:avg(us)", "time(us)")
PERCENTILE = re.compile(r"time:p(\d{1,2})\(us\)")
NCCOM_MEAN = re.compile(r"Avg bus bandwidth:\s{0,12}[0-9.]{1,20}\s{0,2}GB/s", re.I)
NCCOM_FAILURES = (
    "failure running",
    "errors found",
    "test failed",
    "is not running",
    "nccom error",
)


class NccomReader:
    """Reads nccom-test; the header names the columns."""

    def __init__(self) -> None:
        self._columns: tuple[str, ...] = ()

    def read(self, line: str, probe: Probe) -> bool:
        words = line.split()
        if words and words[0].lower() == SIZE and "algbw(gb/s)" in line.lower():
            self._columns, probe.tool = tuple(word.lower() for word in words), NCCOM
        elif any(words_of in line.lower() for words_of in NCCOM_FAILURES):
            size = parse_number(words[0]) if words[1:2] == ["Failure"] else None
            probe.failures.append(Failure(line.strip()[:300], positive_or_nan(size)))
        elif self._columns and (row := _row(dict(zip(self._columns, words, strict=False)))):
            probe.rows.append(row)
        else:
            return NCCOM_MEAN.search(line) is not None
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


def _row(words: Mapping[str, str]) -> ProbeRow | None:
    """Parse a row, given as words by column; None without size or time."""
    figures = {name: parse_number(word) for name, word in words.items()}
    size = figures.get(SIZE)
    time_us = next((figures[name] for name in TIMES if name in figures), None)
    if size is None or time_us is None or isnan(size):
        return None
    percentiles = {
        int(match[1]): value * MICRO
        for name, value in figures.items()
        if (match := PERCENTILE.fullmatch(name)) and value is not None and value > 0
    }
    return ProbeRow(
        size_bytes=size,
        time_s=positive_or_nan(time_us) * MICRO,
        # A printed 0 stays 0.
        busbw_bytes_per_s=nan if (busbw := figures.get("busbw(gb/s)")) is None else busbw * GIBI,
        element=words.get("type", ""),
        percentiles_s=percentiles,
    )


COLUMNS = ("bytes", "#sent", "#ack", "total", "time", "mb/sec", "usec/xfer", "mxfers/sec")
PINGPONG_FAILURES = ("fi_", "error", "failed")


class PingpongReader:
    def __init__(self) -> None:
        self._has_header = False
        self._is_first = True

    def read(self, line: str, probe: Probe) -> bool:
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
    if size is None or isnan(size) or each_us is None or rate is None:
        return None
    sent, ack = figures[1], figures[2]
    lost = None if sent is None or ack is None else max(0.0, sent - ack)
    return ProbeRow(
        size_bytes=size,
        time_s=positive_or_nan(each_us) * MICRO,
        busbw_bytes_per_s=rate * MEGA,
        n_errors=None if lost is None or isnan(lost) else int(lost),
        is_warm_up=is_first,
    )
