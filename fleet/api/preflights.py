"""What the API tells of preflights."""

from datetime import datetime
from typing import Annotated, Literal, Self

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.auth import caller, needs
from fleet.api.fields import INTEGRAL_FLOAT, NAME, Key, RequestSchema, ResponseSchema, conflict_on
from fleet.api.paging import PageLinks, Paging, paginate
from fleet.checks.preflight_text import reasons, sentences
from fleet.checks.preflights import (
    MAX_NODES,
    PreflightResult,
    load_result,
    request_preflight,
)
from fleet.models import Preflight, Run
from telemetry.errors import FieldError
from telemetry.simulate.preflight import ProbeFault

State = Literal["pass", "hold", "fail"]


class PreflightOut(ResponseSchema):
    """A preflight; what is found is null until it is over."""

    id: int = Field(description="Number of the preflight.", examples=[12])
    asked_by: str = Field(description="Who asked for it.", examples=["ada"])
    asked_at: datetime = Field(description="When, UTC.")
    finished_at: datetime | None = Field(description="When it was over, UTC.")
    run: str | None = Field(description="The run whose nodes were asked for.", examples=["llama"])
    instance_type: str = Field(description="Type of all nodes.", examples=["trn2.48xlarge"])
    n_nodes: int = Field(description="How many nodes are probed.", examples=[16])
    wanted: int | None = Field(description="How many are wanted; null: all that can come.")
    source: str = Field(description="simulated, or files that probes printed.")
    progress_ratio: float = Field(description="How far it has come, 0 to 1.", examples=[1.0])
    verdict: State | None = Field(description="What is said of the group.", examples=["pass"])
    words: str | None = Field(description="The verdict in sentences.")
    take: list[str] | None = Field(description="The nodes to take.", examples=[["llama-03"]])

    @classmethod
    def values_of(cls, preflight: Preflight, found: PreflightResult | None) -> dict[str, object]:
        """Return what all shapes of a preflight tell."""
        return {
            "id": preflight.pk,
            "asked_by": preflight.asked_by,
            "asked_at": preflight.asked_at,
            "finished_at": preflight.finished_at,
            "run": preflight.run.name if preflight.run else None,
            "instance_type": preflight.instance_type,
            "n_nodes": len(preflight.names),
            "wanted": preflight.take,
            "source": preflight.source,
            "progress_ratio": 1.0 if preflight.is_over else preflight.progress_ratio,
            "verdict": preflight.verdict or None,
            "words": " ".join(sentences(preflight, found)) if found else None,
            "take": list(found.chosen) if found else None,
        }

    @classmethod
    def of(cls, preflight: Preflight) -> Self:
        return cls.model_validate(cls.values_of(preflight, load_result(preflight)))


class PreflightPage(PageLinks):
    """Some preflights."""

    items: list[PreflightOut] = Field(description="Preflights, the last asked for first.")


class PreflightNodeOut(ResponseSchema):
    """What is said of one node."""

    node: str = Field(description="Its name.", examples=["llama-03"])
    verdict: State = Field(description="Take it, look at it first, or leave it.")
    take: bool = Field(description="Whether it is among those to take.")
    reasons: list[str] = Field(description="What is held against it, in words.")


class PreflightTrouble(ResponseSchema):
    """One thing that is wrong; of a pair, ``peer`` is the other node."""

    kind: str = Field(description="What it is.", examples=["efa_latency"])
    node: str = Field(description="On which node.", examples=["llama-03"])
    peer: str | None = Field(description="Together with which.")
    device: int | None = Field(description="On which EFA device, from 0.")
    metric: str = Field(description="Which figure shows it; empty: none.")
    value: float | None = Field(description="The figure here, in the unit its name ends with.")
    usual: float | None = Field(description="The figure elsewhere.")


class PreflightDetail(PreflightOut):
    """A preflight with every node and everything that is wrong."""

    nodes: list[PreflightNodeOut] | None = Field(description="Every node, in order.")
    troubles: list[PreflightTrouble] | None = Field(description="What is wrong.")
    collective_slowdown_ratio: float | None = Field(
        description="Time of the collective over the nodes to take, over the expected."
    )

    @classmethod
    def of(cls, preflight: Preflight) -> Self:
        found = load_result(preflight)
        return cls.model_validate(
            cls.values_of(preflight, found)
            | {
                "nodes": found and [_node(found, name) for name in found.nodes],
                "troubles": found
                and [
                    {name: getattr(each, name) for name in PreflightTrouble.model_fields}
                    for each in found.troubles
                ],
                "collective_slowdown_ratio": found.slowdown if found else None,
            }
        )


