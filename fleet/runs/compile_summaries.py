"""What is known of compiles: of a run, of its graphs, and of the fleet."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Exists, Max, Min, OuterRef, Q, QuerySet, Sum

from fleet.models import CompileEvent, Run
from fleet.models.run import RunQuerySet
from fleet.runs.compiles import LOST, Outcome, Verdict

# The compiler's default, and other places that only one node can access.
LOCAL_PATHS = ("/var/tmp/", "/tmp/", "/dev/shm/", "/scratch/local", "/local")  # noqa: S108
SHARED_PATHS = ("s3://", "/fsx", "/efs", "/lustre", "/shared", "/mnt/")
UNKNOWN_KEY = "unknown: no earlier compile was reported"


def change_lines(change: Mapping[str, Any] | None) -> Sequence[str]:
    if change is None:
        return []
    return [_line(part) for part in change.get("parts", ())] or [UNKNOWN_KEY]


def _line(part: Mapping[str, str]) -> str:
    what, before, after = (part.get(name, "") for name in ("what", "before", "after"))
    sentences = {
        "compiler": f"compiler: neuronx-cc {before} became {after}",
        "flags": _flags(before, after),
        "shape": f"shapes: {before} became {after}",
        "graph": "the graph: its shapes or operations are new",
        "cache": f"cache: {before} became {after}",
        "nothing": "nothing in its key: the cache lost it, or this process cannot read the cache",
    }
    return sentences.get(what, what)


def _flags(before: str, after: str) -> str:
    if before and after:
        return f"flags: {before} became {after}"
    if after:
        return f"flags: {after} added"
    if before:
        return f"flags: {before} removed"
    return "flags: the hash changed; the flags are unknown"


def short(change: Mapping[str, Any] | None) -> str:
    """Name the parts that changed: ``flags, compiler``."""
    names = {"nothing": "same key", "graph": "new graph"}
    parts = (change or {}).get("parts", ())
    return ", ".join(names.get(part["what"], part["what"]) for part in parts) or "not known"


def cache_kind(path: str) -> str:
    """Classify a cache by its path: shared between nodes, local or unknown.

    Only the path is known: ``s3://`` and the usual mounts of FSx, EFS and NFS are shared, the
    compiler's default ``/var/tmp/neuron-compile-cache`` is each node's own.
    """
    if path.startswith(SHARED_PATHS):
        return "shared"
    return "local" if path.startswith(LOCAL_PATHS) else "unknown"


MOST_GRAPHS = 200
MAX_UNPLANNED = 4
# How often the cache had a graph, and how often it was compiled or could not be.
REQUESTS = {
    "n_hits": Count("pk", filter=Q(outcome=Outcome.HIT)),
    "n_misses": Count("pk", filter=Q(outcome=Outcome.MISS)),
    "n_failures": Count("pk", filter=Q(outcome=Outcome.FAIL)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRequests:
    """Requests of a compile cache: those that found, compiled or could not compile a graph."""

    n_hits: int = 0
    n_misses: int = 0
    n_failures: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Share of the requests that the cache served; failures count as misses."""
        asked = self.n_hits + self.n_misses + self.n_failures
        return self.n_hits / asked if asked else None


@dataclass(frozen=True, slots=True)
class CompiledGraph(CacheRequests):
    """One graph with one set of flags."""

    module: str
    seconds: float | None
    longest_s: float | None
    first_at: datetime | None

    @property
    def graph(self) -> str:
        """Hash of the graph's operations."""
        return self.module.removeprefix("MODULE_").partition("+")[0]

    @property
    def flags(self) -> str:
        """Hash of the flags; empty where the log has none."""
        return self.module.partition("+")[2]


@dataclass(frozen=True, slots=True)
class UnplannedCompile:
    at: datetime
    seconds: float
    change: Mapping[str, Any] | None

    @property
    def changes(self) -> Sequence[str]:
        return change_lines(self.change)


