"""Hardware metrics: one tick of a shard (Block), many (Span); figures of what is reported."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.integer[Any]]

Part = Literal["node", "core", "device", "efa"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured quantity, and how finely it is worth keeping.

    ``part`` is what one column describes: the whole node, a core (as the runtime counts
    them: logical on trn2), an accelerator device, or an EFA device. ``packing`` is how the
    hot tier may round it: ``ratio`` to 1/254, ``rounded`` to 0.4 % of the value,
    ``exact`` not at all (counts).
    """

    name: str
    part: Part
    packing: Literal["ratio", "rounded", "exact"]
    help: str


_ALL = (
    Metric("core_utilization_ratio", "core", "ratio", "Share of the tick a core computed."),
    Metric(
        "hbm_bandwidth_bytes_per_s", "device", "rounded", "HBM bytes read and written per second."
    ),
    Metric("device_memory_used_bytes", "device", "rounded", "HBM bytes allocated."),
    Metric("device_power_ratio", "device", "ratio", "Mean power of a minute, over maximum."),
    Metric(
        "device_unhealthy", "device", "ratio", "1 if a health check rejects the device, else 0."
    ),
    Metric("core_flops_per_s", "core", "rounded", "FLOPs that a core executed per second."),
    Metric("mem_ecc_corrected", "device", "exact", "HBM errors corrected, as the node counts."),
    Metric("mem_ecc_uncorrected", "device", "exact", "HBM errors not corrected, as it counts."),
    Metric("sram_ecc_corrected", "device", "exact", "SRAM errors corrected, as the node counts."),
    Metric("sram_ecc_uncorrected", "device", "exact", "SRAM errors not corrected, as it counts."),
    Metric("efa_latency_s", "efa", "rounded", "Probe latency to the run's peers, median."),
    Metric("efa_tx_bytes_per_s", "efa", "rounded", "Bytes sent per second."),
    Metric("efa_rx_bytes_per_s", "efa", "rounded", "Bytes received per second."),
    Metric("efa_tx_packets_per_s", "efa", "rounded", "Packets sent per second."),
    Metric("efa_retransmits_per_s", "efa", "rounded", "Packets sent again per second."),
    Metric("efa_drops_per_s", "efa", "rounded", "Received packets dropped per second."),
    Metric("efa_impaired_per_s", "efa", "rounded", "Connections newly impaired per second."),
    Metric("efa_unresponsive_per_s", "efa", "rounded", "Peers newly unresponsive per second."),
    Metric(
        "collective_bandwidth_bytes_per_s", "node", "rounded", "Collectives' bus bandwidth, mean."
    ),
    Metric("collective_time_s", "node", "rounded", "Time of a collective, mean."),
    Metric("vcpu_usage_ratio", "node", "ratio", "Share of the host's vCPUs in use."),
    Metric("host_memory_used_bytes", "node", "rounded", "Host memory in use."),
    Metric("executions_completed_per_s", "node", "rounded", "Graph executions done per second."),
    Metric("executions_failed_per_s", "node", "rounded", "Graph executions failed per second."),
    Metric("execution_errors_per_s", "node", "rounded", "Runtime errors of any kind per second."),
    Metric("execution_latency_p50_s", "node", "rounded", "Latency of graph executions, median."),
    Metric(
        "execution_latency_p99_s", "node", "rounded", "Latency of executions, 99th percentile."
    ),
    Metric("execution_latency_p100_s", "node", "rounded", "Latency of the slowest execution."),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}
# Rates that are added up to totals: summed over a node's parts, once per block. Bandwidth and
# FLOPs are read as rates alone.
COUNTED_RATES = tuple(
    name
    for name in METRICS
    if name.endswith("_per_s") and not name.startswith(("hbm_", "core_", "collective_"))
)


@dataclass(frozen=True, slots=True)
class Block:
    """Every metric of a shard of same-shaped nodes at one tick.

    ``values[name]`` is (n_nodes, n_parts); NaN where nothing was reported. A metric that no
    node of the shard has is left out. ``tick`` is the Unix second of the values. A block that
    ``is_partial`` is of less than a second: its counts are added to those of the second.
    """

    shard: str
    tick: int
    nodes: tuple[str, ...]
    values: Mapping[str, FloatArray]
    is_partial: bool = False

    @property
    def reported(self) -> NDArray[np.bool_]:
        """Nodes with any value: (n_nodes,)."""
        seen = np.zeros(len(self.nodes), dtype=bool)
        for values in self.values.values():
            seen |= np.isfinite(values).any(axis=1)
            if seen.all():
                break
        return seen


