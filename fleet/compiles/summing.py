"""The compile cache of a run, summed up: graphs, who found, compiled or failed to, how long."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Exists, Max, Min, OuterRef, Q, Sum

from fleet.compiles.words import changes_in_words, sharing
from fleet.models import CompileEvent, Run
from fleet.models.run import RunQuerySet

MOST_GRAPHS = 200
MOST_ACCIDENTS = 4
Outcome, Verdict = CompileEvent.Outcome, CompileEvent.Verdict
LOST = (Verdict.AGAIN, Verdict.AMID)


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph with one set of flags: how many processes found, compiled or failed it."""

    module: str
    n_hits: int
    n_misses: int
    n_failures: int
    seconds: float | None
    longest_s: float | None
    first_at: datetime | None

    @property
    def graph(self) -> str:
        """What the graph's operations hash to."""
        return self.module.removeprefix("MODULE_").partition("+")[0]

    @property
    def flags(self) -> str:
        """What the flags hash to; empty where the log does not say."""
        return self.module.partition("+")[2]

    @property
    def is_compiled_again(self) -> bool:
        """Whether more than one process compiled it: they share no cache, or not in time."""
        return self.n_misses > 1


@dataclass(frozen=True, slots=True)
class Accident:
    """A compile that nobody had announced, and what had changed in its key."""

    at: datetime
    seconds: float
    change: Mapping[str, Any] | None

    @property
    def changes(self) -> Sequence[str]:
        """What changed, a line for each part of the key."""
        return changes_in_words(self.change)


@dataclass(frozen=True, slots=True)
class Compiles:
    """A run's compiles; ``wall_s`` counts time in which anybody compiled once.

    ``lost_s`` is that of the unannounced ones, ``usd`` what the run was paid meanwhile (None
    where nobody knows), ``beside_s`` what processes compiled that another compiled as well.
    """

    graphs: tuple[Graph, ...]
    n_graphs: int
    n_hits: int
    n_misses: int
    n_failures: int
    seconds: float
    wall_s: float | None
    n_timed: int
    cache: str
    compiler: str
    lost_s: float = 0.0
    usd: float | None = None
    accidents: tuple[Accident, ...] = ()
    n_accidents: int = 0
    beside_s: float = 0.0

    @property
    def sharing(self) -> str:
        """Whether all nodes see the cache, as far as its path tells."""
        return sharing(self.cache)

    @property
    def hit_ratio(self) -> float | None:
        """Share of the requests that the cache answered; failures count as not answered."""
        asked = self.n_hits + self.n_misses + self.n_failures
        return self.n_hits / asked if asked else None

    @property
    def n_flag_changes(self) -> int:
        """How many graphs were asked for with more than one set of flags."""
        sets: dict[str, set[str]] = {}
        for each in self.graphs:
            if each.module:
                sets.setdefault(each.graph, set()).add(each.flags)
        return sum(len(flags) > 1 for flags in sets.values())

    def as_json(self) -> dict[str, object]:
        """Return the figures as a command prints them."""
        return {
            "graphs": self.n_graphs,
            "hits": self.n_hits,
            "misses": self.n_misses,
            "failures": self.n_failures,
            "hit_ratio": self.hit_ratio,
            "seconds": self.seconds,
            "wall_s": self.wall_s,
            "cache": self.cache or None,
            "compiler": self.compiler or None,
        }


def saying_whether_compiled(runs: RunQuerySet) -> RunQuerySet:
    """Ask, along with the runs, which of them have compiles at all: most have none."""
    return runs.annotate(has_compiles=Exists(CompileEvent.objects.filter(run=OuterRef("pk"))))


def summed_up(run: Run) -> Compiles:
    """Sum up a run's compiles; of very many graphs, only the costliest are listed."""
    found = list(_by_module(run))
    graphs = sorted(map(_graph, found), key=_costliest_first)
    timed = _timed(run)
    spans = [(at.timestamp(), seconds) for at, seconds, _, _ in timed]
    lost = [Accident(at, seconds, change) for at, seconds, why, change in timed if why in LOST]
    lost_spans = [(each.at.timestamp(), each.seconds) for each in lost]
    return Compiles(
        graphs=tuple(graphs[:MOST_GRAPHS]),
        n_graphs=sum(bool(each.module) for each in graphs),
        n_hits=sum(each.n_hits for each in graphs),
        n_misses=sum(each.n_misses for each in graphs),
        n_failures=sum(each.n_failures for each in graphs),
        seconds=sum(each.seconds or 0.0 for each in graphs),
        wall_s=covered_s(spans) if spans else None,
        n_timed=len(spans),
        cache=max((row["where"] for row in found), default=""),
        compiler=max((row["version"] for row in found), default=""),
        lost_s=covered_s(lost_spans),
        usd=usd_of(run, lost_spans),
        accidents=tuple(lost[: -MOST_ACCIDENTS - 1 : -1]),
        n_accidents=len(lost),
        beside_s=sum(seconds for _, seconds, why, _ in timed if why == Verdict.BESIDE),
    )


def _graph(row: Mapping[str, Any]) -> Graph:
    return Graph(
        row["module"],
        n_hits=row["hits"],
        n_misses=row["misses"],
        n_failures=row["failures"],
        seconds=row["total_s"],
        longest_s=row["longest_s"],
        first_at=row["first_at"],
    )


Timed = tuple[datetime, float, str, Mapping[str, Any] | None]


def _timed(run: Run) -> list[Timed]:
    """Return begin, length, verdict and change of every compile that has both, in order."""
    timed = run.compiles.exclude(seconds=None).exclude(at=None).order_by("at")
    return [
        (at, seconds, verdict, change)
        for at, seconds, verdict, change in timed.values_list("at", "seconds", "verdict", "change")
        if at is not None and seconds is not None
    ]


def _by_module(run: Run) -> Iterable[Mapping[str, Any]]:
    """Return what the database sums up by module; of several caches and compilers, the last."""
    return (
        run.compiles.order_by()
        .values("module")
        .annotate(
            hits=Count("pk", filter=Q(outcome=Outcome.HIT)),
            misses=Count("pk", filter=Q(outcome=Outcome.MISS)),
            failures=Count("pk", filter=Q(outcome=Outcome.FAIL)),
            total_s=Sum("seconds"),
            longest_s=Max("seconds"),
            first_at=Min("at"),
            where=Max("cache"),
            version=Max("compiler"),
        )
    )


def _costliest_first(graph: Graph) -> tuple[float, int, str]:
    return -(graph.seconds or 0.0), -graph.n_failures, graph.module


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return (begin, end) of stretches in which at least one span lasted: of (begin, length)."""
    stretches: list[tuple[float, float]] = []
    for begin, length in spans:
        if stretches and begin <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(stretches[-1][1], begin + length))
        else:
            stretches.append((begin, begin + length))
    return stretches


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one span lasted: of (begin, length) by begin, overlaps once."""
    return sum(end - begin for begin, end in merged(spans))


def usd_of(run: Run, spans: Iterable[tuple[float, float]]) -> float | None:
    """Return what the run's nodes were paid while somebody compiled; None without a price."""
    rates = run.rates
    usd = sum(rates.usd(begin, end) for begin, end in merged(spans))
    return usd if math.isfinite(usd) and run.usd_per_hour else None