@dataclass(frozen=True, slots=True)
class CompileSummary(CacheRequests):
    """A run's compiles; ``wall_s`` counts time in which several processes compiled once.

    ``seconds`` is that of all processes, None if no compile has a known duration.
    ``lost_s`` is that of the unplanned ones, ``usd`` the cost of the run in that time (None if
    unknown), ``beside_s`` that of compiles which another process did as well.
    """

    graphs: tuple[CompiledGraph, ...]
    n_graphs: int
    seconds: float | None
    wall_s: float | None
    cache: str
    compiler: str
    lost_s: float = 0.0
    usd: float | None = None
    accidents: tuple[UnplannedCompile, ...] = ()
    n_accidents: int = 0
    beside_s: float = 0.0

    @property
    def sharing(self) -> str:
        """Whether all nodes share the cache, judged by its path."""
        return cache_kind(self.cache)

    @property
    def n_flag_changes(self) -> int:
        """How many graphs were compiled with more than one set of flags."""
        sets: dict[str, set[str]] = {}
        for graph in self.graphs:
            if graph.module:
                sets.setdefault(graph.graph, set()).add(graph.flags)
        return sum(len(flags) > 1 for flags in sets.values())

    def as_json(self) -> dict[str, object]:
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


def with_compile_flag(runs: RunQuerySet) -> RunQuerySet:
    return runs.annotate(has_compiles=Exists(CompileEvent.objects.filter(run=OuterRef("pk"))))


def compile_summary(run: Run) -> CompileSummary:
    """Summarise a run's compiles; of many graphs only the most expensive are listed."""
    rows: list[Any] = list(
        run.compiles.order_by()
        .values("module")
        .annotate(
            **REQUESTS,
            total_s=Sum("seconds"),
            longest_s=Max("seconds"),
            first_at=Min("at"),
            where=Max("cache"),
            version=Max("compiler"),
        )
    )
    graphs = sorted(
        (
            CompiledGraph(
                row["module"],
                **{name: row[name] for name in REQUESTS},
                seconds=row["total_s"],
                longest_s=row["longest_s"],
                first_at=row["first_at"],
            )
            for row in rows
        ),
        key=lambda graph: (-(graph.seconds or 0.0), -graph.n_failures, graph.module),
    )
    dated = run.compiles.exclude(seconds=None).exclude(at=None).order_by("at")
    timed = [
        (at, seconds, verdict, change)
        for at, seconds, verdict, change in dated.values_list("at", "seconds", "verdict", "change")
        if at is not None and seconds is not None
    ]
    spans = [(at.timestamp(), seconds) for at, seconds, _, _ in timed]
    lost = [
        UnplannedCompile(at, seconds, change) for at, seconds, why, change in timed if why in LOST
    ]
    lost_spans = [(each.at.timestamp(), each.seconds) for each in lost]
    known_s = [each.seconds for each in graphs if each.seconds is not None]
    n_compiled = sum(each.n_misses + each.n_failures for each in graphs)
    return CompileSummary(
        graphs=tuple(graphs[:MOST_GRAPHS]),
        n_graphs=sum(bool(each.module) for each in graphs),
        **{name: sum(getattr(each, name) for each in graphs) for name in REQUESTS},
        seconds=sum(known_s) if known_s or not n_compiled else None,
        wall_s=covered_s(spans) if spans else None,
        cache=max((row["where"] for row in rows), default=""),
        compiler=max((row["version"] for row in rows), default=""),
        lost_s=covered_s(lost_spans),
        usd=usd_of(run, lost_spans),
        accidents=tuple(lost[: -MAX_UNPLANNED - 1 : -1]),
        n_accidents=len(lost),
        beside_s=sum(seconds for _, seconds, why, _ in timed if why == Verdict.BESIDE),
    )


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge spans (start, length) that overlap into (start, end)."""
    stretches: list[tuple[float, float]] = []
    for begin, length in spans:
        if stretches and begin <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(stretches[-1][1], begin + length))
        else:
            stretches.append((begin, begin + length))
    return stretches


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Total seconds covered by spans (start, length), overlaps counted once."""
    return sum(end - begin for begin, end in merged(spans))


