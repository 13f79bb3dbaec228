"""The hardware families of all nodes, read from the hot tier."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice

import numpy as np

from telemetry.blocks import COUNTED_RATES, METRICS, FloatArray, Metric, mean
from telemetry.detect.rules import RULES
from telemetry.exporter.exposition import (
    ArrayFamily,
    LabelRows,
    SeriesArray,
    Spec,
    counter,
    format_codes,
    format_values,
    gauge,
    has_value,
)
from telemetry.ingest.timing import shard_of
from telemetry.store.hot import HotStore
from telemetry.store.packing import Codes, PackedColumn, PackedLayout, decode, unpack
from telemetry.store.reading import Packed

# A node whose newest data is older is down, and only that is exported.
DOWN_AFTER_S = RULES["node_silent"].limits["quiet_s"]
LABELS = {
    "node": ("node",),
    "core": ("node", "core"),
    "device": ("node", "device"),
    "efa": ("node", "device"),
}
SUFFIXES = {"_per_s": "_per_second", "_s": "_seconds"}


def _spec(metric: Metric) -> Spec:
    """Name a metric by Prometheus' conventions: part first, base units in full, _total."""
    name = metric.name
    suffix = next((s for s in SUFFIXES if name.endswith(s)), "")
    name = name.removesuffix(suffix) + SUFFIXES.get(suffix, "")
    if not name.startswith(f"{metric.part}_"):
        name = f"{metric.part}_{name}"
    if metric.packing == "exact":
        return counter(f"trnwatch_{name}_total", metric.help, *LABELS[metric.part])
    return gauge(f"trnwatch_{name}", metric.help, *LABELS[metric.part])


def _total_spec(name: str) -> Spec:
    about = METRICS[name].help.replace(" per second", "").rstrip(".")
    stem = name.removesuffix("_per_s")
    return counter(
        f"trnwatch_node_{stem}_total", f"{about}, in total since counting began.", "node"
    )


FLOPS_RATIO = gauge(
    "trnwatch_node_flops_utilization_ratio",
    "FLOPs of the cores that count them, over their dense BF16 peak.",
    "node",
)
NODE_UP = gauge(
    "trnwatch_node_up", "Whether the node reported within 15 s, or 3.5 scrape intervals.", "node"
)
HARDWARE: Mapping[str, Spec] = {name: _spec(metric) for name, metric in METRICS.items()}
TOTALS: Mapping[str, Spec] = {name: _total_spec(name) for name in COUNTED_RATES}

# Nodes read together: enough to be fast, few enough to need little memory.
MAX_NODES = 64
# Shards of real nodes hold one node each.
REAL_PREFIX = shard_of("")
# The metrics of the two kinds of delivery of a real node. A report always holds the utilization
# of its cores, even where no process uses them.
EFA_METRICS = frozenset(name for name in METRICS if name.startswith("efa_"))
REPORT_METRICS = frozenset(METRICS) - EFA_METRICS
IN_EVERY_REPORT = "core_utilization_ratio"


@dataclass(frozen=True, slots=True)
class ShardBlock:
    shard: str
    packed: Packed
    metrics: frozenset[str] = frozenset(METRICS)


@dataclass(frozen=True, slots=True)
class NodeBatch:
    """Blocks with the same layout, read together; ``nodes`` are those that are up."""

    shards: tuple[str, ...]
    packed: tuple[Packed, ...]
    metrics: frozenset[str]
    nodes: tuple[str, ...]
    is_up: tuple[bool, ...]
    rows: LabelRows

    def codes(self, name: str) -> Codes | None:
        """Return encoded values (n_nodes, n_parts); None where no node has the metric."""
        if name not in self.metrics:
            return None
        _, layout, _ = self.packed[0]
        codes = unpack([blob for _, _, blob in self.packed], layout, name)
        if codes is None or not codes.size:
            return None
        whole: Codes = codes.reshape(-1, codes.shape[2])
        return whole if all(self.is_up) else whole[list(self.is_up)]

    def values(self, name: str) -> FloatArray | None:
        """Return values (n_nodes, n_parts), NaN where absent; None without the metric."""
        codes, (_, layout, _) = self.codes(name), self.packed[0]
        place = layout.column(name)
        if codes is None or place is None:
            return None
        return np.asarray(decode(codes, layout.columns[place].packing), float)


@dataclass(frozen=True, slots=True)
class HotSnapshot:
    """The newest content of the hot tier, read once for all families of a page.

    ``up`` are the nodes that are up, ``batches`` their newest blocks, still packed, ``totals``
    the counts of each node, by metric.
    """

    up: Collection[str]
    batches: tuple[NodeBatch, ...]
    totals: Mapping[str, Mapping[str, float]]


def read_snapshot(
    hot: HotStore, *, now_s: float, only: Mapping[str, str] | None = None
) -> HotSnapshot:
    """Read the hot tier; ``only`` limits it to some nodes, given with their shards."""
    shards, quiet_s = None if only is None else tuple(dict.fromkeys(only.values())), hot.quiet_s()
    seen = hot.last_seen(shards)
    asked = seen if only is None else seen.keys() & only.keys()
    up = {node for node in asked if now_s - seen[node] <= max(DOWN_AFTER_S, quiet_s.get(node, 0))}
    return HotSnapshot(up, _batches(_shard_blocks(hot, shards), up), hot.totals(shards).nodes)


