"""Results of a benchmark: tables on the console, or one JSON object."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

_as_json = False
_tables: list[dict[str, Any]] = []


def collect_json() -> None:
    """From now on collect tables for `print_json` instead of printing them."""
    global _as_json  # noqa: PLW0603 - one benchmark per process
    _as_json = True


def print_table(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print a title and its aligned figures."""
    rows = list(rows)
    if _as_json:
        _tables.append({"title": title, "figures": [list(row) for row in rows]})
        return
    width = max((len(name) for name, _ in rows), default=0)
    print(f"\n{title}")
    for name, figure in rows:
        print(f"  {name:<{width}}  {figure}")


def print_json(bench: str, figures: Mapping[str, Any] | None) -> None:
    """Print a benchmark's own figures, or else its tables, as one line of JSON."""
    print(json.dumps(figures if figures is not None else {"bench": bench, "tables": _tables}))
