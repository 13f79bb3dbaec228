"""The maps of a node and a run: every part over time, coloured by how far it is from its peers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fleet.charts.deviations import (
    OF_HARDWARE,
    OF_STEPS,
    SIGNALS,
    Outlier,
    Signal,
    deviations,
    deviations_by_role,
    furthest,
    level_of,
    middle,
    outlier_of,
    strengths,
)
from fleet.charts.figures import Heat, Place, column_s, columns_of, workers_reach
from fleet.charts.readings import current_steps
from fleet.charts.runs import worker_places
from fleet.charts.windows import DEFAULT, LENGTHS, Window
from fleet.models import Node, Run
from fleet.runs.devices import nearest, stages
from telemetry.blocks import METRICS, FloatArray, Span, mean
from telemetry.series import Series
from telemetry.steps import StepBatch
from telemetry.store.history import node_series, worker_minutes
from telemetry.store.hot import HotStore
from telemetry.store.reading import LongTerm, Source
from telemetry.units import MINUTE_S

# The last seconds, of which means are compared: several steps of most runs.
NOW_S = 30
# Peers of a node in a map; with its own parts they are some hundred values in each second.
MOST_PEERS = 15
# A screen shows no more rows apart: the others of a run share the last row.
MOST_ROWS = 48
# The map of every chart name.
MAPS: Mapping[str, Signal] = {signal.chart: signal for signal in SIGNALS.values()}
WORKER_MAPS: Mapping[str, Signal] = {signal.chart: signal for signal in OF_STEPS}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What of a node is compared with its peers now, and what stands out."""

    signals: Sequence[Signal]
    outlier: Outlier | None

    def drawn(self, asked: str) -> Signal:
        """Return the signal that is asked for; else the one that stands out."""
        if asked in {signal.name for signal in self.signals}:
            return SIGNALS[asked]
        if self.outlier is not None:
            return self.outlier.signal
        return self.signals[-1] if self.signals else SIGNALS["utilization"]


def compare_node(hot: HotStore, node: Node, *, at_s: int | None = None) -> Comparison:
    """Compare the last seconds of a node with its peers, or those before ``at_s``."""
    peers = nearest(node)[:MOST_PEERS]
    end = hot.newest().get(node.shard, 0) if at_s is None else at_s
    span = _span(hot, [node, *peers], [s.metric for s in OF_HARDWARE], end - NOW_S + 1, end)
    found: list[tuple[Signal, Outlier | None]] = []
    if node.run is not None:
        found += _of_steps(hot, node.run, node, at_s=at_s)
    for signal in OF_HARDWARE if node.name in span.nodes else ():
        values = level_of(signal, span.values[signal.metric])
        own = span.nodes.index(node.name)
        if np.isfinite(values[own]).any():
            found.append((signal, outlier_of(signal, span.nodes, values, own=[own])))
    return Comparison([signal for signal, _ in found], furthest(each for _, each in found))


def _of_steps(
    hot: HotStore, run: Run, node: Node, *, at_s: int | None
) -> list[tuple[Signal, Outlier | None]]:
    """Compare the workers of a node with those of its run, over the newest steps."""
    if at_s is None:
        now_s = hot.newest_step_at(run.name) or 0.0
        steps = current_steps(hot, [run.name], now_s=hot.newest().get(node.shard, now_s))
        batch = steps.get(run.name, StepBatch.empty(run.name))
    else:
        batch = hot.steps(run.name, since_s=at_s - MINUTE_S, until_s=at_s + 1)
    role, step_s = stages(len(batch.workers), run.pp), float(mean(batch.step_s, 0))
    own = [i for i, name in enumerate(batch.workers) if name.partition("/")[0] == node.name]
    return [
        (signal, outlier_of(signal, batch.workers, values[:, None], role, own=own, step_s=step_s))
        for signal in OF_STEPS
        if np.isfinite(values := level_of(signal, batch.phases[signal.metric])).any()
    ]


