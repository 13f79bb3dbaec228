"""What the page of an imported run shows: the verdict, what it rests on, and its own time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.http import HttpRequest
from django.utils import timezone

from fleet.charts.imported_logs import charts_of
from fleet.charts.runs import RUN_CHARTS
from fleet.charts.windows import LONGEST_S, Window
from fleet.formatting import count, percent
from fleet.ingest.logs import (
    BY,
    KINDS,
    Curves,
    coverage_text,
    headline,
    log_caveats,
    times_text,
    unpack_curves,
)
from fleet.ingest.traces import CAUSES, NOT_RECORDED, SHORT, verdict_text
from fleet.ingest.traces import verdict_caveats as traces_doubts
from fleet.models import ReadLog, RecordedTrace, Run
from fleet.runs.compiles import CompileSummary, compile_summary
from fleet.runs.summaries import usd_per_mtok
from telemetry import catalog
from telemetry.blocks import FloatArray

ASSUMED_PRECISION = "bf16"
MOST_ERRORS = 8


@dataclass(frozen=True, slots=True)
class LogFigures:
    """A logged run in a few figures; None where the log does not tell."""

    step_s: float | None
    slow_step_s: float | None
    tokens_per_s: float | None
    seq_per_s: float | None
    mfu_ratio: float | None
    peak_flops: float | None
    usd_per_mtok: float | None
    usd: float
    first_loss: float | None
    last_loss: float | None


def log_context(run: Run) -> dict[str, Any]:
    """Return what the page of a run says beyond others where a log was read for it."""
    compiles = compiles_of(run)
    log: ReadLog | None = getattr(run, "log", None)
    if log is None:
        return {"compiles": compiles} if compiles else {}
    figures = figures_of(run, unpack_curves(bytes(log.curves)))
    return {
        "log": log,
        "compiles": compiles,
        "figures": figures,
        "errors": run.annotations.filter(by=BY)[:MOST_ERRORS],
        "headline": headline(run, log, figures.step_s),
        "kinds": [(KINDS.get(name, name), n) for name, n in log.details["understood"].items()],
        "read": coverage_text(log),
        "doubts": log_caveats(log),
        "layout": layout_of(run, log),
    }


def log_page(request: HttpRequest, run: Run, log: ReadLog) -> dict[str, Any]:
    """Return the charts that a log can draw, over the time it took unless asked otherwise."""
    page: dict[str, Any] = {"charts": charts_of(log), "has_steps": log.n_steps > 0}
    if not {"window", "from", "to"} & set(request.GET):
        finished_at = run.finished_at or timezone.now()
        end = math.ceil(finished_at.timestamp()) + 1
        start = max(math.floor(run.started_at.timestamp()), end - LONGEST_S)
        page |= {"length": "", "window": Window(start, end), "id_suffix": "-long"}
    return page


def compiles_of(run: Run) -> CompileSummary | None:
    """Return what is known of a run's compile cache, None where nothing is."""
    return compile_summary(run) if getattr(run, "has_compiles", True) else None


def figures_of(run: Run, curves: Curves) -> LogFigures:
    """Sum up a run from its curves."""
    tokens_per_s = _overall(curves)
    slow = curves["step_s"][np.isfinite(curves["step_s"])]
    loss = curves["loss"][np.isfinite(curves["loss"])]
    peak = _peak_flops(run)
    priced = tokens_per_s is not None and run.usd_per_hour > 0
    return LogFigures(
        step_s=_median(curves["step_s"]),
        slow_step_s=float(np.percentile(slow, 95)) if len(slow) else None,
        tokens_per_s=tokens_per_s,
        seq_per_s=_median(curves["seq_per_s"]),
        mfu_ratio=_mfu_ratio(run, tokens_per_s, peak),
        peak_flops=peak,
        usd_per_mtok=usd_per_mtok(run.usd_per_hour, tokens_per_s or 0.0) if priced else None,
        usd=run.usd_by(timezone.now()),
        first_loss=float(loss[0]) if len(loss) else None,
        last_loss=float(loss[-1]) if len(loss) else None,
    )


