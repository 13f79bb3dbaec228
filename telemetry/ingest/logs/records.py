"""Lines of a training log: prefixes, and records of steps, hardware errors and totals."""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from math import isnan, nan
from pathlib import Path
from typing import BinaryIO, cast

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
    # absl and glog: severity, month and day, thread, source file.
    re.compile(
        rf"[IWEF](?P<month>\d\d)(?P<day>\d\d) {CLOCK}\s+\d{{1,20}} [\w.<>-]{{1,80}}:\d+\]\s*",
        re.ASCII,
    ),
)
TAGS = (
    re.compile(r"\[(?P<who>pod/[^\]\s]{1,200})\]\s*", re.ASCII),
    re.compile(r"\[(?:rank|default|local_rank)?[ :=]?(?P<rank>\d{1,6})\]:?\s*", re.ASCII),
    re.compile(r"\[\d{1,6},(?P<rank>\d{1,6})\]<std(?:out|err)>:\s?", re.ASCII),
    re.compile(r"\s{0,8}(?P<rank>\d{1,6}):\s", re.ASCII),
    re.compile(r"[Rr]ank[ _:=]?(?P<rank>\d{1,6})[\]:,]?\s+", re.ASCII),
    re.compile(r"std(?:out|err) [FP] ", re.ASCII),
    re.compile(r"\[[A-Za-z_]{1,20}\]:?\s*", re.ASCII),
)
MAX_PREFIXES = 6
# The time of a line of JSON: ISO 8601, or Unix seconds or milliseconds.
STAMP = re.compile(r'"[_@]?(?:timestamp|time|ts)"\s{0,4}:\s{0,4}"?([^",}]{1,40})', re.ASCII)
UNIX = re.compile(r"\d{9,10}(?:\.\d{0,9})?|\d{12,13}", re.ASCII)
FIRST_YEAR, LAST_YEAR = 2000, 2199
GZIP = b"\x1f\x8b"
# Progress bars rewrite one line for hours; a line longer than this is read in part.
MAX_LINE_BYTES = 1 << 20
MAX_PIECE_CHARS = 16_384
COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
UNPRINTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line without its prefixes (time, pod, rank).

    ``at_s`` is in Unix seconds, NaN without a time. ``source`` distinguishes the streams of a
    mixed log: file, pod, rank. ``rank`` is None if unknown.
    """

    number: int
    text: str
    at_s: float = nan
    source: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The figures of a step in one line, in seconds, sequences and tokens; NaN if missing.

    ``elapsed_s`` is a progress bar's own clock, ``rate_s`` its smoothed seconds per iteration;
    ``consumed`` counts the sequences trained so far, ``consumed_tokens`` the tokens.
    """

    step: int
    at_s: float = nan
    step_s: float = nan
    seq_per_s: float = nan
    tokens_per_s: float = nan
    tokens: float = nan
    loss: float = nan
    grad_norm: float = nan
    learning_rate: float = nan
    global_batch: float = nan
    consumed: float = nan
    consumed_tokens: float = nan
    elapsed_s: float = nan
    rate_s: float = nan


@dataclass(frozen=True, slots=True)
class HardwareError:
    """A device error that the kernel driver logged."""

    kind: str
    at_s: float = nan
    node: str = ""
    instance: str = ""
    device: int | None = None
    core: int | None = None
    serial: str = ""
    action: str = ""


@dataclass(frozen=True, slots=True)
class TrainingTotals:
    """The totals that a training script logs at its end; NaN if missing."""

    runtime_s: float = nan
    n_steps: float = nan
    n_tokens: float = nan
    global_batch: float = nan


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prefix of a line: its time (Unix seconds, or NaN), source, rank and end."""

    at_s: float = nan
    source: str = ""
    rank: int | None = None
    end: int = 0


def prefix_of(text: str, *, year: int, utc_offset_s: float = 0.0) -> Prefix:
    """Parse the prefixes of a line; ``year`` and ``utc_offset_s`` are for times that lack them."""
    at_s, has_zone, who, rank = nan, False, "", None
    end = len(text) - len(text.lstrip())
    for _ in range(MAX_PREFIXES):
        if time := next((m for each in TIMES if (m := each.match(text, end))), None):
            second = _unix_s(time, year=year, utc_offset_s=utc_offset_s)
            is_better = isnan(at_s) or (not has_zone and bool(_group(time, "zone")))
            if is_better and not isnan(second):
                at_s, has_zone = second, bool(_group(time, "zone"))
            end = time.end()
        elif tag := next((m for each in TAGS if (m := each.match(text, end))), None):
            who = _group(tag, "who") or who
            rank = int(found) if (found := _group(tag, "rank")) else rank
            end = tag.end()
        else:
            break
    if isnan(at_s) and text.startswith("{", end) and (stamp := STAMP.search(text, end)):
        if UNIX.fullmatch(stamp[1]):
            at_s = float(stamp[1]) / (1e3 if stamp[1].isdecimal() and len(stamp[1]) > 10 else 1.0)
        elif time := TIMES[0].match(stamp[1]):
            at_s = _unix_s(time, year=year, utc_offset_s=utc_offset_s)
    return Prefix(at_s, f"{who}#{'' if rank is None else rank}", rank, end)


def _group(match: re.Match[str], name: str) -> str:
    return match.groupdict().get(name) or ""


def _unix_s(time: re.Match[str], *, year: int, utc_offset_s: float) -> float:
    """Return Unix seconds; NaN if the date does not exist."""
    found = time.groupdict()
    zone = timezone(timedelta(seconds=utc_offset_s))
    if text := found.get("zone"):
        sign = -1 if text[0] == "-" else 1
        hours, minutes = ("0", "0") if text == "Z" else (text[1:3], text[-2:])
        zone = timezone(sign * timedelta(hours=int(hours), minutes=int(minutes)))
    month = MONTHS.index(found["name"]) + 1 if "name" in found else int(found["month"])
    try:
        moment = datetime(
            int(found.get("year") or year),
            month,
            int(found["day"]),
            int(found["h"]),
            int(found["m"]),
            int(found["s"]),
            tzinfo=zone,
        )
    except ValueError:
        return nan
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        return nan
    digits = found.get("frac") or "0"
    # Neuron's compiler writes milliseconds as six digits.
    is_ms = found.get("colon") and len(digits) == 6 and digits.startswith("000")
    return moment.timestamp() + int(digits) / (1e3 if is_ms else 10.0 ** len(digits))


def opened(path: Path) -> BinaryIO:
    """Open a log, gzipped or not, whatever its name."""
    with path.open("rb") as file:
        is_gzipped = file.read(2) == GZIP
    return cast("BinaryIO", gzip.open(path)) if is_gzipped else path.open("rb")


def lines_of(file: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the number of each line, its first ``MAX_LINE_BYTES``, and whether it is whole.

    A truncated gzip file ends where the data ends.
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
    """Yield the states of a line in turn; a carriage return starts a new one."""
    text = UNPRINTED.sub("", COLOURS.sub("", line.decode("utf-8", "replace")))
    for piece in text.rstrip("\n").split("\r"):
        if piece.strip():
            yield piece[:MAX_PIECE_CHARS]
