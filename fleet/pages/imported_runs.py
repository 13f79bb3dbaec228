"""What the page of a run shows of an imported log or trace."""

import copy
import math
from typing import Any

import numpy as np
from django.http import HttpRequest
from django.utils import timezone

from fleet.charts.imported_logs import charts_of as log_charts_of
from fleet.charts.runs import RUN_CHARTS
from fleet.charts.windows import LONGEST_S, Window
from fleet.formatting import at, count, percent
from fleet.models import ReadLog, RecordedTrace, Run
from fleet.runs.compile_summaries import compile_summary
from fleet.runs.imported import (
    BY,
    CAUSES,
    KINDS,
    NOT_RECORDED,
    SHORT,
    Curves,
    coverage_text,
    headline,
    log_caveats,
    times_text,
    unpack_curves,
    verdict_caveats,
    verdict_text,
)
from fleet.runs.summaries import usd_per_mtok
from telemetry.blocks import median_of

WINDOW_FIELDS = {"window", "from", "to"}
ASSUMED_PRECISION = "bf16"
MOST_ERRORS = 8


def log_context(run: Run) -> dict[str, Any]:
    """Return what the page shows of the compile cache and of an imported log."""
    compiles = compile_summary(run) if getattr(run, "has_compiles", True) else None
    log: ReadLog | None = getattr(run, "log", None)
    if log is None:
        return {"compiles": compiles} if compiles else {}
    figures = figures_of(run, unpack_curves(bytes(log.curves)))
    not_finite = [each for each in log.details.get("not_finite", ()) if each["is_last"]]
    return {
        "log": log,
        "compiles": compiles,
        "figures": figures,
        "errors": run.annotations.filter(by=BY)[:MOST_ERRORS],
        "headline": headline(run, log, figures["step_s"]),
        "kinds": [(KINDS.get(name, name), n) for name, n in log.details["understood"].items()],
        "read": coverage_text(log),
        "caveats": log_caveats(log),
        "end": log.details.get("end", ""),
        "failures": log.details.get("failures", ())[:MOST_ERRORS],
        "loss_word": next((each for each in not_finite if each["name"] == "loss"), None),
        "layout": log_layout(run, log),
    }


def log_page(request: HttpRequest, run: Run, log: ReadLog) -> dict[str, Any]:
    """Return the charts of a log, over the whole run unless the address gives a window."""
    page: dict[str, Any] = {"charts": log_charts_of(log), "has_steps": log.n_steps > 0}
    if not WINDOW_FIELDS & set(request.GET):
        finished_at = run.finished_at or timezone.now()
        end = math.ceil(finished_at.timestamp()) + 1
        start = max(math.floor(run.started_at.timestamp()), end - LONGEST_S)
        page |= {"length": "", "window": Window(start, end), "id_suffix": "-long"}
    return page


def figures_of(run: Run, curves: Curves) -> dict[str, float | None]:
    """Summarise an imported run by its curves; None for what the log does not contain."""
    step_s = curves["step_s"][np.isfinite(curves["step_s"])]
    loss = curves["loss"][np.isfinite(curves["loss"])]
    known = np.isfinite(curves["tokens_per_s"]) & np.isfinite(curves["step_s"])
    took_s = curves["step_s"][known]
    tokens_per_s = None
    if took_s.sum() > 0:
        tokens_per_s = float((curves["tokens_per_s"][known] * took_s).sum() / took_s.sum())
    assumed = copy.copy(run)
    assumed.precision = run.precision or ASSUMED_PRECISION
    has_price = tokens_per_s is not None and run.usd_per_hour > 0
    return {
        "step_s": float(np.median(step_s)) if len(step_s) else None,
        "slow_step_s": float(np.percentile(step_s, 95)) if len(step_s) else None,
        "tokens_per_s": tokens_per_s,
        "seq_per_s": median_of(curves["seq_per_s"]),
        "mfu_ratio": assumed.mfu_ratio(tokens_per_s),
        "peak_flops": assumed.peak_flops or None,
        "usd_per_mtok": usd_per_mtok(run.usd_per_hour, tokens_per_s or 0.0) if has_price else None,
        "usd": run.usd_by(timezone.now()),
        "first_loss": float(loss[0]) if len(loss) else None,
        "last_loss": float(loss[-1]) if len(loss) else None,
    }


def log_layout(run: Run, log: ReadLog) -> list[tuple[str, str]]:
    has_type = run.instance_type != NOT_RECORDED
    batch = f"{count(run.global_batch) if run.global_batch else 'unknown number of'} sequences"
    length = f" of {run.seq_len:,} tokens" if run.seq_len else ""
    price = f"${run.usd_per_node_hour:,.2f} per node-hour, {run.price_basis}"
    assumed, last = f"unknown; MFU assumes {ASSUMED_PRECISION}", count(run.last_step)
    rows = [
        ("Read from", log.file),
        ("Written by", log.family),
        ("Model", "" if run.model == NOT_RECORDED else run.model),
        ("Nodes", _hardware(run)),
        ("Layout", f"tensor {run.tp}, pipeline {run.pp}" if run.tp * run.pp > 1 else ""),
        ("Batch", batch + length if run.global_batch or length else ""),
        ("Precision", run.precision or (assumed if has_type else "")),
        ("Price", price if run.usd_per_node_hour else ""),
        ("Steps", f"{count(log.n_steps)} logged, last step {last}" if log.n_steps else "none"),
        ("Imported", at(log.imported_at, "day")),
        ("Times", times_text(log) if log.n_steps else ""),
        ("All-reduce", f"not in the log; limit {percent(run.allreduce_limit_ratio, 0)}"),
    ]
    return [(name, value) for name, value in rows if value]


