"""Preflights: which there are, one with what it found; asked for by operators."""

from typing import Annotated, Literal

from django.db.models import QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.v1.access import needs
from fleet.api.v1.callers import caller
from fleet.api.v1.fields import NAME, POINTLESS, Body, Key
from fleet.api.v1.paging import Paging, paged
from fleet.api.v1.shapes.preflights import PreflightDetail, PreflightOut, PreflightPage
from fleet.models import Preflight, Run
from fleet.preflight.asking import MOST_NODES, PreflightError, ask
from fleet.problem import ProblemError

router = Router(tags=["preflights"])
Name = Annotated[str, Field(pattern=NAME)]
FAULT = r"^[A-Za-z0-9_]{1,40}:[A-Za-z0-9._/+=-]{1,200}$"


class PreflightFilter(Paging):
    """Which preflights to list."""

    verdict: Literal["", "pass", "hold", "fail"] = Field("", description="With which verdict.")

    def keep(self, preflights: QuerySet[Preflight]) -> QuerySet[Preflight]:
        """Keep the preflights asked for."""
        return preflights.filter(verdict=self.verdict) if self.verdict else preflights


class PreflightIn(Body):
    """Which nodes to probe."""

    nodes: list[Name] = Field(
        min_length=1,
        max_length=MOST_NODES,
        description="Simulated nodes, all of one type, each once.",
        examples=[["llama-03"]],
    )
    instance_type: str = Field(
        "", pattern=r"^[a-z0-9.-]{0,40}$", description="Where the fleet does not know it."
    )
    wanted: Annotated[int, Field(ge=1, le=MOST_NODES), POINTLESS] | None = Field(
        None, description="How many are wanted; left out: all that can come."
    )
    run: str = Field("", pattern=r"^[A-Za-z0-9_-]{0,60}$", description="The run they are for.")
    faults: list[Annotated[str, Field(pattern=FAULT)]] = Field(
        [], max_length=50, description="What to put in that must be found: docs/preflight.md."
    )


@router.get("", response=PreflightPage, openapi_extra=needs("read"), summary="List preflights")
def preflight_list(request: HttpRequest, asked: Query[PreflightFilter]) -> PreflightPage:
    """Preflights, the one that was asked for last first."""
    preflights = Preflight.objects.defer("measured").select_related("run")
    rows, links = paged(request, asked.keep(preflights), asked, by="-pk")
    items = [PreflightOut.of(row) for row in rows]
    return PreflightPage(items=items, next=links.next, prev=links.prev)


@router.post(
    "", response={201: PreflightDetail}, openapi_extra=needs("act"), summary="Ask for a preflight"
)
def preflight_new(request: HttpRequest, said: PreflightIn) -> Status[PreflightDetail]:
    """Ask for a preflight of simulated nodes; its verdict comes within seconds. 409: not so."""
    run = Run.objects.filter(name=said.run).first() if said.run else None
    if said.run and run is None:
        raise ProblemError(409, f"run: no run is called {said.run!r}.", field="run")
    try:
        preflight = ask(
            said.nodes,
            instance_type=said.instance_type,
            take=said.wanted,
            run=run,
            faults=said.faults,
            by=caller(request).name,
            now=timezone.now(),
        )
    except PreflightError as error:
        field = {"take": "wanted"}.get(error.field, error.field)
        raise ProblemError(409, f"{field}: {error.message}.", field=field) from error
    return Status(201, PreflightDetail.of(preflight))


@router.get(
    "/{number}", response=PreflightDetail, openapi_extra=needs("read"), summary="One preflight"
)
def preflight_one(request: HttpRequest, number: Path[Key]) -> PreflightDetail:
    """One preflight, with every node, everything that is wrong, and whom to take."""
    preflights = Preflight.objects.defer("measured").select_related("run")
    return PreflightDetail.of(get_object_or_404(preflights, pk=number))
