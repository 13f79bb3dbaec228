"""Compiles: requests to the compile cache, one by one, by run, and over the fleet."""

from datetime import UTC, datetime
from typing import Any, Literal

from django.db.models import QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Path, Query, Router, Schema

from fleet.api.auth import needs
from fleet.api.fields import Key, NullableText, OptionalTime, ResponseSchema, RunName, Text, doc
from fleet.api.paging import MAX_LIMIT, NewestFirst, Paging, paginate
from fleet.models import CompileEvent, Run
from fleet.models.run import CompileEventQuerySet
from fleet.runs.compile_summaries import (
    WHAT,
    CompiledGraph,
    CompileRow,
    CompileSummary,
    FleetCompiles,
    RunCompileRow,
    UnplannedCompile,
    compile_rows,
    compile_summary,
    fleet_compile_sums,
)
from telemetry.compiles import graph_of

router = Router(tags=["compiles"])
run_router = Router(tags=["runs"])
# Values of `kind`, and their names in the filter of the page.
KINDS = {
    "": "all",
    "unannounced": "",
    "beside": "beside",
    "compiled": "compiled",
    "failed": "failed",
}


class KeyChangeOut(ResponseSchema):
    """A part of a cache key that differs from the last hit or compile of the graph."""

    what: str = doc(
        "compiler, flags, graph, shape, cache, or nothing: the key is the same.", "flags"
    )
    before: str = doc("Old value; empty if unknown.")
    after: str = doc("New value.")


class CompileOut(ResponseSchema, source=CompileEvent):
    """One request of a process for a compiled graph."""

    id = doc("Number of the event.", 17)
    run: str = doc("Name of the run.", "llama")
    outcome = doc("hit, miss or fail.", "miss")
    verdict: NullableText = doc(
        "Of a miss: first, planned, again (unplanned), amid (unplanned, during training) or "
        "beside (while another process compiled it). Null if not judged.",
        "again",
    )
    module = doc("MODULE_<graph>+<flags>, hashed; empty if unknown.")
    graph: str = doc("Hash of the graph's operations.")
    at = doc("Time of the hit, or start of the compile, UTC.")
    seconds = doc("Duration of the compile; null if unknown.")
    usd: float | None = doc("Cost of the run's nodes meanwhile, US dollars.")
    changes: list[KeyChangeOut] | None = doc(
        "Changes of the key of an unplanned compile; empty: unknown."
    )
    words: list[str] = doc("The changes as text.")
    before_at: datetime | None = doc("Time of the last hit or compile of the graph.")
    before: str = doc("Whether that was a hit or a compile, and by which run.")
    rank = doc("Rank of the process; null if unknown.")
    process = doc("Source and ID of the process.")
    compiler = doc("Version of neuronx-cc.")
    flags = doc("Flags of the compiler.")
    shape = doc("Input shapes, if the job reports them.")
    cache = doc("Location of the cache.", "/fsx/neuron-cache")


class CompilePage(NewestFirst[CompileOut]):
    """A page of the compile log."""


class CompileFigures(ResponseSchema, source=CompileSummary):
    """Counts and durations of requests to the cache; null if unknown."""

    n_graphs = doc("Number of graphs, by flags.")
    n_hits = doc("Requests found in the cache.")
    n_misses = doc("Requests that were compiled.")
    n_failures = doc("Requests that failed.")
    hit_ratio = doc("Hits of all requests, 0 to 1.")
    wall_s = doc("Seconds in which any process compiled, summed over runs.")
    lost_s = doc("Seconds of unplanned compiles.")
    lost_usd: float | None = doc("Cost of unplanned compiles, US dollars.")


class CompileRunOut(CompileFigures, source=RunCompileRow):
    """Compiles of one run."""

    run: str = doc("Name of the run.", "llama")
    team: str = doc("Its team.", "LLM")
    beside_s = doc("Seconds in which processes compiled what another process compiled, too.")
    n_beside = doc("Number of such compiles.")
    n_processes = doc("Processes that compiled.")
    cache = doc("Location of its cache.", "/fsx/neuron-cache")
    sharing = doc("shared (by several nodes), local or unknown.")
    compiler = doc("Newest version of neuronx-cc.")


class CompileSums(CompileFigures, source=FleetCompiles):
    """Compiles of the fleet, and by run: most lost time first."""

    n_runs: int = doc("Number of runs with requests to a cache.")
    n_unpriced = doc("Runs with lost time but no price; not in `lost_usd`.")
    runs: list[CompileRunOut] = doc("The first runs, up to `limit`.")


class GraphOut(ResponseSchema, source=CompiledGraph):
    """One graph with one set of flags."""

    module = doc("MODULE_<graph>+<flags>, hashed; empty if unknown.")
    graph = doc("Hash of its operations.")
    n_hits = doc("Processes that found it.")
    n_misses = doc("Processes that compiled it.")
    n_failures = doc("Processes that failed to compile it.")
    seconds = doc("Seconds of all its compiles.")
    longest_s = doc("Seconds of the longest compile.")
    first_at = doc("Time of its first request, UTC.")


class AccidentOut(ResponseSchema, source=UnplannedCompile):
    """An unplanned compile."""

    at = doc("Start, UTC.")
    seconds = doc("Duration in seconds.")
    changes: list[KeyChangeOut] | None = doc("Changes of its key.")
    words: list[str] = doc("The changes as text.")


