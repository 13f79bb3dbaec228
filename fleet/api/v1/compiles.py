"""The compile log: requests to the cache one by one, summed over the fleet, and of one run."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from django.db.models import QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Schema

from fleet.api.v1.access import needs
from fleet.api.v1.fields import Key, Moment, RunName, Text
from fleet.api.v1.paging import MOST, Paging, paged
from fleet.api.v1.shapes.compiles import CompileOut, CompilePage, CompileSums, RunCompiles
from fleet.compiles.fleetwide import WHAT, asked_for, listed, summed_over
from fleet.compiles.summing import summed_up
from fleet.models import CompileEvent, Run

router = Router(tags=["compiles"])
of_runs = Router(tags=["runs"])
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
    since: Moment = Field(
        None, description="Then or later: RFC 3339, or Unix seconds; left out: ever, undated too."
    )
    until: Moment = Field(None, description="Before then.")

    def events(self, *, now: datetime) -> QuerySet[CompileEvent]:
        """Return the events asked for."""
        since = now - self.since if self.since else None
        events = asked_for(team=self.team, run=self.run, since=since, now=now)
        return events.filter(at__lt=self.until) if self.until else events


class CompileFilter(CompileStretch, Paging):
    """Which requests to the cache to list."""

    kind: Literal["", "unannounced", "beside", "compiled", "failed"] = Field(
        "",
        description="unannounced: compiled again, or new amid training, and nobody had said so; "
        "beside: compiled while another process did as well; compiled: all misses; failed. "
        "Left out: all, hits too.",
    )


class SumsFilter(CompileStretch):
    """Over what to sum up, and how many runs to tell one by one."""

    limit: int = Field(50, ge=1, le=MOST, description="How many runs at most.", examples=[20])


@router.get("", response=CompilePage, openapi_extra=needs("read"), summary="List compiles")
def compile_list(request: HttpRequest, asked: Query[CompileFilter]) -> CompilePage:
    """List requests to the compile cache, what was learnt of last first."""
    events = asked.events(now=timezone.now()).filter(WHAT[KINDS[asked.kind]][1])
    rows, links = paged(request, _with_runs(events), asked, by="-pk")
    items = [CompileOut.of(each) for each in listed(rows)]
    return CompilePage(items=items, next=links.next, prev=links.prev)


@router.get("/sums", response=CompileSums, openapi_extra=needs("read"), summary="Compiles in sum")
def compile_sums(request: HttpRequest, asked: Query[SumsFilter]) -> CompileSums:
    """Graphs, hits, misses, failures, hours and dollars lost: over the fleet, and by run."""
    return CompileSums.of(summed_over(asked.events(now=timezone.now())), most=asked.limit)


@router.get(
    "/{compile_id}", response=CompileOut, openapi_extra=needs("read"), summary="One compile"
)
def compile_one(request: HttpRequest, compile_id: Path[Key]) -> CompileOut:
    """One request to the compile cache."""
    event = get_object_or_404(_with_runs(CompileEvent.objects.all()), pk=compile_id)
    return CompileOut.of(listed([event])[0])


@of_runs.get(
    "/{name}/compiles",
    response=RunCompiles,
    openapi_extra=needs("read"),
    summary="A run's compiles",
)
def run_compiles(request: HttpRequest, name: Path[RunName]) -> RunCompiles:
    """Sum up what a run asked its compile cache for: by graph, and what nobody had announced."""
    return RunCompiles.of(name, summed_up(get_object_or_404(Run, name=name)))


def _with_runs(events: QuerySet[CompileEvent]) -> QuerySet[CompileEvent]:
    return events.select_related("run").defer("run__plan", "run__clock", "run__spending")
