"""What the page of an imported run shows: the verdict, what it rests on, and its own time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from fleet.charts.runs import RUN_CHARTS
from fleet.charts.windows import Window
from fleet.models import RecordedTrace, Run
from fleet.templatetags.units import percent
from fleet.traces import NOT_RECORDED
from fleet.words.traces import CAUSES, SHORT, doubts, verdict_in_words

# A cell as hot as the whole run is slow has the highest level.
LEVELS = 6
LEAST_SPREAD_RATIO = 0.1
# So many replicas are seen at a glance; of more, those that slow the step down come first.
MOST_AT_A_GLANCE = 16


@dataclass(frozen=True, slots=True)
class Cause:
    """One line of what explains the slowdown: by how much, and how it is told."""

    name: str
    help: str
    share_ratio: float | None
    is_verdict: bool

    @property
    def width(self) -> int:
        """Length of its bar in percent."""
        return round(100 * min(1.0, self.share_ratio or 0.0))


@dataclass(frozen=True, slots=True)
class Cell:
    """One worker of the heat: the step over the ideal one, were only this worker as it was."""

    rank: int
    slowdown_ratio: float
    level: int
    is_culprit: bool


def recorded(run: Run) -> RecordedTrace | None:
    """Return the trace that a run was imported from, if it was."""
    return getattr(run, "trace", None)


def trace_context(run: Run) -> dict[str, Any]:
    """Return what the page of a run says beyond others where it was imported."""
    trace = recorded(run)
    if trace is None:
        return {}
    return {
        "trace": trace,
        "headline": verdict_in_words(trace),
        "m_w": _at_least_zero(trace.m_w),
        "m_s": _at_least_zero(trace.m_s),
        "causes": causes_of(trace),
        "cause": SHORT[trace.cause],
        "doubts": doubts(trace),
        "stages": range(len(trace.details["stage_slowdown"])),
        "heat": heat_of(trace),
        "is_long": len(trace.details["ranks"]) > MOST_AT_A_GLANCE,
        "layout": layout_of(run, trace),
    }


def _at_least_zero(share_ratio: float | None) -> float | None:
    """Return a share that a reader can take for one: less than nothing is nothing."""
    return None if share_ratio is None else max(0.0, share_ratio)


def trace_page(request: HttpRequest, run: Run) -> dict[str, Any]:
    """Return the charts that a trace can draw, over the time it took unless asked otherwise."""
    if recorded(run) is None:
        return {}
    page: dict[str, Any] = {
        "charts": [RUN_CHARTS[name] for name in ("phases", "share", "workers")]
    }
    if not {"window", "from", "to"} & set(request.GET):
        end = run.finished_at or timezone.now()
        whole = Window(math.floor(run.started_at.timestamp()), math.ceil(end.timestamp()) + 1)
        page |= {"window": whole, "id_suffix": "-long"}
    return page


def causes_of(trace: RecordedTrace) -> list[Cause]:
    """Return every cause with the share of the slowdown that it explains."""
    shares = trace.details["shares"]
    return [
        Cause(name, text, _at_least_zero(shares.get(cause)), cause == trace.cause)
        for cause, (name, text) in CAUSES.items()
    ]


def heat_of(trace: RecordedTrace) -> list[tuple[int, list[Cell]]]:
    """Return a row per replica, a cell per stage; of many replicas, the slowest first."""
    hottest = max(LEAST_SPREAD_RATIO, trace.slowdown_ratio - 1.0)
    blamed, details = set(trace.details["culprits"]), trace.details
    rows = [
        (
            dp,
            [
                Cell(
                    rank,
                    slowdown,
                    level=min(LEVELS, max(0, round(LEVELS * (slowdown - 1.0) / hottest))),
                    is_culprit=f"rank{rank}-dp{dp}-stage{stage}" in blamed,
                )
                for stage, (rank, slowdown) in enumerate(zip(ranks, slowdowns, strict=True))
            ],
        )
        for dp, (ranks, slowdowns) in enumerate(
            zip(details["ranks"], details["worker_slowdown"], strict=True)
        )
    ]
    if len(rows) <= MOST_AT_A_GLANCE:
        return rows
    return sorted(rows, key=lambda row: -max(cell.slowdown_ratio for cell in row[1]))


def layout_of(run: Run, trace: RecordedTrace) -> Sequence[tuple[str, str]]:
    """Return how the job was laid out; what nobody said is left out."""
    n_dp, n_stages = len(trace.details["ranks"]), len(trace.details["stage_slowdown"])
    known = [
        ("Read from", trace.file),
        ("Model", "" if run.model == NOT_RECORDED else run.model),
        ("On", _hardware(run)),
        ("Layout", f"tensor {run.tp}, pipeline {n_stages}, data {n_dp}"),
        ("Recorded", f"{trace.n_steps} steps of {trace.n_workers} workers"),
        ("Imported", f"{trace.imported_at:%-d %b %Y %H:%M} UTC"),
        (
            "Times",
            "" if trace.is_dated else "not recorded; set so that the run ends at the import",
        ),
        ("Limit", f"{percent(run.allreduce_limit_ratio, 0)} all-reduce"),
    ]
    return [(name, value) for name, value in known if value]


def _hardware(run: Run) -> str:
    if run.instance_type == NOT_RECORDED:
        return f"{run.n_nodes} nodes" if run.n_nodes else ""
    return f"{run.n_nodes} \u00d7 {run.instance_type}" if run.n_nodes else run.instance_type