def usd_of(run: Run, spans: Iterable[tuple[float, float]]) -> float | None:
    """Cost of the run's nodes during compiles; None without a price."""
    rates = run.rates
    usd = sum(rates.usd(begin, end) for begin, end in merged(spans))
    return usd if math.isfinite(usd) and run.usd_per_hour else None


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
class RunCompileRow(CacheRequests):
    """One run's compiles; ``usd`` is None without a price."""

    run: Run
    n_graphs: int
    wall_s: float
    lost_s: float
    usd: float | None
    beside_s: float
    n_beside: int
    n_processes: int
    cache: str
    compiler: str

    @property
    def sharing(self) -> str:
        """Whether all nodes share the cache, judged by its path."""
        return cache_kind(self.cache)


@dataclass(frozen=True, slots=True)
class FleetCompiles(CacheRequests):
    """All runs; ``usd`` is None if no run with lost time has a price."""

    rows: Sequence[RunCompileRow]
    n_graphs: int = 0
    wall_s: float = 0.0
    lost_s: float = 0.0
    usd: float | None = None
    n_unpriced: int = 0
    unshared: Sequence[RunCompileRow] = field(default_factory=tuple)


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
        """Which earlier compile, of which run, it is compared with."""
        change = self.event.change or {}
        did = {"hit": "found in the cache", "miss": "compiled"}.get(change.get("before", ""), "")
        by = f" by {change['run']}" if change.get("run") else ""
        return f"{did}{by}" if did else ""

    @property
    def before_s(self) -> float | None:
        return (self.event.change or {}).get("before_s")


def fleet_compile_sums(events: QuerySet[CompileEvent]) -> FleetCompiles:
    """Sum compiles by run and in total, with three queries."""
    sums: list[Any] = list(
        events.values("run").annotate(
            graphs=Count("module", distinct=True, filter=~Q(module="")),
            **REQUESTS,
            beside=Count("pk", filter=Q(verdict=Verdict.BESIDE)),
            processes=Count("process", distinct=True, filter=Q(outcome=Outcome.MISS)),
            where=Max("cache"),
            version=Max("compiler"),
        )
    )
    runs = Run.objects.defer("plan", "clock").in_bulk([each["run"] for each in sums])
    # Begin, length and verdict of every timed compile, by run.
    spans: dict[int, list[tuple[float, float, str]]] = {}
    timed = events.exclude(seconds=None).exclude(at=None).order_by("at")
    for key, at, seconds, verdict in timed.values_list("run", "at", "seconds", "verdict")[
        :MOST_TIMED
    ]:
        if at is not None and seconds is not None:
            spans.setdefault(key, []).append((at.timestamp(), seconds, verdict))
    rows = []
    for each in sums:
        run, mine = runs[each["run"]], spans.get(each["run"], ())
        lost = [(begin, length) for begin, length, verdict in mine if verdict in LOST]
        beside = (length for _, length, verdict in mine if verdict == Verdict.BESIDE)
        rows.append(
            RunCompileRow(
                run,
                n_graphs=each["graphs"],
                **{name: each[name] for name in REQUESTS},
                wall_s=covered_s((begin, length) for begin, length, _ in mine),
                lost_s=covered_s(lost),
                usd=usd_of(run, lost),
                beside_s=sum(beside),
                n_beside=each["beside"],
                n_processes=each["processes"],
                cache=each["where"],
                compiler=each["version"],
            )
        )
    rows.sort(key=lambda row: (-row.lost_s, -row.wall_s, row.run.name))
    lossy = [row for row in rows if row.lost_s]
    known = [row.usd for row in lossy if row.usd is not None]
    return FleetCompiles(
        rows=rows,
        **{
            name: sum(getattr(row, name) for row in rows)
            for name in ("n_graphs", *REQUESTS, "wall_s", "lost_s")
        },
        usd=sum(known) if known or not lossy else None,
        n_unpriced=len(lossy) - len(known),
        unshared=[row for row in rows if row.n_beside],
    )


def compile_rows(events: Iterable[CompileEvent]) -> Sequence[CompileRow]:
    return [
        CompileRow(event, usd_of(event.run, [(event.at.timestamp(), event.seconds)]))
        if event.at and event.seconds
        else CompileRow(event, None)
        for event in events
    ]
