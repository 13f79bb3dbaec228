"""What Prometheus may know of the hardware, straight from the hot tier."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby, islice

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import METRICS, FloatArray, Metric
from telemetry.detect.rules import RULES
from telemetry.families import (
    Family,
    MetricFamily,
    ObjectArray,
    Sample,
    Spec,
    numbers,
    pair,
    present,
)
from telemetry.ingest.timing import shard_of
from telemetry.store.commits import COUNTED_RATES
from telemetry.store.hot import HotStore
from telemetry.store.packing import Codes, PackedColumn, PackedLayout, decode, unpack
from telemetry.store.reading import Packed

# Lines written in one go: their text is what a scrape needs of memory.
MOST_LINES = 1024


class SlabRows:
    """Nodes, or what runs on them: the labels that all series of each have in common."""

    def __init__(self, labels: Mapping[str, Sequence[str]]) -> None:
        """Take in each label with its values, one per row."""
        self.labels = dict(labels)
        self._joined: dict[tuple[str, ...], ObjectArray] = {}

    def __len__(self) -> int:
        """Count the rows."""
        return len(next(iter(self.labels.values())))

    def joined(self, labels: tuple[str, ...]) -> ObjectArray:
        """Write some labels of every row, by comma."""
        if labels not in self._joined:
            values = zip(*(self.labels[label] for label in labels), strict=True)
            self._joined[labels] = _objects(_joined(labels, row) for row in values)
        return self._joined[labels]


@dataclass(frozen=True, slots=True)
class Slab:
    """Series of some rows and, for each of them, of the same parts.

    ``labels`` name what tells the parts apart, ``parts`` hold the values of these labels.
    ``values`` (n_rows, n_parts) are ends of lines; ``present`` says which there are, None: all.
    """

    rows: SlabRows
    labels: tuple[str, ...]
    parts: Sequence[tuple[str, ...]]
    values: ObjectArray
    present: NDArray[np.bool_] | None = None

    def lines(self, spec: Spec) -> Iterator[bytes]:
        """Yield the series as text."""
        stem = _stem(spec, self)
        n_rows = max(1, MOST_LINES // max(1, len(self.parts)))
        for start in range(0, len(self.rows), n_rows):
            here = slice(start, start + n_rows)
            values = self.values[here]
            out = np.empty((*values.shape, len(stem) + 1), object)
            for i, texts in enumerate(stem):
                out[:, :, i] = texts[here] if texts.shape[0] > 1 else texts
            out[:, :, -1] = values
            kept = out if self.present is None else out[self.present[here]]
            if kept.size:
                yield b"".join(kept.ravel().tolist())

    def samples(self, spec: Spec) -> Iterator[Sample]:
        """Yield the series one by one."""
        known = self.rows.labels
        for i in range(len(self.rows)):
            for j, part in enumerate(self.parts):
                if self.present is None or self.present[i, j]:
                    named = dict(zip(self.labels, part, strict=True))
                    labels = (named[n] if n in named else known[n][i] for n in spec.labels)
                    yield Sample(tuple(labels), None, self.values[i, j])


@dataclass(frozen=True, slots=True)
class SlabFamily:
    """A family whose slabs are made only when they are written."""

    spec: Spec
    slabs: Callable[[], Iterable[Slab]]

    def lines(self, *, is_open_metrics: bool) -> Iterator[bytes]:
        """Yield the series as text; they read alike in both formats."""
        del is_open_metrics
        for slab in self.slabs():
            yield from slab.lines(self.spec)

    def samples(self) -> Iterator[Sample]:
        """Yield the series one by one."""
        for slab in self.slabs():
            yield from slab.samples(self.spec)


def _stem(spec: Spec, slab: Slab) -> list[ObjectArray]:
    """Write all that comes before the values: texts by row (n_rows, 1) or by part (1, n_parts).

    Labels are in order of their names; neighbours that change together are one text.
    """
    runs = [
        (is_part, tuple(labels))
        for is_part, labels in groupby(sorted(spec.labels), key=slab.labels.__contains__)
    ]
    stem = []
    for i, (is_part, labels) in enumerate(runs):
        texts = _parts(slab, labels)[None, :] if is_part else slab.rows.joined(labels)[:, None]
        before = f"{spec.name}{{".encode() if i == 0 else b","
        after = b"} " if i == len(runs) - 1 else b""
        stem.append(before + texts + after)
    return stem


def _parts(slab: Slab, labels: tuple[str, ...]) -> ObjectArray:
    """Write some labels of every part, by comma."""
    places = [slab.labels.index(label) for label in labels]
    return _objects(_joined(labels, [part[i] for i in places]) for part in slab.parts)


def _joined(labels: Sequence[str], values: Sequence[str]) -> bytes:
    return ",".join(map(pair, labels, values)).encode()


def _objects(texts: Iterable[bytes]) -> ObjectArray:
    held = list(texts)
    array = np.empty(len(held), object)
    array[:] = held
    return array


# Nodes read together: enough to be quick, few enough to need little memory.
MOST_NODES = 64
# Metrics that come through one door: those of EFA, and those of a report.
EFA = frozenset(name for name in METRICS if name.startswith("efa_"))
REPORT = frozenset(METRICS) - EFA
# A report always tells of its cores, if only that nobody holds them.
SIGN = "core_utilization_ratio"


@dataclass(frozen=True, slots=True)
class ShardBlock:
    """A shard's block, and of which metrics it is to be asked."""

    shard: str
    packed: Packed
    of: frozenset[str] = frozenset(METRICS)


