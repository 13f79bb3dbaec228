"""Rows of nccom-test: columns by their names, whose units are in brackets; GB means GiB here."""

import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from telemetry.ingest.probes.figures import GIBI, MICRO, above_zero, figure
from telemetry.ingest.probes.rows import NCCOM, Failure, Probe, Row

SIZE = "size(b)"
TIMES = ("time:avg(us)", "time(us)")
PERCENTILE = re.compile(r"time:p(\d{1,2})\(us\)")
MEAN = re.compile(r"Avg bus bandwidth:\s{0,12}([0-9.]{1,20})\s{0,2}GB/s", re.I)
FAILURES = ("failure running", "errors found", "test failed", "is not running", "nccom error")


class Nccom:
    """Reads the lines of one output; the header says which column is what."""

    def __init__(self) -> None:
        self._columns: tuple[str, ...] = ()

    def read(self, line: str, probe: Probe) -> bool:
        """Read a line; return whether it was understood."""
        words = line.split()
        if mean := MEAN.search(line):
            probe.mean_busbw_bytes_per_s = above_zero(figure(mean[1])) * GIBI
        elif words and words[0].lower() == SIZE and "algbw(gb/s)" in line.lower():
            self._columns, probe.tool = tuple(word.lower() for word in words), NCCOM
        elif any(words_of in line.lower() for words_of in FAILURES):
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


def _row(words: Mapping[str, str]) -> Row | None:
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
    return Row(
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