def _hardware(run: Run) -> str:
    if run.instance_type == NOT_RECORDED:
        return f"{run.n_nodes} nodes" if run.n_nodes else ""
    return f"{run.n_nodes} \u00d7 {run.instance_type}" if run.n_nodes else run.instance_type


# The highest level means: this worker alone is as slow as the whole run.
LEVELS = 6
LEAST_SPREAD_RATIO = 0.1
# More replicas than this are sorted, the slowest first.
MOST_UNSORTED = 16
# So many ranks have a row of their own.
MOST_RANKS = 64


def trace_context(run: Run) -> dict[str, Any]:
    trace: RecordedTrace | None = getattr(run, "trace", None)
    if trace is None:
        return {}
    shares = trace.details["shares"]
    return {
        "trace": trace,
        "headline": verdict_text(trace),
        "m_w": _as_share(trace.m_w),
        "m_s": _as_share(trace.m_s),
        "by_rank": (by_rank := busiest_ranks(trace)),
        "has_hbm": any(each["hbm_bytes_per_s"] is not None for each in by_rank),
        "has_throttling": any(each["throttled_ratio"] is not None for each in by_rank),
        "causes": [
            {
                "name": name,
                "help": text,
                "share_ratio": (share := _as_share(shares.get(cause))),
                "width": round(100 * (share or 0.0)),
                "is_verdict": cause == trace.cause,
            }
            for cause, (name, text) in CAUSES.items()
        ],
        "cause": SHORT[trace.cause],
        "caveats": verdict_caveats(trace),
        "stages": range(len(trace.details["stage_slowdown"])),
        "heat": heat_of(trace),
        "is_long": len(trace.details["ranks"]) > MOST_UNSORTED,
        "layout": trace_layout(run, trace),
    }


def _as_share(share_ratio: float | None) -> float | None:
    """Keep estimates of shares, which scatter, between 0 and 1."""
    return None if share_ratio is None else min(1.0, max(0.0, share_ratio))


def trace_page(request: HttpRequest, run: Run) -> dict[str, Any]:
    """Return the charts of a trace, over the whole run unless the address gives a window."""
    if getattr(run, "trace", None) is None:
        return {}
    end = run.finished_at or timezone.now()
    # Workers are stored by the minute, so a shorter trace has no point of that chart.
    has_minutes = (end - run.started_at).total_seconds() >= 60
    names = ("phases", "share", "workers") if has_minutes else ("phases", "share")
    page: dict[str, Any] = {"charts": [RUN_CHARTS[name] for name in names]}
    if not WINDOW_FIELDS & set(request.GET):
        whole = Window(math.floor(run.started_at.timestamp()), math.ceil(end.timestamp()) + 1)
        page |= {"window": whole, "id_suffix": "-long"}
    return page


def heat_of(trace: RecordedTrace) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return a row per replica with a cell per stage: the slowdown due to that worker alone."""
    hottest = max(LEAST_SPREAD_RATIO, trace.slowdown_ratio - 1.0)
    culprits, details = set(trace.details["culprits"]), trace.details
    rows = [
        (
            dp,
            [
                {
                    "rank": rank,
                    "slowdown_ratio": slowdown,
                    "level": min(LEVELS, max(0, round(LEVELS * (slowdown - 1.0) / hottest))),
                    "is_culprit": f"rank{rank}-dp{dp}-stage{stage}" in culprits,
                }
                for stage, (rank, slowdown) in enumerate(zip(ranks, slowdowns, strict=True))
            ],
        )
        for dp, (ranks, slowdowns) in enumerate(
            zip(details["ranks"], details["worker_slowdown"], strict=True)
        )
    ]
    if len(rows) <= MOST_UNSORTED:
        return rows
    return sorted(rows, key=lambda row: -max(cell["slowdown_ratio"] for cell in row[1]))


def busiest_ranks(trace: RecordedTrace) -> list[dict[str, Any]]:
    """Return the figures of the ranks; of many, those with the most work."""
    ranks = trace.details.get("by_rank", [])
    if len(ranks) <= MOST_RANKS:
        return list(ranks)
    return sorted(ranks, key=lambda each: -each["work_s"])[:MOST_RANKS]


def trace_layout(run: Run, trace: RecordedTrace) -> list[tuple[str, str]]:
    n_dp, n_stages = len(trace.details["ranks"]), len(trace.details["stage_slowdown"])
    times = "" if trace.is_dated else "not recorded; the end is set to the import time"
    rows = [
        ("Read from", trace.file),
        ("Model", "" if run.model == NOT_RECORDED else run.model),
        ("Nodes", _hardware(run)),
        ("Layout", f"tensor {run.tp}, pipeline {n_stages}, data {n_dp}"),
        ("Recorded", f"{trace.n_steps} steps of {trace.n_workers} workers"),
        ("Imported", at(trace.imported_at, "day")),
        ("Times", times),
        ("All-reduce limit", percent(run.allreduce_limit_ratio, 0)),
    ]
    return [(name, value) for name, value in rows if value]
