"""Compiles of the fleet, filtered and summed by run, with the unplanned ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Count, Max, Q, QuerySet

from fleet.models import CompileEvent, Run
from fleet.runs.compiles import (
    LOST,
    cache_kind,
    change_lines,
    covered_s,
    short,
    since_text,
    usd_of,
)

Outcome, Verdict = CompileEvent.Outcome, CompileEvent.Verdict
# How far back a page goes; None: all stored events.
SINCE: Mapping[str, timedelta | None] = {
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "ever": None,
}
# Filters of the page: label and condition.
WHAT: Mapping[str, tuple[str, Q]] = {
    "": ("unplanned", Q(verdict__in=LOST)),
    "announced": ("planned", Q(verdict=Verdict.PLANNED)),
    "beside": ("compiled by two processes", Q(verdict=Verdict.BESIDE)),
    "compiled": ("all compiled", Q(outcome=Outcome.MISS)),
    "failed": ("failed", Q(outcome=Outcome.FAIL)),
    "all": ("all, hits too", Q()),
}
MOST_TIMED = 20_000


@dataclass(frozen=True, slots=True)
class RunCompileRow:
    """One run's compiles; ``usd`` is None without a price."""

    run: Run
    n_graphs: int
    n_hits: int
    n_misses: int
    n_failures: int
    wall_s: float
    lost_s: float
    usd: float | None
    beside_s: float
    n_beside: int
    n_processes: int
    cache: str
    compiler: str

    @property
    def hit_ratio(self) -> float | None:
        asked = self.n_hits + self.n_misses + self.n_failures
        return self.n_hits / asked if asked else None

    @property
    def sharing(self) -> str:
        """Whether all nodes share the cache, judged by its path."""
        return cache_kind(self.cache)


@dataclass(frozen=True, slots=True)
class Sums:
    """All runs; ``usd`` is None if no run with lost time has a price."""

    rows: Sequence[RunCompileRow]
    n_graphs: int = 0
    n_hits: int = 0
    n_misses: int = 0
    n_failures: int = 0
    wall_s: float = 0.0
    lost_s: float = 0.0
    usd: float | None = None
    n_unpriced: int = 0
    unshared: Sequence[RunCompileRow] = field(default_factory=tuple)

    @property
    def hit_ratio(self) -> float | None:
        asked = self.n_hits + self.n_misses + self.n_failures
        return self.n_hits / asked if asked else None


@dataclass(frozen=True, slots=True)
class CompileRow:
    event: CompileEvent
    usd: float | None

    @property
    def changes(self) -> Sequence[str]:
        return change_lines(self.event.change)

    @property
    def short(self) -> str:
        return short(self.event.change)

    @property
    def before(self) -> str:
        return since_text(self.event)

    @property
    def before_s(self) -> float | None:
        return (self.event.change or {}).get("before_s")


def fleet_compile_sums(events: QuerySet[CompileEvent]) -> Sums:
    """Sum compiles by run and in total, with three queries."""
    found = list(
        events.values("run").annotate(
            graphs=Count("module", distinct=True, filter=~Q(module="")),
            hits=Count("pk", filter=Q(outcome=Outcome.HIT)),
            misses=Count("pk", filter=Q(outcome=Outcome.MISS)),
            failures=Count("pk", filter=Q(outcome=Outcome.FAIL)),
            beside=Count("pk", filter=Q(verdict=Verdict.BESIDE)),
            processes=Count("process", distinct=True, filter=Q(outcome=Outcome.MISS)),
            where=Max("cache"),
            version=Max("compiler"),
        )
    )
    runs = Run.objects.defer("plan", "clock").in_bulk([each["run"] for each in found])
    spans = _spans(events)
    rows = [_row(runs[each["run"]], each, spans.get(each["run"], ())) for each in found]
    rows.sort(key=lambda row: (-row.lost_s, -row.wall_s, row.run.name))
    lossy = [row for row in rows if row.lost_s]
    known = [row.usd for row in lossy if row.usd is not None]
    return Sums(
        rows=rows,
        **{
            name: sum(getattr(row, name) for row in rows)
            for name in ("n_graphs", "n_hits", "n_misses", "n_failures", "wall_s", "lost_s")
        },
        usd=sum(known) if known or not lossy else None,
        n_unpriced=len(lossy) - len(known),
        unshared=[row for row in rows if row.n_beside],
    )


Span = tuple[float, float, str]


def _spans(events: QuerySet[CompileEvent]) -> Mapping[int, Sequence[Span]]:
    """Return begin, length and verdict of every timed compile, by run, in order."""
    timed = events.exclude(seconds=None).exclude(at=None).order_by("at")
    found: dict[int, list[Span]] = {}
    rows = timed.values_list("run", "at", "seconds", "verdict")[:MOST_TIMED]
    for run, at, seconds, verdict in rows:
        if at is not None and seconds is not None:
            found.setdefault(run, []).append((at.timestamp(), seconds, verdict))
    return found


def _row(run: Run, found: Mapping[str, Any], spans: Sequence[Span]) -> RunCompileRow:
    lost = [(at, length) for at, length, verdict in spans if verdict in LOST]
    return RunCompileRow(
        run,
        n_graphs=found["graphs"],
        n_hits=found["hits"],
        n_misses=found["misses"],
        n_failures=found["failures"],
        wall_s=covered_s((at, length) for at, length, _ in spans),
        lost_s=covered_s(lost),
        usd=usd_of(run, lost),
        beside_s=sum(length for _, length, verdict in spans if verdict == Verdict.BESIDE),
        n_beside=found["beside"],
        n_processes=found["processes"],
        cache=found["where"],
        compiler=found["version"],
    )


def compile_rows(events: Iterable[CompileEvent]) -> Sequence[CompileRow]:
    return [
        CompileRow(event, usd_of(event.run, [(event.at.timestamp(), event.seconds)]))
        if event.at and event.seconds
        else CompileRow(event, None)
        for event in events
    ]
