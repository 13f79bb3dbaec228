"""A run's money: what every dollar went into, what it buys, and what it will come to."""

from django.conf import settings
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Path, Router

from fleet.api.v1.access import needs
from fleet.api.v1.fields import RunName
from fleet.api.v1.shapes.money import RunMoneyDetail
from fleet.models import Run
from fleet.money.panel import panel
from telemetry.store.hot import open_store

router = Router(tags=["runs"])


@router.get(
    "/{name}/money", response=RunMoneyDetail, openapi_extra=needs("read"), summary="A run's money"
)
def run_money(request: HttpRequest, name: Path[RunName]) -> RunMoneyDetail:
    """Tell what a run's dollars went into and buy, brought up to now, as its page shows it.

    `money` of the run itself is the same as last added up, within the minute, and is cheaper.
    """
    run = get_object_or_404(Run, name=name)
    return RunMoneyDetail.of(run, panel(open_store(settings.REDIS_URL), run, now=timezone.now()))
