"""Like runs: the same training under other precision and flags, and what that brought."""

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Path, Router

from fleet.api.v1.access import needs
from fleet.api.v1.fields import RunName
from fleet.api.v1.shapes.likes import RunLike
from fleet.models import Run

router = Router(tags=["runs"])


@router.get("/{name}/like", response=RunLike, openapi_extra=needs("read"), summary="Like runs")
def run_like(request: HttpRequest, name: Path[RunName]) -> RunLike:
    """How a run is set, and what other settings brought its like: measured, or else predicted."""
    runs = Run.objects.select_related("like_runs").defer("plan", "clock", "spending")
    return RunLike.of(get_object_or_404(runs, name=name))