def _shard_blocks(hot: HotStore, shards: Collection[str] | None) -> Iterator[ShardBlock]:
    """Yield the newest block of every shard; of a real node also its last other delivery."""
    real = {}
    for shard, packed in hot.latest_packed(shards).items():
        if shard.startswith(REAL_PREFIX):
            real[shard] = packed[0]
        else:
            yield ShardBlock(shard, packed)
    names = iter(real)
    while some := {shard: real[shard] for shard in islice(names, MAX_NODES)}:
        for shard, recent in hot.recent_packed(some, within_s=int(DOWN_AFTER_S)).items():
            if not recent:
                continue
            # A report may come every five seconds and EFA counters every second, or the other
            # way round: the newest second then holds only one of them.
            yield ShardBlock(shard, recent[-1])
            newest = _metric_names(recent[-1][1])
            if IN_EVERY_REPORT not in newest:
                yield from _newest_with({IN_EVERY_REPORT}, shard, recent, REPORT_METRICS - newest)
            if not newest & EFA_METRICS:
                yield from _newest_with(EFA_METRICS, shard, recent, EFA_METRICS)


def _newest_with(
    any_of: Collection[str], shard: str, recent: Sequence[Packed], metrics: frozenset[str]
) -> Iterator[ShardBlock]:
    for packed in reversed(recent):
        if not _metric_names(packed[1]).isdisjoint(any_of):
            yield ShardBlock(shard, packed, metrics)
            return


@lru_cache(maxsize=8192)
def _metric_names(layout: PackedLayout) -> frozenset[str]:
    return frozenset(column.name for column in layout.columns)


def _batches(blocks: Iterable[ShardBlock], up: Collection[str]) -> tuple[NodeBatch, ...]:
    """Group blocks by layout, in order of shards; leave out batches whose nodes are all down."""
    groups: dict[tuple[tuple[PackedColumn, ...], int, frozenset[str]], list[ShardBlock]] = {}
    for block in sorted(blocks, key=lambda block: block.shard):
        _, layout, _ = block.packed
        key = (layout.columns, len(layout.nodes), block.metrics)
        groups.setdefault(key, []).append(block)
    batches = []
    for (_, n_nodes, _), members in groups.items():
        step = max(1, MAX_NODES // n_nodes)
        batches += [_batch(members[i : i + step], up) for i in range(0, len(members), step)]
    return tuple(batch for batch in batches if batch.nodes)


def _batch(members: Sequence[ShardBlock], up: Collection[str]) -> NodeBatch:
    packed = tuple(block.packed for block in members)
    every = [node for _, layout, _ in packed for node in layout.nodes]
    is_up = tuple(node in up for node in every)
    nodes = tuple(node for node in every if node in up)
    shards = tuple(block.shard for block in members)
    return NodeBatch(shards, packed, members[0].metrics, nodes, is_up, LabelRows({"node": nodes}))


def mean_flops(snapshot: HotSnapshot) -> dict[str, float]:
    """Return the FLOPs per second of a core, mean of those that count them, by node."""
    flops: dict[str, float] = {}
    for batch in snapshot.batches:
        values = batch.values("core_flops_per_s")
        if values is None:
            continue
        means = zip(batch.nodes, mean(values, 1).tolist(), strict=True)
        flops |= {node: value for node, value in means if np.isfinite(value)}
    return flops


def node_families(snapshot: HotSnapshot, *, expected: Iterable[str] = ()) -> list[ArrayFamily]:
    """Return the hardware families; of a node that is down only ``trnwatch_node_up``.

    ``expected`` are nodes that should report, even if the store has never seen them.
    """
    nodes = sorted({*snapshot.up, *expected})
    is_up = dict.fromkeys(nodes, 0.0) | dict.fromkeys(snapshot.up, 1.0)
    totals = {name: snapshot.totals.get(name, {}) for name in TOTALS}
    return [
        node_family(NODE_UP, is_up),
        *(ArrayFamily(spec, partial(_arrays, snapshot, name)) for name, spec in HARDWARE.items()),
        *(
            node_family(
                spec, {n: float(np.floor(t)) for n, t in totals[name].items() if n in snapshot.up}
            )
            for name, spec in TOTALS.items()
        ),
    ]


def node_family(spec: Spec, values: Mapping[str, float]) -> ArrayFamily:
    def array() -> SeriesArray:
        column = np.array(list(values.values()), float)[:, None]
        rows = LabelRows({"node": tuple(values)})
        return SeriesArray(rows, (), [()], format_values(column), np.isfinite(column))

    return ArrayFamily(spec, lambda: [array()] if values else [])


def _arrays(snapshot: HotSnapshot, name: str) -> Iterator[SeriesArray]:
    metric = METRICS[name]
    labels = LABELS[metric.part][1:]
    for batch in snapshot.batches:
        codes = batch.codes(name)
        if codes is not None:
            parts = [(str(part),) if labels else () for part in range(codes.shape[1])]
            texts, present = format_codes(codes, metric.packing), has_value(codes, metric.packing)
            yield SeriesArray(batch.rows, labels, parts, texts, present)
