"""Compiles as the API tells them: each request to the cache, sums by run, and over the fleet."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, Self

from django.db.models import QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Path, Query, Router, Schema

from fleet.api.auth import needs
from fleet.api.fields import Key, OptionalTime, ResponseSchema, RunName, Text
from fleet.api.paging import MAX_LIMIT, PageLinks, Paging, paginate
from fleet.models import CompileEvent, Run
from fleet.models.compile import CompileEventQuerySet
from fleet.runs.compiles import CompiledGraph, CompileSummary, UnplannedCompile, compile_summary
from fleet.runs.fleet_compiles import (
    WHAT,
    CompileRow,
    RunCompileRow,
    Sums,
    compile_rows,
    fleet_compile_sums,
)
from telemetry.compiles import graph_of


class KeyChangeOut(ResponseSchema):
    """One part of a cache key that differs from the last hit or compile of the graph."""

    what: str = Field(
        description="compiler, flags, graph, shape, cache, or nothing: then the key is the same.",
        examples=["flags"],
    )
    before: str = Field(description="What it was; empty where nobody says.")
    after: str = Field(description="What it is.")


def _round_seconds(told: dict[str, Any]) -> dict[str, Any]:
    """Round seconds to what clocks can tell."""
    return {
        name: round(value, 3) if name.endswith("_s") and value is not None else value
        for name, value in told.items()
    }


def _changes(change: Any) -> list[KeyChangeOut] | None:
    """Return what changed; None where nobody judged."""
    if change is None:
        return None
    return [
        KeyChangeOut(
            what=part.get("what", ""), before=part.get("before", ""), after=part.get("after", "")
        )
        for part in change.get("parts", ())
    ]


class CompileOut(ResponseSchema):
    """One process that asked for one compiled graph, and what came of it."""

    id: int = Field(description="Number of the event.", examples=[17])
    run: str = Field(description="Name of the run.", examples=["llama"])
    outcome: str = Field(description="hit, miss or fail.", examples=["miss"])
    verdict: str | None = Field(
        description="Of a miss: first, planned, again, amid or beside; again and amid nobody "
        "had announced. Null where nobody judged it.",
        examples=["again"],
    )
    module: str = Field(description="MODULE_<graph>+<flags>, hashed; empty where unsaid.")
    graph: str = Field(description="Hash of the graph's operations.")
    at: datetime | None = Field(description="When it was found, or began to compile, UTC.")
    seconds: float | None = Field(description="How long it compiled; null where unknown.")
    usd: float | None = Field(description="What the run's nodes cost meanwhile, US dollars.")
    changes: list[KeyChangeOut] | None = Field(
        description="Of an unannounced compile: what changed in its key; empty: not known."
    )
    words: list[str] = Field(description="The same in words.")
    before_at: datetime | None = Field(description="When the graph was last found or compiled.")
    before: str = Field(description="Which of the two that was, and by which run.")
    rank: int | None = Field(description="Which process; null where nobody says.")
    process: str = Field(description="Who asked: source and id.")
    compiler: str = Field(description="Version of neuronx-cc.")
    flags: str = Field(description="As the compiler got them.")
    shape: str = Field(description="Input shapes, where the job says them.")
    cache: str = Field(description="Where the cache is.", examples=["/fsx/neuron-cache"])

    @classmethod
    def of(cls, listed: CompileRow) -> Self:
        event, before_s = listed.event, listed.before_s
        return cls(
            **{name: getattr(event, name) for name in SAME_FIELDS},
            run=event.run.name,
            verdict=event.verdict or None,
            graph=graph_of(event.module),
            usd=listed.usd,
            changes=_changes(event.change),
            words=list(listed.changes),
            before_at=datetime.fromtimestamp(before_s, UTC) if before_s else None,
            before=listed.before,
        )


SAME_FIELDS = (
    *("id", "outcome", "module", "at", "seconds", "rank", "process"),
    *("compiler", "flags", "shape", "cache"),
)


class CompilePage(PageLinks):
    """A page of the compile log."""

    items: list[CompileOut] = Field(description="The events of this page.")
    sorted_by: str = Field(default="-id", description="What was learnt of last comes first.")


class CompileFigures(ResponseSchema):
    """What came of requests to the cache, and what that took; null where nobody knows."""

    n_graphs: int = Field(description="Different graphs, by flags.")
    n_hits: int = Field(description="Requests that the cache answered.")
    n_misses: int = Field(description="Requests that were compiled.")
    n_failures: int = Field(description="Requests that failed.")
    hit_ratio: float | None = Field(description="Hits of all requests, 0 to 1.")
    wall_s: float | None = Field(
        description="Seconds in which anybody compiled, overlaps once; of all runs: summed."
    )
    lost_s: float = Field(description="Of them, in compiles that nobody had announced.")
    lost_usd: float | None = Field(description="What the nodes cost meanwhile, US dollars.")


class CompileRunOut(CompileFigures):
    """One run of the compile log."""

    run: str = Field(description="Name of the run.", examples=["llama"])
    team: str = Field(description="Whose it is.", examples=["LLM"])
    beside_s: float = Field(
        description="Seconds that processes compiled what another was compiling as well."
    )
    n_beside: int = Field(description="How often that was.")
    n_processes: int = Field(description="Processes that compiled.")
    cache: str = Field(description="Where its cache is.", examples=["/fsx/neuron-cache"])
    sharing: str = Field(description="Whether several nodes see it: shared, local or unknown.")
    compiler: str = Field(description="Version of neuronx-cc, the newest.")

    @classmethod
    def of(cls, row: RunCompileRow) -> Self:
        told = {name: getattr(row, name) for name in cls.model_fields.keys() - RUN_OWN_FIELDS}
        return cls(**_round_seconds(told), run=row.run.name, team=row.run.team, lost_usd=row.usd)


RUN_OWN_FIELDS = {"run", "team", "lost_usd"}


class CompileSums(CompileFigures):
    """The compile log over the fleet, and by run: those that lost most first."""

    n_runs: int = Field(description="Runs that asked a cache at all.")
    n_unpriced: int = Field(description="Runs that lost time and have no price: in no dollars.")
    runs: list[CompileRunOut] = Field(description="As many of them as were asked for.")

    @classmethod
    def of(cls, sums: Sums, *, most: int) -> Self:
        told = {name: getattr(sums, name) for name in cls.model_fields.keys() - SUMS_OWN_FIELDS}
        runs = [CompileRunOut.of(row) for row in sums.rows[:most]]
        return cls(**_round_seconds(told), n_runs=len(sums.rows), lost_usd=sums.usd, runs=runs)


SUMS_OWN_FIELDS = {"n_runs", "lost_usd", "runs"}


class GraphOut(ResponseSchema):
    """One graph with one set of flags."""

    module: str = Field(description="MODULE_<graph>+<flags>, hashed; empty where unsaid.")
    graph: str = Field(description="Hash of its operations.")
    n_hits: int = Field(description="Processes that found it.")
    n_misses: int = Field(description="Processes that compiled it.")
    n_failures: int = Field(description="Processes that failed to.")
    seconds: float | None = Field(description="Seconds that they compiled, all told.")
    longest_s: float | None = Field(description="Seconds of the longest compile.")
    first_at: datetime | None = Field(description="When it was first asked for, UTC.")

    @classmethod
    def of(cls, graph: CompiledGraph) -> Self:
        return cls(**{name: getattr(graph, name) for name in cls.model_fields})


class AccidentOut(ResponseSchema):
    """A compile that nobody had announced."""

    at: datetime = Field(description="When it began, UTC.")
    seconds: float = Field(description="How long it took.")
    changes: list[KeyChangeOut] | None = Field(description="What had changed in its key.")
    words: list[str] = Field(description="The same in words.")

    @classmethod
    def of(cls, accident: UnplannedCompile) -> Self:
        return cls(
            at=accident.at,
            seconds=accident.seconds,
            changes=_changes(accident.change),
            words=list(accident.changes),
        )


class RunCompiles(CompileFigures):
    """The compile cache of one run."""

    run: str = Field(description="Name of the run.", examples=["llama"])
    seconds: float = Field(description="Seconds that all processes compiled, summed.")
    beside_s: float = Field(description="Of them, of what another was compiling as well.")
    n_flag_changes: int = Field(description="Graphs asked for with more than one set of flags.")
    cache: str | None = Field(description="Where its cache is; null: nobody says.")
    sharing: str = Field(description="Whether several nodes see it: shared, local or unknown.")
    compiler: str | None = Field(description="Version of neuronx-cc, the newest.")
    n_accidents: int = Field(description="Compiles that nobody had announced.")
    accidents: list[AccidentOut] = Field(
        description="The newest four of them; `/api/v1/compiles` lists them all."
    )
    graphs: list[GraphOut] = Field(description="At most 200, those that cost most first.")

    @classmethod
    def of(cls, name: str, told: CompileSummary) -> Self:
        plain = {
            field: getattr(told, field) for field in cls.model_fields.keys() - COMPILES_OWN_FIELDS
        }
        return cls(
            **_round_seconds(plain),
            run=name,
            lost_usd=told.usd,
            cache=told.cache or None,
            compiler=told.compiler or None,
            accidents=[AccidentOut.of(each) for each in told.accidents],
            graphs=[GraphOut.of(each) for each in told.graphs],
        )


COMPILES_OWN_FIELDS = {"run", "lost_usd", "cache", "compiler", "accidents", "graphs"}


router = Router(tags=["compiles"])
run_router = Router(tags=["runs"])
# What may be asked for, by the words that the page's filter has for it.
KINDS: Mapping[str, str] = {
    "": "all",
    "unannounced": "",
    "beside": "beside",
    "compiled": "compiled",
    "failed": "failed",
}


class CompileStretch(Schema):
    """Whose compiles, and from when until when."""

    team: Text = Field("", description="Whose run asked, exactly.", examples=["LLM"])
    run: Text = Field("", description="Name of the run that asked.", examples=["llama"])
    since: OptionalTime = Field(
        None, description="Then or later: RFC 3339, or Unix seconds; left out: ever, undated too."
    )
    until: OptionalTime = Field(None, description="Before then.")

    @property
    def events(self) -> CompileEventQuerySet:
        """The events that match."""
        return CompileEvent.objects.filter_by(
            team=self.team, run=self.run, since=self.since, until=self.until
        )


class CompileQuery(CompileStretch, Paging):
    """Which requests to the cache to list."""

    kind: Literal["", "unannounced", "beside", "compiled", "failed"] = Field(
        "",
        description="unannounced: compiled again, or new amid training, and nobody had said so; "
        "beside: compiled while another process did as well; compiled: all misses; failed. "
        "Left out: all, hits too.",
    )


class SumsFilter(CompileStretch):
    """Over what to sum up, and how many runs to tell one by one."""

    limit: int = Field(50, ge=1, le=MAX_LIMIT, description="How many runs at most.", examples=[20])


@router.get("", response=CompilePage, **needs("read"), summary="List compiles")
def compile_list(request: HttpRequest, query: Query[CompileQuery]) -> CompilePage:
    """List requests to the compile cache, what was learnt of last first."""
    events = query.events.filter(WHAT[KINDS[query.kind]][1])
    rows, links = paginate(request, _with_run(events), query, by="-pk")
    items = [CompileOut.of(each) for each in compile_rows(rows)]
    return CompilePage(items=items, next=links.next, prev=links.prev)


@router.get("/sums", response=CompileSums, **needs("read"), summary="Compiles in sum")
def compile_sums(request: HttpRequest, query: Query[SumsFilter]) -> CompileSums:
    """Graphs, hits, misses, failures, hours and dollars lost: over the fleet, and by run."""
    return CompileSums.of(fleet_compile_sums(query.events), most=query.limit)


@router.get("/{compile_id}", response=CompileOut, **needs("read"), summary="One compile")
def compile_one(request: HttpRequest, compile_id: Path[Key]) -> CompileOut:
    """One request to the compile cache."""
    event = get_object_or_404(_with_run(CompileEvent.objects.all()), pk=compile_id)
    return CompileOut.of(compile_rows([event])[0])


@run_router.get(
    "/{name}/compiles",
    response=RunCompiles,
    **needs("read"),
    summary="A run's compiles",
)
def run_compiles(request: HttpRequest, name: Path[RunName]) -> RunCompiles:
    """Sum up what a run asked its compile cache for: by graph, and what nobody had announced."""
    return RunCompiles.of(name, compile_summary(get_object_or_404(Run, name=name)))


def _with_run(events: QuerySet[CompileEvent]) -> QuerySet[CompileEvent]:
    return events.select_related("run").defer("run__plan", "run__clock", "run__spending")
