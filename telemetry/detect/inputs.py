"""The input of detection, and functions that read spans and steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.detect.rules import RULES
from telemetry.steps import StepBatch, WorkerState

# So many reports of a node show how often it reports.
ENOUGH_REPORTS = 3


@dataclass(frozen=True, slots=True)
class OpenProblem:
    """An open alert of the run or of one of its nodes, with its latest evidence."""

    rule: str
    cause: str
    node: str | None = None
    device: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DetectionInput:
    """One run, now.

    ``steps`` are those of the last minutes, of all workers. ``hardware(metrics, last_s)`` reads
    the newest seconds of the run's nodes (a third argument: of some), ``hardware_at(metrics,
    ages_s)`` single seconds of those ages, oldest first. ``counts`` are ECC counts at a few
    moments of the last minutes, oldest first, or None where they were not read.
    ``cores_per_device`` counts cores as the runtime does.
    ``n_stages`` is the pipeline depth; stages are contiguous blocks of workers. ``phase`` is what
    the run reports, since ``phase_since_s`` (None: unknown). ``open_problems`` are the open alerts
    of the run and of its nodes. ``reads_hardware``: whether hardware rules run in this second.
    Steps that end after ``started_s`` are those of its newest start, where that is known.
    ``earlier(since_s)`` reads steps before the window, and ``saved(before_s)`` how long
    checkpoints took that ended before. ``checkpoint_s`` is the expected duration of one.
    ``watches`` keeps what is known of each run from one second to the next. Nodes report every
    ``report_every_s`` seconds. ``workers`` reads what each worker said last. ``own_limits`` are
    limits of this run that differ from those of the rules, by ``rule.limit``.
    ``false_pages_per_year`` are accepted of this run, of all rules together; None: the usual ones,
    of an only run.
    """

    run: str
    nodes: tuple[str, ...]
    steps: StepBatch
    hardware: Callable[..., Span]
    now_s: float
    limit_ratio: float = RULES["allreduce_share"].limits["limit_ratio"]
    resolve_ratio: float = RULES["allreduce_share"].limits["resolve_ratio"]
    cores_per_device: int = 1
    n_stages: int = 1
    counts: Span | None = None
    phase: str = "training"
    phase_since_s: float | None = None
    started_s: float | None = None
    open_problems: tuple[OpenProblem, ...] = ()
    reads_hardware: bool = True
    hardware_at: Callable[[Sequence[str], Sequence[int]], Span] | None = None
    earlier: Callable[[float], StepBatch] | None = None
    saved: Callable[[float], Sequence[float]] | None = None
    checkpoint_s: float | None = None
    watches: dict[str, Any] | None = None
    report_every_s: int = 1
    workers: Callable[[], Mapping[str, WorkerState]] | None = None
    own_limits: Mapping[str, float] = field(default_factory=dict)
    false_pages_per_year: float | None = None

    def limit(self, rule: str, name: str) -> float:
        return self.own_limits.get(f"{rule}.{name}", RULES[rule].limits[name])

    def node_of(self, worker: str) -> str | None:
        """Return the node of a worker: its name up to the first slash."""
        node = worker.partition("/")[0]
        return node if node in self.row_of else None

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """Rows of nodes by name."""
        return {node: row for row, node in enumerate(self.nodes)}

    def lagging(self, last_s: int) -> int:
        """How many of the newest seconds to read for ``last_s`` seconds with a report."""
        return last_s + 3 * (self.report_every_s - 1)


def node_values(span: Span, metric: str) -> FloatArray:
    """Return a metric with one value per node: (n_ticks, n_nodes), NaN where missing."""
    values = span.values.get(metric)
    if values is None or values.shape[2] == 0:
        return np.full((len(span.ticks), len(span.nodes)), np.nan)
    return np.asarray(values[..., 0], dtype=float)


def part_values(span: Span, metric: str) -> FloatArray:
    """Return a metric of all parts: (n_ticks, n_nodes, n_parts), at least one part (NaN)."""
    values = span.values.get(metric)
    if values is None or values.shape[2] == 0:
        return np.full((len(span.ticks), len(span.nodes), 1), np.nan)
    return values


def node_peak(span: Span, metric: str) -> FloatArray:
    """Maximum over parts: (n_ticks, n_nodes), NaN where missing."""
    values = part_values(span, metric)
    known = np.isfinite(values)
    most = np.where(known, values, -np.inf).max(axis=2)
    return np.where(known.any(axis=2), most, np.nan)


def new_measurements(values: FloatArray) -> NDArray[np.bool_]:
    """Mark the ticks with a new measurement: the shape of ``values``.

    A probe per minute, or a report every 5 s, is repeated each second until the next one. A
    repeated value is the same measurement and counts once.
    """
    new = np.isfinite(values)
    if new.all():
        # Nearly always nothing is missing: all ticks at once.
        new[1:] = values[1:] != values[:-1]
        return new
    last = np.full(values.shape[1:], np.nan, values.dtype)
    for tick, now in enumerate(values):
        known = new[tick].copy()
        new[tick] &= now != last
        np.copyto(last, now, where=known)
    return new


def newest_measurements(values: FloatArray, n: int) -> FloatArray:
    """Return the newest n measurements of each part: (n, ...), oldest first, NaN where fewer."""
    new = new_measurements(values)
    age: IntArray = np.cumsum(new[::-1], axis=0, dtype=np.int16)[::-1]
    at = np.nonzero(new & (age <= n))
    newest = np.full((n, *values.shape[1:]), np.nan, values.dtype)
    newest[n - age[at], *at[1:]] = values[at]
    return newest


def reporting_interval(span: Span) -> int:
    """Seconds between two reports of a node, from metrics that hardly ever stay the same.

    A report is repeated in every second that it covers. 0 where too few have come.
    """
    new = np.zeros((len(span.ticks), len(span.nodes)), bool)
    for metric in span.values:
        new |= new_measurements(part_values(span, metric)).any(axis=2)
    gaps = [np.diff(np.flatnonzero(node)) for node in new.T if node.sum() > ENOUGH_REPORTS]
    return int(np.median(np.concatenate(gaps))) if gaps else 0
