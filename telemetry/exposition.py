"""What Prometheus may know of the hardware, straight from the hot tier."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from telemetry.batches import MOST_NODES, Batch, Piece, batches, pieces
from telemetry.blocks import METRICS, Metric
from telemetry.detect.rules import RULES
from telemetry.families import Family, Spec, Told
from telemetry.ingest.timing import shard_of
from telemetry.numbers import numbers, present
from telemetry.slabs import Slab, SlabFamily
from telemetry.store.changes import COUNTED
from telemetry.store.hot import HotStore

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
TOTALS: Mapping[str, Spec] = {name: _total_spec(name) for name in COUNTED}


@dataclass(frozen=True, slots=True)
class Scene:
    """What the hot tier holds at a moment, read once for all families of a page.

    ``up`` are the nodes that report, ``batches`` their newest blocks, still packed, ``totals``
    what each node has counted, by metric.
    """

    up: Collection[str]
    batches: tuple[Batch, ...]
    totals: Mapping[str, Mapping[str, float]]


def look(hot: HotStore, *, now_s: float, only: Mapping[str, str] | None = None) -> Scene:
    """Read what the hot tier holds; ``only`` names nodes, and the shard of each."""
    shards = None if only is None else tuple(dict.fromkeys(only.values()))
    seen = hot.last_seen()
    up = {
        node
        for node, tick in seen.items()
        if now_s - tick <= DOWN_AFTER_S and (only is None or node in only)
    }
    return Scene(up, batches(_pieces(hot, shards), up), hot.totals(shards).nodes)


def _pieces(hot: HotStore, shards: Collection[str] | None) -> Iterator[Piece]:
    """Yield the newest block of every shard, and beside it what a real node told just before."""
    real = {}
    for shard, packed in hot.latest_packed(shards).items():
        if shard.startswith(REAL):
            real[shard] = packed[0]
        else:
            yield Piece(shard, packed)
    names = iter(real)
    while some := {shard: real[shard] for shard in islice(names, MOST_NODES)}:
        for shard, recent in hot.recent_packed(some, within_s=int(DOWN_AFTER_S)).items():
            if recent:
                yield from pieces(shard, recent)


def node_families(
    hot: HotStore, *, now_s: float, expected: Iterable[str] = (), scene: Scene | None = None
) -> list[Told]:
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


def _hardware(scene: Scene, name: str) -> Iterator[Slab]:
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


def _totals(scene: Scene) -> list[Family]:
    """Return what nodes that are up have counted."""
    families = []
    for name, spec in TOTALS.items():
        family = Family(spec)
        for node, total in scene.totals.get(name, {}).items():
            if node in scene.up:
                family.add(float(np.floor(total)), node)
        families.append(family)
    return families