class RunCompiles(CompileFigures, source=CompileSummary):
    """Requests of one run to its compile cache."""

    run: str = doc("Name of the run.", "llama")
    seconds = doc("Seconds of all compiles, summed over processes; null if unknown.")
    beside_s = doc("Seconds spent on what another process compiled, too.")
    n_flag_changes = doc("Graphs requested with more than one set of flags.")
    cache: NullableText = doc("Location of its cache; null: unknown.")
    sharing = doc("shared (by several nodes), local or unknown.")
    compiler: NullableText = doc("Newest version of neuronx-cc.")
    n_accidents = doc("Number of unplanned compiles.")
    accidents: list[AccidentOut] = doc("The newest four of them; `/api/v1/compiles` lists all.")
    graphs: list[GraphOut] = doc("At most 200, the most expensive first.")


class CompileStretch(Schema):
    """Filter of compiles by run and time."""

    team: Text = doc("Team of the run, exact match.", "LLM", default="")
    run: Text = doc("Name of the run.", "llama", default="")
    since: OptionalTime = doc(
        "At or after: RFC 3339 or Unix seconds. Default: all, also undated.", default=None
    )
    until: OptionalTime = doc("Before.", default=None)

    @property
    def events(self) -> CompileEventQuerySet:
        return CompileEvent.objects.filter_by(
            team=self.team, run=self.run, since=self.since, until=self.until
        )


class CompileQuery(CompileStretch, Paging):
    """Filter of requests to the compile cache."""

    kind: Literal["", "unannounced", "beside", "compiled", "failed"] = doc(
        "unannounced: unplanned compiles; beside: compiled while another process "
        "compiled the same; compiled: all misses; failed. Default: all, also hits.",
        default="",
    )


class SumsFilter(CompileStretch):
    """Filter of the sums, and number of runs in the response."""

    limit: int = doc("Most runs.", 20, default=50, ge=1, le=MAX_LIMIT)


@router.get("", response=CompilePage, **needs("read"), summary="List compiles")
def compile_list(request: HttpRequest, query: Query[CompileQuery]) -> CompilePage:
    """List requests to the compile cache, newest first."""
    events = query.events.filter(WHAT[KINDS[query.kind]][1])
    rows, links = paginate(request, _with_run(events), query, by="-pk")
    return CompilePage(items=[_compile(row) for row in compile_rows(rows)], **links)


@router.get("/sums", response=CompileSums, **needs("read"), summary="Totals of compiles")
def compile_sums(request: HttpRequest, query: Query[SumsFilter]) -> CompileSums:
    """Get counts of graphs, hits, misses and failures, and the lost time and cost."""
    sums = fleet_compile_sums(query.events)
    runs = [
        CompileRunOut.from_object(
            row,
            **_rounded(row),
            beside_s=round(row.beside_s, 3),
            run=row.run.name,
            team=row.run.team,
            lost_usd=row.usd,
        )
        for row in sums.rows[: query.limit]
    ]
    return CompileSums.from_object(
        sums, **_rounded(sums), n_runs=len(sums.rows), lost_usd=sums.usd, runs=runs
    )


@router.get("/{compile_id}", response=CompileOut, **needs("read"), summary="One compile")
def compile_one(request: HttpRequest, compile_id: Path[Key]) -> CompileOut:
    """Get one request to the compile cache."""
    event = get_object_or_404(_with_run(CompileEvent.objects.all()), pk=compile_id)
    return _compile(compile_rows([event])[0])


@run_router.get(
    "/{name}/compiles", response=RunCompiles, **needs("read"), summary="A run's compiles"
)
def run_compiles(request: HttpRequest, name: Path[RunName]) -> RunCompiles:
    """Get totals of a run's requests to its compile cache, by graph, and unplanned compiles."""
    summary = compile_summary(get_object_or_404(Run, name=name))
    return RunCompiles.from_object(
        summary,
        **_rounded(summary),
        beside_s=round(summary.beside_s, 3),
        run=name,
        lost_usd=summary.usd,
        accidents=[
            AccidentOut.from_object(
                accident, changes=_changes(accident.change), words=list(accident.changes)
            )
            for accident in summary.accidents
        ],
        graphs=summary.graphs,
    )


def _with_run(events: QuerySet[CompileEvent]) -> QuerySet[CompileEvent]:
    return events.select_related("run").defer("run__plan", "run__clock", "run__spending")


def _compile(row: CompileRow) -> CompileOut:
    event, before_s = row.event, row.before_s
    return CompileOut.from_object(
        event,
        run=event.run.name,
        graph=graph_of(event.module),
        usd=row.usd,
        changes=_changes(event.change),
        words=list(row.changes),
        before_at=datetime.fromtimestamp(before_s, UTC) if before_s else None,
        before=row.before,
    )


def _changes(change: Any) -> list[KeyChangeOut] | None:
    """Return the changes of a key; None if it was not judged."""
    if change is None:
        return None
    return [
        KeyChangeOut(
            what=part.get("what", ""), before=part.get("before", ""), after=part.get("after", "")
        )
        for part in change.get("parts", ())
    ]


def _rounded(figures: Any) -> dict[str, float | None]:
    """Return the seconds of `CompileFigures`, rounded to milliseconds."""
    wall_s = figures.wall_s
    return {
        "wall_s": None if wall_s is None else round(wall_s, 3),
        "lost_s": round(figures.lost_s, 3),
    }
