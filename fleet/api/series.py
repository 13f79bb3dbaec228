"""One metric of a node or run over a window, as columns of numbers; gaps are null."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Self

import numpy as np
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Path, Query, Router

from fleet.api.auth import needs
from fleet.api.fields import NodeName, OneOf, ResponseSchema, RunName, doc
from fleet.api.paging import StretchOut, WindowQuery
from fleet.metrics.long_term import long_term_history
from fleet.models import Node, Run
from telemetry.blocks import METRICS, FloatArray, IntArray, mean
from telemetry.series import SeriesSource
from telemetry.steps import PHASES, StepBatch
from telemetry.store.history import node_series, run_history
from telemetry.store.hot import hot_store

router = Router(tags=["series"])
Numbers = list[float | None]
# The most means in a response, whatever was requested.
MAX_NUMBERS = 50_000
SIGNIFICANT_DIGITS = 6


class PartOut(ResponseSchema):
    """Values of one part of a node, or of a run."""

    part: str = doc("node, run, or core, device or efa with its number.", "core 3")
    values: Numbers = doc("One value for each time in `t_s`; null is a gap.")
    low: Numbers | None = doc("Minimum behind each value; null if values are not means.")
    high: Numbers | None = doc("Maximum behind each value.")


class SeriesOut(ResponseSchema):
    """One metric over a window."""

    of: str = doc("Name of the node or run.", "llama-03")
    metric: str = doc("Its name.", "core_utilization_ratio")
    unit: str = doc("Its unit.", "ratio")
    help: str = doc("Description of the metric.")
    since_s: int = doc("Start of the window, in Unix seconds.")
    until_s: int = doc("End of the window, in Unix seconds.")
    every_s: float = doc("Mean seconds between points; 0 for fewer than two.")
    stretches: list[StretchOut] = doc("Tier and resolution of each part.")
    t_s: list[float] = doc("Times in Unix seconds, ascending.")
    parts: list[PartOut] = doc("Values by part.")


@dataclass(frozen=True, slots=True)
class Table:
    """A series: ``t_s`` (n,), and ``mean``, ``low``, ``high`` (n, n_parts)."""

    t_s: FloatArray | IntArray
    mean: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None

    def downsampled(self, most: int) -> Self:
        """Merge neighbours until at most ``most`` times are left."""
        n_parts = max(1, self.mean.shape[1])
        most = max(1, min(most, MAX_NUMBERS // n_parts))
        n_each = -(-len(self.t_s) // most)
        if n_each <= 1:
            return self
        low, high = (self.mean if x is None else x for x in (self.low, self.high))
        with np.errstate(invalid="ignore"):
            return type(self)(
                _grouped(np.asarray(self.t_s, float)[:, None], n_each)[:, 0, 0],
                mean(_grouped(self.mean, n_each), 1),
                np.fmin.reduce(_grouped(low, n_each), axis=1),
                np.fmax.reduce(_grouped(high, n_each), axis=1),
            )


def _grouped(values: FloatArray, n_each: int) -> FloatArray:
    """Return (n, m) values in groups of neighbours (n / n_each, n_each, m), padded with NaN."""
    n_groups = -(-len(values) // n_each)
    filled = np.full((n_groups * n_each, *values.shape[1:]), np.nan)
    filled[: len(values)] = values
    # numpy cannot infer the number of groups if there are no parts.
    return filled.reshape(n_groups, n_each, *values.shape[1:])


def series_out(
    *,
    of: str,
    metric: str,
    unit: str,
    help_: str,
    window: tuple[int, int],
    table: Table,
    names: Sequence[str],
    stretches: Sequence[SeriesSource],
    most: int,
) -> SeriesOut:
    slim = table.downsampled(most)
    t_s = np.asarray(slim.t_s, float)
    every_s = float(t_s[-1] - t_s[0]) / (len(t_s) - 1) if len(t_s) > 1 else 0.0
    return SeriesOut(
        of=of,
        metric=metric,
        unit=unit,
        help=help_,
        since_s=window[0],
        until_s=window[1],
        every_s=round(every_s, 3),
        stretches=[
            StretchOut.from_object(stretch, since_s=stretch.since) for stretch in stretches
        ],
        t_s=t_s.round(3).tolist(),
        parts=[
            PartOut.model_construct(
                part=name,
                values=_rounded(slim.mean[:, i]),
                low=None if slim.low is None else _rounded(slim.low[:, i]),
                high=None if slim.high is None else _rounded(slim.high[:, i]),
            )
            for i, name in enumerate(names)
        ],
    )


def _rounded(column: FloatArray) -> Numbers:
    """Round to six significant digits; None for NaN."""
    digits = f".{SIGNIFICANT_DIGITS}g"
    return [float(format(value, digits)) if isfinite(value) else None for value in column.tolist()]


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
    "other_comm_s": "Seconds of the step in communication that exchanges no gradients.",
}
NodeMetric = Annotated[str, OneOf(tuple(METRICS))]
RunMetric = Annotated[str, OneOf(tuple(OF_RUNS))]


class SeriesQuery(WindowQuery):
    """A window, and the number of points."""

    max_points: int = doc(
        "Most points; neighbours are averaged, with minimum and maximum. There are "
        "fewer points if there are many parts: a response has at most 50,000 values.",
        default=300,
        ge=1,
        le=2_000,
    )


class NodeDrawing(SeriesQuery):
    """A metric of a node."""

    metric: NodeMetric = doc("Its name.", "core_utilization_ratio")


class RunDrawing(SeriesQuery):
    """A metric of a run."""

    metric: RunMetric = doc("Name of the metric.", "step_s")


def unit_of(metric: str) -> str:
    """Return the unit at the end of a metric's name; counts have none."""
    return next((unit for unit in UNITS if metric.endswith(f"_{unit}")), "count")


@router.get(
    "/nodes/{name}/series", response=SeriesOut, **needs("read"), summary="A metric of a node"
)
def node_metric(
    request: HttpRequest, name: Path[NodeName], query: Query[NodeDrawing]
) -> SeriesOut:
    """Get one metric of a node over a window, with values for each part.

    The last 15 minutes have one value per second, earlier times one mean per minute with its
    minimum and maximum.
    """
    node = get_object_or_404(Node, name=name)
    hot, (start, end) = hot_store(), query.window(now=timezone.now())
    metric = METRICS[query.metric]
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
        most=query.max_points,
    )


@router.get(
    "/runs/{name}/series", response=SeriesOut, **needs("read"), summary="A metric of a run"
)
def run_metric(request: HttpRequest, name: Path[RunName], query: Query[RunDrawing]) -> SeriesOut:
    """Get one metric of a run over a window, for each step while single steps are stored."""
    run = get_object_or_404(Run, name=name)
    start, end = query.window(now=timezone.now())
    steps, stretches = run_history(
        hot_store(), run.name, start_s=start, end_s=end, long_term=long_term_history()
    )
    metric = query.metric
    return series_out(
        of=run.name,
        metric=metric,
        unit="tokens_per_s" if metric == "tokens_per_s" else unit_of(metric),
        help_=OF_RUNS[metric],
        window=(start, end),
        table=Table(steps.ended_at_s, _values(steps, metric)[:, None]),
        names=["run"],
        stretches=stretches,
        most=query.max_points,
    )


def _values(steps: StepBatch, metric: str) -> FloatArray:
    """Return a metric of each step: (n_steps,)."""
    if metric == "tokens_per_s":
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(steps.tokens / steps.step_s)
    if metric in PHASES:
        return mean(steps.phases[metric], 1)
    values: FloatArray = getattr(steps, metric)
    return values
