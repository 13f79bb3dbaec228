"""Preflights: request one, and read the results."""

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.auth import caller, needs
from fleet.api.fields import (
    INTEGRAL_FLOAT,
    NAME,
    OPTIONAL_SLUG,
    Key,
    NullableText,
    RequestSchema,
    ResponseSchema,
    conflict_on,
    doc,
)
from fleet.api.paging import Page, Paging, paginate
from fleet.checks.preflight_text import reasons, sentences
from fleet.checks.preflights import MAX_NODES, load_result, request_preflight
from fleet.models import Preflight, Run
from telemetry.checks.preflight import PreflightResult, Racks
from telemetry.checks.preflight_pairs import PreflightFinding
from telemetry.errors import FieldError
from telemetry.simulate.preflight import ProbeFault

router = Router(tags=["preflights"])
State = Literal["pass", "hold", "fail"]
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


class PreflightOut(ResponseSchema, source=Preflight):
    """A preflight; results are null until it is finished."""

    id = doc("Number of the preflight.", 12)
    asked_by = doc("Who requested it.", "ada")
    asked_at = doc("When it was requested, UTC.")
    finished_at = doc("When it finished, UTC.")
    run: NullableText = doc("Name of the run of the nodes.", "llama")
    instance_type = doc("Type of all nodes.", "trn2.48xlarge")
    n_nodes: int = doc("Number of probed nodes.", 16)
    wanted: int | None = doc("How many are wanted; null: all that pass.")
    source = doc("simulated, or files with output of probes.")
    progress_ratio = doc("Progress, 0 to 1.", 1.0)
    verdict: State | None = doc("Verdict on the group.", "pass")
    words: str | None = doc("The verdict as text.")
    take: list[str] | None = doc("The nodes to use.", ["llama-03"])


class PreflightPage(Page[PreflightOut]):
    """A page of preflights."""


class PreflightNodeOut(ResponseSchema):
    """Verdict on one node."""

    node: str = doc("Name of the node.", "llama-03")
    verdict: State = doc("pass: use it; hold: check it first; fail: do not use it.")
    take: bool = doc("Whether to use it.")
    reasons: list[str] = doc("Reasons for the verdict, as text.")


class PreflightTrouble(ResponseSchema, source=PreflightFinding):
    """One problem; of a pair of nodes, ``peer`` is the other one."""

    kind = doc("Kind of problem.", "efa_latency")
    node = doc("Name of the node.", "llama-03")
    peer = doc("Name of the other node.")
    device = doc("EFA device, from 0.")
    metric = doc("Metric that shows it; empty: none.")
    value = doc("Its value here, in the unit of its name.")
    usual = doc("Its value elsewhere.")


class PreflightRacks(ResponseSchema, source=Racks):
    """Classes of pairs: those of one rack, and those across racks."""

    basis = doc(
        "labels: racks, UltraServers or zones of the nodes; inferred: from the figures.",
        "inferred",
    )
    racks: list[list[str]] = doc("Names of the nodes of each rack.")
    ratio = doc("Median latency of pairs across racks, relative to pairs of one rack.", 1.3)


class PreflightDetail(PreflightOut):
    """A preflight with all nodes and problems."""

    nodes: list[PreflightNodeOut] | None = doc("All nodes, in order.")
    troubles: list[PreflightTrouble] | None = doc("All problems.")
    collective_slowdown_ratio: float | None = doc(
        "Collective time over the nodes to use, relative to the expected."
    )
    racks: PreflightRacks | None = doc(
        "Classes of pairs that were compared separately; null: one class."
    )


class PreflightFilter(Paging):
    """Filter of preflights."""

    verdict: Literal["", "pass", "hold", "fail"] = doc("Verdict.", default="")


class PreflightFaultIn(RequestSchema):
    """A fault to inject into a simulated node: docs/preflight.md has the kinds."""

    kind: FaultKind = doc("Kind of fault.", "efa_latency")
    node: Name = doc("Name of the node.", "llama-03")
    device: Annotated[int, Field(ge=0, le=9999), INTEGRAL_FLOAT] | None = doc(
        "The EFA device, from 0; for efa_latency, efa_loss and efa_down.", default=None
    )
    peer: Name | None = doc("The second node; for pair_slow and pair_silent.", None, default=None)
    magnitude: float | None = doc("Magnitude. Default: that of the kind.", default=None)