def _node(found: PreflightResult, name: str) -> dict[str, object]:
    return {
        "node": name,
        "verdict": found.nodes[name].value,
        "take": name in found.chosen,
        "reasons": reasons(found, name),
    }


router = Router(tags=["preflights"])
Name = Annotated[str, Field(pattern=NAME)]
FaultKind = Literal[
    "efa_latency",
    "efa_loss",
    "efa_down",
    "ecc_uncorrected",
    "pair_slow",
    "pair_silent",
    "chip_missing",
    "rest_moving",
]


class PreflightFilter(Paging):
    """Which preflights to list."""

    verdict: Literal["", "pass", "hold", "fail"] = Field("", description="With which verdict.")


class PreflightFaultIn(RequestSchema):
    """A fault to inject into a simulated node: docs/preflight.md has the kinds."""

    kind: FaultKind = Field(description="Kind of fault.", examples=["efa_latency"])
    node: Name = Field(description="The node.", examples=["llama-03"])
    device: Annotated[int, Field(ge=0, le=9999), INTEGRAL_FLOAT] | None = Field(
        None, description="The EFA device, from 0; for efa_latency, efa_loss and efa_down."
    )
    peer: Name | None = Field(
        None, description="The second node; for pair_slow and pair_silent.", examples=[None]
    )
    magnitude: float | None = Field(
        None, description="How strong; left out: the usual magnitude of the kind."
    )


class PreflightIn(RequestSchema):
    """Which nodes to probe."""

    nodes: list[Name] = Field(
        min_length=1,
        max_length=MAX_NODES,
        description="Simulated nodes, all of one type, each once.",
        examples=[["llama-03"]],
    )
    instance_type: str = Field(
        "", pattern=r"^[a-z0-9.-]{0,40}$", description="Where the fleet does not know it."
    )
    wanted: Annotated[int, Field(ge=1, le=MAX_NODES), INTEGRAL_FLOAT] | None = Field(
        None, description="How many are wanted; left out: all that can come."
    )
    run: str = Field("", pattern=r"^[A-Za-z0-9_-]{0,60}$", description="The run they are for.")
    faults: list[PreflightFaultIn] = Field(
        [], max_length=50, description="Faults to inject into the simulated nodes."
    )


@router.get("", response=PreflightPage, **needs("read"), summary="List preflights")
def preflight_list(request: HttpRequest, query: Query[PreflightFilter]) -> PreflightPage:
    """Preflights, the one that was asked for last first."""
    preflights = Preflight.objects.filter_by(**query.fields)
    preflights = preflights.defer("measured").select_related("run")
    rows, links = paginate(request, preflights, query, by="-pk")
    items = [PreflightOut.of(row) for row in rows]
    return PreflightPage(items=items, next=links.next, prev=links.prev)


@router.post("", response={201: PreflightDetail}, **needs("act"), summary="Ask for a preflight")
@conflict_on(*PreflightIn.model_fields, take="wanted")
def preflight_new(request: HttpRequest, payload: PreflightIn) -> Status[PreflightDetail]:
    """Ask for a preflight of simulated nodes; its verdict comes within seconds. 409: not so."""
    run = Run.objects.filter(name=payload.run).first() if payload.run else None
    if payload.run and run is None:
        raise FieldError("run", f"no run is called {payload.run!r}")
    preflight = request_preflight(
        payload.nodes,
        instance_type=payload.instance_type,
        take=payload.wanted,
        run=run,
        faults=[ProbeFault.of_kind(**fault.model_dump()) for fault in payload.faults],
        by=caller(request).name,
        now=timezone.now(),
    )
    return Status(201, PreflightDetail.of(preflight))


@router.get("/{number}", response=PreflightDetail, **needs("read"), summary="One preflight")
def preflight_one(request: HttpRequest, number: Path[Key]) -> PreflightDetail:
    """One preflight, with every node, everything that is wrong, and whom to take."""
    preflights = Preflight.objects.defer("measured").select_related("run")
    return PreflightDetail.of(get_object_or_404(preflights, pk=number))
