"""How often a node was the root cause of alerts, compared with its peers."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from telemetry.statistics.peers import chance_of_count, median_with_zeros

HISTORY_DAYS = 30
# The share of fleets of equal nodes in which one of them is called unusual.
UNUSUAL_CHANCE = 0.05


@dataclass(frozen=True, slots=True)
class CauseHistory:
    cause: str
    n_alerts: int
    n_runs: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class AlertHistory:
    """The alerts of 30 days of which a node was the root cause, without drills.

    ``others_median`` is the median count of the ``n_others`` other nodes of its instance type.
    """

    causes: Sequence[CauseHistory]
    n_alerts: int
    n_runs: int
    n_drills: int
    n_others: int
    others_median: float | None
    is_unusual: bool

    @property
    def days(self) -> int:
        return HISTORY_DAYS

    @property
    def last_at(self) -> datetime | None:
        return max((cause.last_at for cause in self.causes), default=None)


class Accusation(NamedTuple):
    """Alerts of one node with the same cause and run."""

    node: str
    instance_type: str
    cause: str
    run_id: int | None
    is_drill: bool
    n_alerts: int
    last_at: datetime


def _n_runs(rows: Iterable[Accusation]) -> int:
    return len({row.run_id for row in rows} - {None})


def history_of(rows: Sequence[Accusation], *, others: Sequence[int], n_nodes: int) -> AlertHistory:
    real = [row for row in rows if not row.is_drill]
    by_cause = defaultdict[str, list[Accusation]](list)
    for row in real:
        by_cause[row.cause].append(row)
    causes = [
        CauseHistory(
            cause,
            n_alerts=sum(row.n_alerts for row in same),
            n_runs=_n_runs(same),
            last_at=max(row.last_at for row in same),
        )
        for cause, same in by_cause.items()
    ]
    n_alerts = sum(row.n_alerts for row in real)
    n_others = max(n_nodes - 1, len(others))
    chance = chance_of_count(n_alerts, total=n_alerts + sum(others), n_parts=n_others + 1)
    return AlertHistory(
        causes=sorted(causes, key=lambda each: (-each.n_alerts, each.cause)),
        n_alerts=n_alerts,
        n_runs=_n_runs(real),
        n_drills=sum(row.n_alerts for row in rows if row.is_drill),
        n_others=n_others,
        others_median=median_with_zeros(others, n_others) if n_others else None,
        is_unusual=n_alerts > 1 and chance * (n_others + 1) < UNUSUAL_CHANCE,
    )
