"""A run's money: what every dollar went into and buys, what it will come to; its length."""

from typing import Annotated

from django.conf import settings
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Router

from fleet.api.v1.access import needs
from fleet.api.v1.callers import caller
from fleet.api.v1.fields import POINTLESS, Body, RunName
from fleet.api.v1.shapes.money import RunMoneyDetail
from fleet.models import Run
from fleet.money.panel import panel
from fleet.money.planning import MOST, tell_length
from telemetry.store.hot import open_store

router = Router(tags=["runs"])
Tokens = Annotated[int, Field(ge=1, le=MOST), POINTLESS] | None


class LengthIn(Body):
    """How long a run is to be: both figures, null where that is not known."""

    tokens_per_epoch: Tokens = Field(
        description="Tokens of one pass over the data.", examples=[300_000_000_000]
    )
    planned_tokens: Tokens = Field(
        description="Tokens after which it is to be over.", examples=[2_000_000_000_000]
    )


@router.get(
    "/{name}/money", response=RunMoneyDetail, openapi_extra=needs("read"), summary="A run's money"
)
def run_money(request: HttpRequest, name: Path[RunName]) -> RunMoneyDetail:
    """Tell what a run's dollars went into and buy, brought up to now, as its page shows it.

    `money` of the run itself is the same as last added up, within the minute, and is cheaper.
    """
    return _told(get_object_or_404(Run, name=name))


@router.post(
    "/{name}/length",
    response=RunMoneyDetail,
    openapi_extra=needs("lead"),
    summary="Say how long a run is",
)
def run_length(request: HttpRequest, name: Path[RunName], said: LengthIn) -> RunMoneyDetail:
    """Say how many tokens an epoch has and the run is to train; its forecast follows.

    What is said stands as a note on the run. Needs the role lead.
    """
    run = get_object_or_404(Run, name=name)
    given = {field: "" if n is None else str(n) for field, n in said.model_dump().items()}
    tell_length(run, given, by=caller(request).name, now=timezone.now())
    run.refresh_from_db()
    return _told(run)


def _told(run: Run) -> RunMoneyDetail:
    return RunMoneyDetail.of(run, panel(open_store(settings.REDIS_URL), run, now=timezone.now()))
