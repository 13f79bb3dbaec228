"""Addresses whose response fails halfway, served like every page for Prometheus."""

from collections.abc import Iterator

import numpy as np
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import path

from fleet.pages.metrics import streamed
from telemetry.exporter.exposition import (
    ArrayFamily,
    Collected,
    LabelRows,
    SeriesArray,
    Spec,
    add,
    format_values,
)

N_ROWS = 20_000
HEAT = Spec("heat_ratio", "gauge", "Heat.", ("node",))


def array() -> SeriesArray:
    """Return more series than go out at once."""
    rows = LabelRows({"node": [f"node-{i}" for i in range(N_ROWS)]})
    values = format_values(np.full((N_ROWS, 1), 0.5))
    return SeriesArray(rows, (), [()], values)


def arrays() -> Iterator[SeriesArray]:
    """Yield one array, and fail at the next."""
    yield array()
    raise RuntimeError("a part of the page cannot be written")


def breaks(request: HttpRequest) -> HttpResponseBase:
    """Answer with a page that fails after its first half."""
    return streamed(request, Collected([ArrayFamily(HEAT, arrays)]))


def holds(request: HttpRequest) -> HttpResponseBase:
    """Answer with the first half alone, and a family of few series."""
    few = Spec("few_total", "counter", "Few.").family()
    add(few, 3)
    return streamed(request, Collected([ArrayFamily(HEAT, lambda: [array()]), few]))


urlpatterns = [
    path("breaks", breaks, name="metrics"),
    path("holds", holds, name="metrics"),
]