@dataclass(frozen=True, slots=True)
class NodeBatch:
    """Blocks of as many nodes and of the same metrics; ``nodes`` are those that report."""

    shards: tuple[str, ...]
    packed: tuple[Packed, ...]
    of: frozenset[str]
    nodes: tuple[str, ...]
    is_up: tuple[bool, ...]
    rows: SlabRows

    def codes(self, name: str) -> Codes | None:
        """Return the codes of one metric: (n_nodes, n_parts); None where no node has it."""
        if name not in self.of:
            return None
        _, layout, _ = self.packed[0]
        codes = unpack([blob for _, _, blob in self.packed], layout, name)
        if codes is None or not codes.size:
            return None
        whole: Codes = codes.reshape(-1, codes.shape[2])
        return whole if all(self.is_up) else whole[list(self.is_up)]

    def values(self, name: str) -> FloatArray | None:
        """Return one metric: (n_nodes, n_parts), NaN where absent; None where no node has it."""
        codes, (_, layout, _) = self.codes(name), self.packed[0]
        place = layout.column(name)
        if codes is None or place is None:
            return None
        return np.asarray(decode(codes, layout.columns[place].packing), float)


def batches(pieces: Iterable[ShardBlock], up: Collection[str]) -> tuple[NodeBatch, ...]:
    """Put blocks beside those that are like them, in order of shards."""
    alike: dict[tuple[tuple[PackedColumn, ...], int, frozenset[str]], list[ShardBlock]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.shard):
        _, layout, _ = piece.packed
        key = (layout.columns, len(layout.nodes), piece.of)
        alike.setdefault(key, []).append(piece)
    found = []
    for (_, n_nodes, _), members in alike.items():
        step = max(1, MOST_NODES // n_nodes)
        found += [_batch(members[i : i + step], up) for i in range(0, len(members), step)]
    return tuple(batch for batch in found if batch.nodes)


def _batch(members: Sequence[ShardBlock], up: Collection[str]) -> NodeBatch:
    packed = tuple(piece.packed for piece in members)
    every = [node for _, layout, _ in packed for node in layout.nodes]
    is_up = tuple(node in up for node in every)
    nodes = tuple(node for node, reports in zip(every, is_up, strict=True) if reports)
    shards = tuple(piece.shard for piece in members)
    return NodeBatch(shards, packed, members[0].of, nodes, is_up, SlabRows({"node": nodes}))


def pieces(shard: str, recent: Sequence[Packed]) -> Iterator[ShardBlock]:
    """Yield the newest block of a real node, and before it what another door last told.

    A report may come every five seconds and EFA every second, or the other way round: the
    newest second then holds but one of them.
    """
    yield ShardBlock(shard, recent[-1])
    there = _names(recent[-1])
    for door, is_told in ((REPORT, SIGN in there), (EFA, bool(there & EFA))):
        if not is_told:
            signs = {SIGN} if door is REPORT else EFA
            earlier = (packed for packed in reversed(recent) if _names(packed) & signs)
            if (packed := next(earlier, None)) is not None:
                yield ShardBlock(shard, packed, door - there)


def _names(packed: Packed) -> frozenset[str]:
    """Return the metrics that a block has."""
    return _named(packed[1])


@lru_cache(maxsize=8192)
def _named(layout: PackedLayout) -> frozenset[str]:
    return frozenset(column.name for column in layout.columns)


# A node that was not heard of for longer is down, and nothing else is said of it.
DOWN_AFTER_S = RULES["node_silent"].limits["quiet_s"]
LABELS = {
    "node": ("node",),
    "core": ("node", "core"),
    "device": ("node", "device"),
    "efa": ("node", "device"),
}
# Shards of real nodes, one each; what simulated nodes tell comes in one go.
REAL = shard_of("")
SUFFIXES = {"_per_s": "_per_second", "_s": "_seconds"}


def _spec(metric: Metric) -> Spec:
    """Name a metric by Prometheus' conventions: part first, base units in full, _total."""
    name = metric.name
    suffix = next((s for s in SUFFIXES if name.endswith(s)), "")
    name = name.removesuffix(suffix) + SUFFIXES.get(suffix, "")
    if not name.startswith(f"{metric.part}_"):
        name = f"{metric.part}_{name}"
    is_count = metric.packing == "exact"
    return Spec(
        f"trnwatch_{name}_total" if is_count else f"trnwatch_{name}",
        "counter" if is_count else "gauge",
        metric.help,
        LABELS[metric.part],
    )


def _total_spec(name: str) -> Spec:
    """Name the total of a rate, over all parts of a node."""
    about = METRICS[name].help.replace(" per second", "").rstrip(".")
    stem = name.removesuffix("_per_s")
    return Spec(
        f"trnwatch_node_{stem}_total",
        "counter",
        f"{about}, all told since counting began.",
        ("node",),
    )


NODE_UP = Spec("trnwatch_node_up", "gauge", "Whether the node reported within 15 s.", ("node",))
HARDWARE: Mapping[str, Spec] = {name: _spec(metric) for name, metric in METRICS.items()}
TOTALS: Mapping[str, Spec] = {name: _total_spec(name) for name in COUNTED_RATES}


@dataclass(frozen=True, slots=True)
class HotSnapshot:
    """What the hot tier holds at a moment, read once for all families of a page.

    ``up`` are the nodes that report, ``batches`` their newest blocks, still packed, ``totals``
    what each node has counted, by metric.
    """

    up: Collection[str]
    batches: tuple[NodeBatch, ...]
    totals: Mapping[str, Mapping[str, float]]


def look(hot: HotStore, *, now_s: float, only: Mapping[str, str] | None = None) -> HotSnapshot:
    """Read what the hot tier holds; ``only`` names nodes, and the shard of each."""
    shards = None if only is None else tuple(dict.fromkeys(only.values()))
    seen = hot.last_seen()
    up = {
        node
        for node, tick in seen.items()
        if now_s - tick <= DOWN_AFTER_S and (only is None or node in only)
    }
    return HotSnapshot(up, batches(_pieces(hot, shards), up), hot.totals(shards).nodes)


def _pieces(hot: HotStore, shards: Collection[str] | None) -> Iterator[ShardBlock]:
    """Yield the newest block of every shard, and beside it what a real node told just before."""
    real = {}
    for shard, packed in hot.latest_packed(shards).items():
        if shard.startswith(REAL):
            real[shard] = packed[0]
        else:
            yield ShardBlock(shard, packed)
    names = iter(real)
    while some := {shard: real[shard] for shard in islice(names, MOST_NODES)}:
        for shard, recent in hot.recent_packed(some, within_s=int(DOWN_AFTER_S)).items():
            if recent:
                yield from pieces(shard, recent)


def node_families(
    hot: HotStore, *, now_s: float, expected: Iterable[str] = (), scene: HotSnapshot | None = None
) -> list[MetricFamily]:
    """Return everything about nodes; of one that is down only that it is.

    ``expected`` are nodes that ought to report, whether or not the store ever heard of them.
    """
    scene = scene or look(hot, now_s=now_s)
    is_up = Family(NODE_UP)
    for node in sorted({*scene.up, *expected}):
        is_up.add(float(node in scene.up), node)
    hardware = [
        SlabFamily(spec, partial(_hardware, scene, name)) for name, spec in HARDWARE.items()
    ]
    return [is_up, *hardware, *_totals(scene)]


def _hardware(scene: HotSnapshot, name: str) -> Iterator[Slab]:
    """Yield the newest values of a metric of all nodes that are up, leaving out what is absent."""
    metric = METRICS[name]
    for batch in scene.batches:
        codes = batch.codes(name)
        if codes is not None:
            labels = LABELS[metric.part][1:]
            parts = [(str(part),) if labels else () for part in range(codes.shape[1])]
            yield Slab(
                batch.rows,
                labels,
                parts,
                numbers(codes, metric.packing),
                present(codes, metric.packing),
            )


def _totals(scene: HotSnapshot) -> list[Family]:
    """Return what nodes that are up have counted."""
    families = []
    for name, spec in TOTALS.items():
        family = Family(spec)
        for node, total in scene.totals.get(name, {}).items():
            if node in scene.up:
                family.add(float(np.floor(total)), node)
        families.append(family)
    return families
