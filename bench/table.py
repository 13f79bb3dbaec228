"""A table on the console."""

from collections.abc import Iterable


def print_table(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print a title and its figures, aligned."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    print(f"\n{title}")
    for name, figure in rows:
        print(f"  {name:<{width}}  {figure}")
