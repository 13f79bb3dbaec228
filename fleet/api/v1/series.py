"""Series: one metric of a node or of a run over a window."""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from django.conf import settings
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router

from fleet.api.v1.access import needs
from fleet.api.v1.fields import NodeName, RunName, among, choice
from fleet.api.v1.shapes.series import SeriesOut, Table, series_out
from fleet.api.v1.windows import Stretching
from fleet.charts.figures import mean_of
from fleet.long_term import long_term_history
from fleet.models import Node, Run
from telemetry.blocks import METRICS, FloatArray
from telemetry.steps import PHASES, StepBatch
from telemetry.store.history import node_series, run_history
from telemetry.store.hot import open_store

router = Router(tags=["series"])
UNITS = ("bytes_per_s", "per_s", "bytes", "ratio", "s")
OF_RUNS: Mapping[str, str] = {
    "step_s": "Duration of a step, mean over workers.",
    "tokens_per_s": "Tokens of a step over its duration.",
    "allreduce_share_ratio": "Exposed gradient all-reduce over step time, 0 to 1.",
    "wait_ratio": "Share of the step spent waiting for peers, 0 to 1.",
    "transfer_ratio": "Share of the step spent moving gradients, 0 to 1.",
    **{
        phase: f"Seconds of the step spent on {phase[:-2]}, mean over workers." for phase in PHASES
    },
}
NodeMetric = Annotated[str, among(METRICS), choice(METRICS)]
RunMetric = Annotated[str, among(OF_RUNS), choice(OF_RUNS)]


class Drawing(Stretching):
    """Over which window, in how many points."""

    max_points: int = Field(
        300,
        ge=1,
        le=2_000,
        description="How many points at most; neighbours are averaged, lowest and highest "
        "kept. Of many parts fewer points are told: an answer has at most 50,000 values.",
    )


class NodeDrawing(Drawing):
    """Which metric of a node."""

    metric: NodeMetric = Field(description="What to tell.", examples=["core_utilization_ratio"])


class RunDrawing(Drawing):
    """Which metric of a run."""

    metric: RunMetric = Field(description="What to tell.", examples=["step_s"])


def unit_of(metric: str) -> str:
    """Return the unit at the end of a metric's name; counts have none."""
    return next((unit for unit in UNITS if metric.endswith(f"_{unit}")), "count")


@router.get(
    "/nodes/{name}/series",
    response=SeriesOut,
    openapi_extra=needs("read"),
    summary="A metric of a node",
)
def node_metric(
    request: HttpRequest, name: Path[NodeName], asked: Query[NodeDrawing]
) -> SeriesOut:
    """One metric of one node over a window, a series for each of its parts.

    By the second for the last quarter of an hour, by the minute before it, each value with
    the lowest and highest of what it is the mean of.
    """
    node = get_object_or_404(Node, name=name)
    hot, (start, end) = open_store(settings.REDIS_URL), asked.window(now=timezone.now())
    metric = METRICS[asked.metric]
    series = node_series(
        hot,
        shard=node.shard,
        node=node.name,
        metric=metric.name,
        start=start,
        end=max(start, end - 1),
        long_term=long_term_history(),
    )
    n_parts = series.values.shape[1]
    many = [f"{metric.part} {i}" for i in range(n_parts)]
    return series_out(
        of=node.name,
        metric=metric.name,
        unit=unit_of(metric.name),
        help_=metric.help,
        window=(start, end),
        table=Table(series.t_s, series.values, series.low, series.high),
        names=["node"] if metric.part == "node" and n_parts else many,
        stretches=series.stretches,
        most=asked.max_points,
    )


@router.get(
    "/runs/{name}/series",
    response=SeriesOut,
    openapi_extra=needs("read"),
    summary="A metric of a run",
)
def run_metric(request: HttpRequest, name: Path[RunName], asked: Query[RunDrawing]) -> SeriesOut:
    """One metric of one run over a window, step by step while steps are kept one by one."""
    run = get_object_or_404(Run, name=name)
    start, end = asked.window(now=timezone.now())
    steps, stretches = run_history(
        open_store(settings.REDIS_URL),
        run.name,
        start_s=start,
        end_s=end,
        long_term=long_term_history(),
    )
    metric = asked.metric
    return series_out(
        of=run.name,
        metric=metric,
        unit="tokens_per_s" if metric == "tokens_per_s" else unit_of(metric),
        help_=OF_RUNS[metric],
        window=(start, end),
        table=Table(steps.ended_at_s, _values(steps, metric)[:, None]),
        names=["run"],
        stretches=stretches,
        most=asked.max_points,
    )


def _values(steps: StepBatch, metric: str) -> FloatArray:
    """Return a metric of each step: (n_steps,)."""
    if metric == "tokens_per_s":
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(steps.tokens / steps.step_s)
    if metric in PHASES:
        return mean_of(steps.phases[metric])
    told: FloatArray = getattr(steps, metric)
    return told
