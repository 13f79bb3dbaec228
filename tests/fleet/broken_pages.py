"""Addresses of a page that breaks in the middle, served as every page for Prometheus is."""

from collections.abc import Iterator

import numpy as np
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import path

from fleet.pages.metrics import streamed
from telemetry.exporter.hardware import Slab, SlabFamily, SlabRows
from telemetry.families import Family, Spec, written

N_ROWS = 20_000
HEAT = Spec("heat_ratio", "gauge", "Heat.", ("node",))


def slab() -> Slab:
    """Return more series than go out at once."""
    rows = SlabRows({"node": [f"node-{i}" for i in range(N_ROWS)]})
    values = written(np.full((N_ROWS, 1), 0.5))
    return Slab(rows, (), [()], values)


def slabs() -> Iterator[Slab]:
    """Yield one slab, and fail at the next."""
    yield slab()
    raise RuntimeError("a part of the page cannot be written")


def breaks(request: HttpRequest) -> HttpResponseBase:
    """Answer with a page that fails after its first half."""
    return streamed(request, [SlabFamily(HEAT, slabs)])


def holds(request: HttpRequest) -> HttpResponseBase:
    """Answer with the first half alone, and a family of few series."""
    few = Family(Spec("few_total", "counter", "Few."))
    few.add(3)
    return streamed(request, [SlabFamily(HEAT, lambda: [slab()]), few])


urlpatterns = [
    path("breaks", breaks, name="metrics"),
    path("holds", holds, name="metrics"),
]
