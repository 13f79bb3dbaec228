"""What a run pays from when on: a list that only grows, so that what was paid stays as it was."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from fleet.models import Run

Entry = dict[str, Any]


def entries(run: Run) -> list[Entry]:
    """Return what a run pays from when on, oldest first; one that never changed has one entry."""
    if run.tariff:
        return [dict(each) for each in run.tariff]
    began = {
        "from_s": run.started_at.timestamp(),
        "n_nodes": run.n_nodes,
        "usd_per_node_hour": run.usd_per_node_hour,
        "basis": run.price_basis,
    }
    return [began]


def is_priced(run: Run) -> bool:
    """Whether anybody has said what a node of the run costs, at any time."""
    return any(each["usd_per_node_hour"] > 0 for each in entries(run))


def with_nodes(run: Run, n_nodes: int, *, now: datetime) -> list[Entry] | None:
    """Return the tariff of a run that has so many nodes from now on.

    Of a run without a price nothing was told that could change: it has had them all along.
    """
    if not is_priced(run):
        return None
    earlier, later = _cut(run, now)
    held = {**earlier[-1], "from_s": now.timestamp(), "n_nodes": n_nodes}
    return [*earlier, held, *({**each, "n_nodes": n_nodes} for each in later)]


def with_prices(
    run: Run, prices: Iterable[tuple[datetime, float, str]], *, now: datetime
) -> list[Entry]:
    """Return the tariff of a run with other prices from now on: (from when, dollars, terms).

    A price of an earlier moment holds from now on: what was paid was paid.
    """
    found, _ = _cut(run, now)
    for at, usd, basis in sorted(prices, key=lambda each: each[0]):
        from_s = max(now, at).timestamp()
        if (usd, basis) != (found[-1]["usd_per_node_hour"], found[-1]["basis"]):
            entry = {
                "from_s": from_s,
                "n_nodes": run.n_nodes,
                "usd_per_node_hour": usd,
                "basis": basis,
            }
            found.append(entry)
    return found


def _cut(run: Run, now: datetime) -> tuple[list[Entry], list[Entry]]:
    """Return a run's entries up to a moment, at least the first, and those to come."""
    first, *rest = entries(run)
    earlier = [each for each in rest if each["from_s"] < now.timestamp()]
    return [first, *earlier], rest[len(earlier) :]
