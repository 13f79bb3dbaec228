"""One device of a node next to its peers, all in the same second."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from django.db.models import F
from django.db.models.functions import Abs

from fleet.models import Node
from telemetry import catalog
from telemetry.blocks import METRICS, FloatArray, IntArray, median_of
from telemetry.catalog import Instance
from telemetry.store.reading import Source

# Of a run, the nodes to compare with: those of the nearest ranks.
MOST_NODES = 32
_DEVICE_FIGURES = (
    ("HBM bandwidth", "hbm_bandwidth_bytes_per_s", "bytes_per_s"),
    ("Memory used", "device_memory_used_bytes", "bytes"),
    ("Power over its maximum", "device_power_ratio", "ratio"),
    ("HBM errors, corrected", "mem_ecc_corrected", "count"),
    ("HBM errors, uncorrected", "mem_ecc_uncorrected", "count"),
    ("SRAM errors, corrected", "sram_ecc_corrected", "count"),
    ("SRAM errors, uncorrected", "sram_ecc_uncorrected", "count"),
)


@dataclass(frozen=True, slots=True)
class PeerMedian:
    """The median of ``n`` peers that report; None where none does."""

    median: float | None
    n: int

    @classmethod
    def of(cls, values: FloatArray) -> Self:
        return cls(median_of(values), int(np.isfinite(values).sum()))


@dataclass(frozen=True, slots=True)
class DeviceFigure:
    """One measurement of a device; None where it is not reported.

    ``peak`` is what the hardware can do at most, by the catalogue.
    """

    name: str
    metric: str
    unit: str
    value: float | None
    of_node: PeerMedian
    of_run: PeerMedian
    peak: float | None = None

    @property
    def ratio(self) -> float | None:
        """The share of the peak."""
        return None if self.value is None or not self.peak else self.value / self.peak

    @property
    def peers(self) -> tuple[PeerMedian, PeerMedian]:
        return self.of_node, self.of_run

    @property
    def is_bad(self) -> bool:
        return self.metric.endswith("ecc_uncorrected") and bool(self.value)


def device_figures(hot: Source, node: Node, number: int, *, at_s: int) -> list[DeviceFigure]:
    """Return what a device measured in one second; empty where its node has no values then."""
    peers = nearest(node)
    metrics = ("core_utilization_ratio", *(metric for _, metric, _ in _DEVICE_FIGURES))
    shards = tuple(dict.fromkeys([node.shard, *(peer.shard for peer in peers)]))
    span = hot.moments(shards, metrics, ticks=[at_s])
    if not len(span.ticks) or node.name not in span.nodes:
        return []
    mine = span.nodes.index(node.name)
    if not span.reported[0, mine]:
        return []
    names = {peer.name for peer in peers}
    rows = [i for i, name in enumerate(span.nodes) if name in names]
    instance = catalog.instances().get(node.instance_type)

    def figure(name: str, metric: str, unit: str, part: int, own: Sequence[int]) -> DeviceFigure:
        now = span.values[metric][0].astype(float)
        others = np.delete(now[mine], [each for each in own if each < now.shape[1]])
        value = now[mine, part] if part < now.shape[1] else np.nan
        return DeviceFigure(
            name,
            metric,
            unit,
            float(value) if np.isfinite(value) else None,
            PeerMedian.of(others),
            PeerMedian.of(now[rows]),
            peak_of(instance, metric),
        )

    cores = parts_of(node, number, "core_utilization_ratio")
    figures = [
        figure(f"Core {core}, utilization", "core_utilization_ratio", "ratio", core, cores)
        for core in cores
    ]
    return figures + [figure(*each, number, [number]) for each in _DEVICE_FIGURES]


def peak_of(instance: Instance | None, metric: str) -> float | None:
    if instance is None:
        return None
    chip = instance.chip
    peaks = {
        "hbm_bandwidth_bytes_per_s": chip.hbm_bytes_per_s,
        "device_memory_used_bytes": chip.hbm_bytes,
    }
    return peaks.get(metric)


def parts_of(node: Node, number: int, metric: str) -> Sequence[int]:
    """Return the columns of a metric that belong to a device."""
    if METRICS[metric].part == "device":
        return [number]
    n_cores = node.cores_per_device
    return range(number * n_cores, (number + 1) * n_cores)


def nearest(node: Node) -> list[Node]:
    """Return the nodes of the same run, type and pipeline stage whose ranks are nearest.

    Where stages have fewer than three nodes, those of other stages are peers, too.
    """
    run = node.run
    if run is None:
        return []
    alike = Node.objects.filter(run=run, instance_type=node.instance_type, retired_at=None)
    stage = stages(run.n_nodes, run.pp)
    if node.rank < len(stage):
        ranks = np.flatnonzero(stage == stage[node.rank]).tolist()
        alike = alike.filter(rank__gte=ranks[0], rank__lte=ranks[-1])
    return [*alike.exclude(pk=node.pk).order_by(Abs(F("rank") - node.rank), "rank")[:MOST_NODES]]


def stages(n_workers: int, n_stages: int) -> IntArray:
    """Return the pipeline stage of each worker, contiguous in rank: (n_workers,).

    All workers have one where a stage has fewer than three: they are compared with each other.

    >>> stages(6, 2).tolist(), stages(4, 2).tolist()
    ([0, 0, 0, 1, 1, 1], [0, 0, 0, 0])
    """
    if n_workers < 3 * n_stages:
        return np.zeros(n_workers, int)
    return (np.arange(1, n_workers + 1) * n_stages - 1) // n_workers
