"""The figures of a chart as a table, for those whose browser runs no scripts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fleet.charts.reach import reach_in_words
from fleet.templatetags.units import percent, rate, seconds, si, size, usd

MOST_ROWS = 240

WRITERS: Mapping[str, Callable[[float | None], str]] = {
    "ratio": percent,
    "s": seconds,
    "bytes": size,
    "bytes_per_s": rate,
    "per_s": si,
    "usd": usd,
    "count": si,
}


@dataclass(frozen=True, slots=True)
class Table:
    """Column heads, and rows of as many cells; the newest row first where rows are moments."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    reach: str = ""


def table_of(drawn: Mapping[str, Any]) -> Table:
    """Return what a chart draws (``Figure.as_json``, ``Heat.as_json``) in words."""
    columns = drawn.get("series") or [
        {"label": label, "values": values}
        for label, values in zip(drawn.get("rows", ()), drawn.get("values", ()), strict=True)
    ]
    write = WRITERS.get(drawn["unit"], si)
    names = list(drawn.get("labels", ()))
    order = range(len(names)) if names else _newest_first(len(drawn["t"]))
    first = names or [_moment(second) for second in drawn["t"]]
    heads = ["" if names else "UTC", *(column["label"] for column in columns)]
    rows = [[first[i], *(write(column["values"][i]) for column in columns)] for i in order]
    return Table(heads, rows, reach_in_words(drawn.get("reach", ())))


def _newest_first(n: int) -> range:
    """Count down, leaving out what makes a table too long to read."""
    return range(n - 1, -1, -max(1, -(-n // MOST_ROWS)))


def _moment(second: float) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M:%S}"