def added(
    before: Mapping[str, FloatArray], more: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Add the counts of two parts of one second; of other metrics the first values hold."""
    total = {**more, **before}
    for name in COUNTED_RATES:
        if name in before and name in more and before[name].shape == more[name].shape:
            known = np.isfinite(before[name]) | np.isfinite(more[name])
            both = np.nan_to_num(before[name]) + np.nan_to_num(more[name])
            total[name] = np.where(known, both, np.nan)
    return total


def join_partial(blocks: Iterable[Block]) -> list[Block]:
    """Make one block of the partial blocks of each second; others stay, and come first."""
    joined: dict[tuple[str, int, tuple[str, ...]], Block] = {}
    whole = []
    for block in blocks:
        key = (block.shard, block.tick, block.nodes)
        if not block.is_partial:
            whole.append(block)
        elif (first := joined.get(key)) is None:
            joined[key] = block
        else:
            joined[key] = Block(*key, added(first.values, block.values), is_partial=True)
    return [*whole, *joined.values()]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive ticks of a shard, stacked: ``values[name]`` is (n_ticks, n_nodes, n_parts).

    ``ticks`` (n_ticks,) rises by ``every_s``; a tick that is missing is NaN, never left out.
    """

    shard: str
    ticks: IntArray
    nodes: tuple[str, ...]
    values: Mapping[str, FloatArray]
    every_s: int = 1

    @property
    def reported(self) -> NDArray[np.bool_]:
        """Nodes with any value, by tick: (n_ticks, n_nodes)."""
        seen = np.zeros((len(self.ticks), len(self.nodes)), dtype=bool)
        for array in self.values.values():
            # Nearly always the first part of the first metric shows all but the newest ticks.
            if array.shape[2] and not seen.any():
                seen = np.isfinite(array[..., 0])
            unseen = np.flatnonzero(~seen.all(axis=1))
            if not unseen.size:
                break
            rows = slice(unseen[0], unseen[-1] + 1)
            seen[rows] |= np.isfinite(array[rows]).any(axis=2)
        return seen

    def blocks(self) -> Iterable[Block]:
        for i, tick in enumerate(self.ticks):
            values = {name: array[i] for name, array in self.values.items()}
            yield Block(self.shard, int(tick), self.nodes, values)

    def of(self, nodes: Sequence[str]) -> Self:
        """Select nodes by name, in order; missing nodes are NaN."""
        if tuple(nodes) == self.nodes:
            return self
        places = {node: i for i, node in enumerate(self.nodes)}
        rows = [i for i, node in enumerate(nodes) if node in places]
        known = [places[nodes[row]] for row in rows]
        values = {}
        for name, array in self.values.items():
            values[name] = np.full((len(array), len(nodes), array.shape[2]), np.nan, array.dtype)
            values[name][:, rows] = array[:, known]
        return type(self)(self.shard, self.ticks, tuple(nodes), values, self.every_s)

    def at(self, ticks: Sequence[int]) -> Self:
        """Select ticks, in order; missing ticks are NaN."""
        if len(ticks) == len(self.ticks) and list(ticks) == self.ticks.tolist():
            return self
        places = {tick: i for i, tick in enumerate(self.ticks.tolist())}
        rows = [i for i, tick in enumerate(ticks) if tick in places]
        known = [places[ticks[row]] for row in rows]
        values = {}
        for name, array in self.values.items():
            values[name] = np.full((len(ticks), *array.shape[1:]), np.nan, array.dtype)
            values[name][rows] = array[known]
        return type(self)(self.shard, np.array(ticks), self.nodes, values, self.every_s)

    def between(self, start: int, end: int) -> Self:
        rows = slice(*np.searchsorted(self.ticks, [start, end + 1]))
        values = {name: array[rows] for name, array in self.values.items()}
        return type(self)(self.shard, self.ticks[rows], self.nodes, values, self.every_s)

    @classmethod
    def join_nodes(cls, spans: Sequence[Self]) -> Self:
        """Concatenate spans of the same ticks and metrics by nodes."""
        first = spans[0]
        values = {m: _joined([s.values[m] for s in spans], axis=1) for m in first.values}
        nodes = tuple(node for span in spans for node in span.nodes)
        return cls(first.shard, first.ticks, nodes, values, first.every_s)

    @classmethod
    def join_times(cls, spans: Sequence[Self]) -> Self | None:
        """Concatenate spans of the same nodes and metrics by time; None without spans."""
        if not spans:
            return None
        first = spans[0]
        values = {m: _joined([s.values[m] for s in spans]) for m in first.values}
        ticks = np.concatenate([span.ticks for span in spans])
        return cls(first.shard, ticks, first.nodes, values, first.every_s)


def _joined(arrays: Sequence[FloatArray], axis: int = 0) -> FloatArray:
    """Concatenate arrays (n_ticks, n_nodes, n_parts) by ticks or nodes.

    An array without stored values has no parts; it becomes NaN in the parts of the others.
    """
    n_parts = max(array.shape[2] for array in arrays)
    missing = [((0, 0), (0, 0), (0, n_parts - array.shape[2])) for array in arrays]
    wide = [
        array if array.shape[2] == n_parts else np.pad(array, pad, constant_values=np.nan)
        for array, pad in zip(arrays, missing, strict=True)
    ]
    return np.concatenate(wide, axis=axis)


def mean(x: FloatArray, axis: int) -> FloatArray:
    """Mean of the reported values, NaN without any."""
    known = np.isfinite(x)
    if x.shape[axis] and known.all():
        return np.asarray(x.mean(axis=axis))
    n = known.sum(axis=axis)
    total = np.where(known, x, 0.0).sum(axis=axis)
    return np.asarray(np.where(n > 0, total / np.maximum(n, 1), np.nan))


def sum_known(x: FloatArray, axis: int) -> FloatArray:
    """Sum of the reported values, NaN without any."""
    known = np.isfinite(x)
    total = np.where(known, x, 0.0).sum(axis=axis)
    return np.asarray(np.where(known.any(axis=axis), total, np.nan))


def lowest(x: FloatArray, axis: int) -> FloatArray:
    """Least of the reported values, NaN without any."""
    return np.asarray(np.fmin.reduce(x, axis=axis, initial=np.nan))


def highest(x: FloatArray, axis: int) -> FloatArray:
    """Greatest of the reported values, NaN without any."""
    return np.asarray(np.fmax.reduce(x, axis=axis, initial=np.nan))


def median_of(values: FloatArray) -> float | None:
    """Median of all reported values; None without any."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else None