def _span(
    hot: Source, nodes: Sequence[Node], metrics: Sequence[str], start: int, end: int
) -> Span:
    shards = tuple(dict.fromkeys(node.shard for node in nodes))
    names = {node.name for node in nodes}
    return hot.window(shards, metrics, start=max(0, start), end=end, only=names)


def node_map(
    hot: Source,
    node: Node,
    signal: Signal,
    window: Window,
    *,
    long_term: LongTerm | None = None,
) -> Heat:
    """Draw every part of a node over time; of a signal of steps the workers of its run."""
    if signal.is_of_steps:
        return worker_map(hot, node.run, signal, window) if node.run else _nothing(signal, window)
    # Data that has not arrived yet is no gap: a live window ends at its shard's newest tick.
    newest = hot.newest().get(node.shard, window.end) if window.is_live else window.end
    start, end = window.start, max(window.start, min(window.end, newest))
    series = node_series(
        hot,
        shard=node.shard,
        node=node.name,
        metric=signal.metric,
        start=start,
        end=end,
        long_term=long_term,
    )
    # Of minutes, which each node has for itself, only the parts of the node are compared.
    peers = nearest(node)[:MOST_PEERS] if series.every_s == 1 else []
    others = np.zeros((len(series.t_s), 1, 0), "f4")
    if peers:
        others = _span(hot, peers, [signal.metric], start, end).values[signal.metric]
    every_s = column_s(window.length_s, every_s=series.every_s)
    heat = _map_of(series, others, signal, node, every_s=every_s)
    # The stream appends the current column once it is complete.
    is_appended = window.is_live and series.every_s == 1
    heat = heat.until(end) if is_appended else heat
    return replace(heat, window=(window.start, window.end))


def _map_of(
    series: Series, others: FloatArray, signal: Signal, node: Node, *, every_s: int
) -> Heat:
    """Compare the parts of a node with each other, and with those of ``others``.

    These are (n_times, n_nodes, n_parts). Of what changes within a step the highest of the last
    seconds are compared: a node that waits while another computes is no outlier.
    """
    n, flat = series.values.shape[1], others.reshape(len(others), -1)
    of_all = np.concatenate([series.values, flat], axis=1)
    z, medians = deviations(signal, of_all)
    if signal.follows_step and series.every_s == 1:
        z, _ = deviations(signal, highest_of(of_all, NOW_S))
    t_s, values = columns_of(series, series.values, every_s=every_s)
    n_peers = int(np.isfinite(z).sum())
    # One late probe is no outlier.
    _, z = columns_of(series, z[:, :n], every_s=every_s, how=middle)
    _, peers = columns_of(series, medians, every_s=every_s)
    return Heat(
        t_s,
        [f"{signal.part} {i}" for i in range(n)],
        values.T,
        signal.unit,
        every_s,
        stretches=series.stretches,
        places=part_places(node, signal),
        strengths=strengths(z, n_peers=n_peers).T,
        peers=peers,
        worse=signal.worse,
    )


def highest_of(values: FloatArray, n: int) -> FloatArray:
    """Return the highest of each value and the ``n - 1`` before it; NaN where it is unknown.

    >>> highest_of(np.array([[3.0], [1.0], [np.nan], [0.0], [0.0]]), 3).ravel().tolist()
    [3.0, 3.0, nan, 1.0, 0.0]
    """
    highest, reach = values.copy(), 1
    while reach < min(n, len(values)):
        by = min(reach, n - reach)
        highest[by:] = np.fmax(highest[by:], highest[:-by].copy())
        reach += by
    return np.where(np.isfinite(values), highest, np.nan)


def _nothing(signal: Signal, window: Window) -> Heat:
    return Heat(np.zeros(0), (), np.zeros((0, 0)), signal.unit, window=(window.start, window.end))