class PreflightIn(RequestSchema):
    """Nodes to probe."""

    nodes: list[Name] = doc(
        "Simulated nodes of one instance type, each once.",
        ["llama-03"],
        min_length=1,
        max_length=MAX_NODES,
    )
    instance_type: str = doc(
        "Instance type, if unknown to the fleet.", default="", pattern=r"^[a-z0-9.-]{0,40}$"
    )
    wanted: Annotated[int, Field(ge=1, le=MAX_NODES), INTEGRAL_FLOAT] | None = doc(
        "How many are wanted. Default: all that pass.", default=None
    )
    run: str = doc("Name of the run they are for.", default="", pattern=OPTIONAL_SLUG)
    faults: list[PreflightFaultIn] = doc(
        "Faults to inject into the simulated nodes.", default=[], max_length=50
    )


@router.get("", response=PreflightPage, **needs("read"), summary="List preflights")
def preflight_list(request: HttpRequest, query: Query[PreflightFilter]) -> PreflightPage:
    """List preflights, newest first."""
    preflights = Preflight.objects.filter_by(**query.fields)
    preflights = preflights.defer("measured").select_related("run")
    rows, links = paginate(request, preflights, query, by="-pk")
    items = [PreflightOut.from_object(row, **_computed(row, load_result(row))) for row in rows]
    return PreflightPage(items=items, **links)


@router.post("", response={201: PreflightDetail}, **needs("act"), summary="Request a preflight")
@conflict_on(*PreflightIn.model_fields, take="wanted")
def preflight_new(request: HttpRequest, payload: PreflightIn) -> Status[PreflightDetail]:
    """Request a preflight of simulated nodes, which takes seconds; 409 if a field does not fit."""
    run = Run.objects.filter(name=payload.run).first() if payload.run else None
    if payload.run and run is None:
        raise FieldError("run", f"no run is named {payload.run!r}")
    preflight = request_preflight(
        payload.nodes,
        instance_type=payload.instance_type,
        take=payload.wanted,
        run=run,
        faults=[ProbeFault.of_kind(**fault.model_dump()) for fault in payload.faults],
        by=caller(request).name,
        now=timezone.now(),
    )
    return Status(201, _detail(preflight))


@router.get("/{number}", response=PreflightDetail, **needs("read"), summary="One preflight")
def preflight_one(request: HttpRequest, number: Path[Key]) -> PreflightDetail:
    """Get one preflight with all nodes, problems, and the nodes to use."""
    preflights = Preflight.objects.defer("measured").select_related("run")
    return _detail(get_object_or_404(preflights, pk=number))


def _detail(preflight: Preflight) -> PreflightDetail:
    result = load_result(preflight)
    values = _computed(preflight, result)
    if result is None:
        return PreflightDetail.from_object(
            preflight,
            **values,
            nodes=None,
            troubles=None,
            collective_slowdown_ratio=None,
            racks=None,
        )
    nodes = [
        PreflightNodeOut(
            node=name,
            verdict=verdict.value,
            take=name in result.chosen,
            reasons=reasons(result, name),
        )
        for name, verdict in result.nodes.items()
    ]
    return PreflightDetail.from_object(
        preflight,
        **values,
        nodes=nodes,
        troubles=result.troubles,
        collective_slowdown_ratio=result.slowdown,
        racks=result.racks,
    )


def _computed(preflight: Preflight, found: PreflightResult | None) -> dict[str, Any]:
    """Return the fields of a preflight that are not attributes of its row."""
    return {
        "n_nodes": len(preflight.names),
        "wanted": preflight.take,
        "progress_ratio": 1.0 if preflight.is_over else preflight.progress_ratio,
        "verdict": preflight.verdict or None,
        "words": " ".join(sentences(preflight, found)) if found else None,
        "take": list(found.chosen) if found else None,
    }