def _overall(curves: Curves) -> float | None:
    """Return tokens per second over all steps, None where a log does not tell."""
    known = np.isfinite(curves["tokens_per_s"]) & np.isfinite(curves["step_s"])
    took_s = curves["step_s"][known]
    if not took_s.sum() > 0:
        return None
    return float((curves["tokens_per_s"][known] * took_s).sum() / took_s.sum())


def _median(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def _peak_flops(run: Run) -> float | None:
    """Return the peak that MFU is measured against; None where hardware or precision has none."""
    try:
        node = catalog.instance(run.instance_type).peak_flops(run.precision or ASSUMED_PRECISION)
    except (ValueError, KeyError):
        return None
    return run.n_nodes * node or None


def _mfu_ratio(run: Run, tokens_per_s: float | None, peak: float | None) -> float | None:
    """Return the share of the peak, where the catalogue knows model and instance."""
    if tokens_per_s is None or peak is None or not run.seq_len:
        return None
    try:
        per_token = catalog.model(run.model).flops_per_token(run.seq_len)
    except ValueError:
        return None
    return tokens_per_s * per_token / peak


def layout_of(run: Run, log: ReadLog) -> Sequence[tuple[str, str]]:
    """Return what is known of the job; what nobody said is left out."""
    hardware = "" if run.instance_type == NOT_RECORDED else run.instance_type
    nodes = f"{run.n_nodes} \u00d7 {hardware or 'nodes'}" if run.n_nodes else hardware
    batch = f"{run.global_batch:,} sequences" if run.global_batch else "sequences"
    length = f" of {run.seq_len:,} tokens" if run.seq_len else ""
    price = f"${run.usd_per_node_hour:,.2f} per node and hour, {run.price_basis}"
    assumed, last = f"unknown; MFU assumes {ASSUMED_PRECISION}", count(run.last_step)
    known = [
        ("Read from", log.file),
        ("Written by", log.family),
        ("Model", "" if run.model == NOT_RECORDED else run.model),
        ("On", nodes),
        ("Layout", f"tensor {run.tp}, pipeline {run.pp}" if run.tp * run.pp > 1 else ""),
        ("Batch", batch + length if run.global_batch or length else ""),
        ("Precision", run.precision or (assumed if run.instance_type == hardware else "")),
        ("Price", price if run.usd_per_node_hour else ""),
        ("Steps", f"{count(log.n_steps)} logged, last step {last}" if log.n_steps else "none"),
        ("Imported", f"{log.imported_at:%-d %b %Y %H:%M} UTC"),
        ("Times", times_text(log) if log.n_steps else ""),
        ("All-reduce", f"not in the log; limit {percent(run.allreduce_limit_ratio, 0)}"),
    ]
    return [(name, value) for name, value in known if value]


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
class WorkerCell:
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
        "headline": verdict_text(trace),
        "m_w": _at_least_zero(trace.m_w),
        "m_s": _at_least_zero(trace.m_s),
        "causes": causes_of(trace),
        "cause": SHORT[trace.cause],
        "doubts": traces_doubts(trace),
        "stages": range(len(trace.details["stage_slowdown"])),
        "heat": heat_of(trace),
        "is_long": len(trace.details["ranks"]) > MOST_AT_A_GLANCE,
        "layout": traces_layout_of(run, trace),
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


def heat_of(trace: RecordedTrace) -> list[tuple[int, list[WorkerCell]]]:
    """Return a row per replica, a cell per stage; of many replicas, the slowest first."""
    hottest = max(LEAST_SPREAD_RATIO, trace.slowdown_ratio - 1.0)
    blamed, details = set(trace.details["culprits"]), trace.details
    rows = [
        (
            dp,
            [
                WorkerCell(
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


def traces_layout_of(run: Run, trace: RecordedTrace) -> Sequence[tuple[str, str]]:
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
            "" if trace.is_dated else "not recorded; the end is set to the import time",
        ),
        ("Limit", f"{percent(run.allreduce_limit_ratio, 0)} all-reduce"),
    ]
    return [(name, value) for name, value in known if value]


def _hardware(run: Run) -> str:
    if run.instance_type == NOT_RECORDED:
        return f"{run.n_nodes} nodes" if run.n_nodes else ""
    return f"{run.n_nodes} \u00d7 {run.instance_type}" if run.n_nodes else run.instance_type