def part_places(node: Node, signal: Signal) -> list[Place]:
    """Return the page of the device that each part is, or belongs to."""
    if METRICS[signal.metric].part == "efa":
        return []
    n_each = node.cores_per_device if METRICS[signal.metric].part == "core" else 1
    pages = [
        Place(f"device {i} of {node.name}", f"{node.get_absolute_url()}devices/{i}/")
        for i in node.device_numbers
    ]
    return [page for page in pages for _ in range(n_each)]


def map_points(hot: Source, node: Node, *, since_s: float, now_s: float) -> dict[str, Any]:
    """Return the columns that the maps of a node's hardware grow by, once they are complete."""
    every_s = column_s(LENGTHS[DEFAULT], every_s=1)
    # Some more seconds than a column: the usual spread of peers is that of all of them.
    start, end = int(since_s) - 2 * NOW_S, min(int(now_s), hot.newest().get(node.shard, 0))
    if end <= since_s:
        return {}
    nodes = [node, *nearest(node)[:MOST_PEERS]]
    span = _span(hot, nodes, [signal.metric for signal in OF_HARDWARE], start, end)
    if node.name not in span.nodes:
        return {}
    own, points = span.nodes.index(node.name), {}
    for signal in OF_HARDWARE:
        values = span.values[signal.metric]
        if not values.shape[2]:
            continue
        series = Series(signal.metric, span.ticks, values[:, own])
        others = np.delete(values, own, axis=1)
        heat = _map_of(series, others, signal, node, every_s=every_s)
        # A column is complete some seconds after its middle; clients skip known columns.
        points[signal.chart] = heat.until(end).since(since_s - every_s)
    return points


def worker_map(hot: Source, run: Run, signal: Signal, window: Window) -> Heat:
    """Draw a phase of the steps of every worker over time.

    A straggler is the one that does not wait while all others do. A column shows the step in
    progress at its time; of many workers those that stand out have a row, and one is of the rest.
    """
    steps, holds_s = _steps(hot, run, window)
    every_s = column_s(window.length_s, every_s=1)
    first = window.start // every_s * every_s + every_s
    t_s = np.arange(first, window.end + 1, every_s, dtype=float)
    values = steps.phases[signal.metric]
    if not np.isfinite(values).any():
        return _nothing(signal, window)
    z, medians = deviations_by_role(
        signal, values, stages(len(steps.workers), run.pp), step_s=steps.step_s
    )
    rows, places = list(steps.workers), worker_places(steps.workers)
    if len(rows) > MOST_ROWS:
        far = signal.harm(np.nan_to_num(z)).sum(axis=0)
        kept = np.sort(np.argsort(-far, kind="stable")[: MOST_ROWS - 1])
        rest = np.delete(np.arange(len(rows)), kept)
        values = np.column_stack([values[:, kept], middle(values[:, rest])])
        z = np.column_stack([z[:, kept], middle(z[:, rest])])
        rows = [*(rows[i] for i in kept), f"{len(rest)} others, median"]
        places = [*(places[i] for i in kept), None]
    at = np.minimum(np.searchsorted(steps.ended_at_s, t_s), len(steps) - 1)
    began_s = steps.ended_at_s[at] - np.maximum(steps.step_s[at], holds_s)
    is_known = (t_s <= steps.ended_at_s[at]) & (t_s > began_s - every_s)
    return Heat(
        t_s,
        rows,
        np.where(is_known, values[at].T, np.nan),
        signal.unit,
        every_s,
        (window.start, window.end),
        workers_reach(window),
        places,
        np.where(is_known, strengths(z)[at].T, np.nan),
        np.where(is_known, middle(medians)[at], np.nan),
        signal.worse,
    )


def _steps(hot: Source, run: Run, window: Window) -> tuple[StepBatch, float]:
    """Return the steps of a window with all workers, and how long one counts at least."""
    if window.start >= (hot.newest_step_at(run.name) or 0.0) - hot.keep_s:
        return hot.steps(run.name, since_s=window.start, until_s=window.end + 1), 0.0
    minutes = worker_minutes(hot, run.name, start_s=window.start, end_s=window.end)
    return minutes, MINUTE_S
