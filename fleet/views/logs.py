"""What the page of a run shows of its log and of its compile cache."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.http import HttpRequest
from django.utils import timezone

from fleet.charts.logs import charts_of
from fleet.charts.windows import LONGEST_S, Window
from fleet.compiles import Compiles, summed_up
from fleet.logs.curves import Curves, unpacked
from fleet.logs.errors import BY
from fleet.models import ReadLog, Run
from fleet.summaries import usd_per_mtok
from fleet.templatetags.units import count, percent
from fleet.traces import NOT_RECORDED
from fleet.words.logs import KINDS, doubts, headline, read_in_words, times_in_words
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
    figures = figures_of(run, unpacked(bytes(log.curves)))
    return {
        "log": log,
        "compiles": compiles,
        "figures": figures,
        "errors": run.annotations.filter(by=BY)[:MOST_ERRORS],
        "headline": headline(run, log, figures.step_s),
        "kinds": [(KINDS.get(name, name), n) for name, n in log.details["understood"].items()],
        "read": read_in_words(log),
        "doubts": doubts(log),
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


def compiles_of(run: Run) -> Compiles | None:
    """Return what is known of a run's compile cache, None where nothing is."""
    return summed_up(run) if getattr(run, "has_compiles", True) else None


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
    assumed, last = f"not told; for MFU {ASSUMED_PRECISION} is assumed", count(run.last_step)
    known = [
        ("Read from", log.file),
        ("Written by", log.family),
        ("Model", "" if run.model == NOT_RECORDED else run.model),
        ("On", nodes),
        ("Layout", f"tensor {run.tp}, pipeline {run.pp}" if run.tp * run.pp > 1 else ""),
        ("Batch", batch + length if run.global_batch or length else ""),
        ("Precision", run.precision or (assumed if run.instance_type == hardware else "")),
        ("Price", price if run.usd_per_node_hour else ""),
        ("Steps", f"{count(log.n_steps)} logged, the last is {last}" if log.n_steps else "none"),
        ("Imported", f"{log.imported_at:%-d %b %Y %H:%M} UTC"),
        ("Times", times_in_words(log) if log.n_steps else ""),
        ("All-reduce", f"not in a log; limit {percent(run.allreduce_limit_ratio, 0)}"),
    ]
    return [(name, value) for name, value in known if value]
