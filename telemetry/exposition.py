"""What Prometheus may know of the hardware and of the service, straight from the hot tier."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import METRICS, Metric
from telemetry.families import Family, Spec, Stems, numbers, stems
from telemetry.store.changes import COUNTED
from telemetry.store.gathering import Packed
from telemetry.store.hot import HotStore
from telemetry.store.packing import ABSENT_RATIO, ABSENT_ROUNDED, Codes, Layout, unpack

# A node that was not heard of for longer is down, and nothing else is said of it.
DOWN_AFTER_S = 15
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


def node_families(hot: HotStore, *, now_s: float, expected: Iterable[str] = ()) -> list[Family]:
    """Return everything about nodes; of one that is down only that it is.

    ``expected`` are nodes that ought to report, whether or not the store ever heard of them.
    """
    up = {node for node, tick in hot.last_seen().items() if now_s - tick <= DOWN_AFTER_S}
    is_up = Family(NODE_UP)
    for node in sorted(up.union(expected)):
        is_up.add(float(node in up), node)
    return [is_up, *_hardware(hot.latest_packed().values(), up), *_totals(hot, up)]


def _hardware(latest: Collection[Packed], up: Collection[str]) -> list[Family]:
    """Return a family per metric with the newest value of each part of each node that is up."""
    rows = {
        layout: np.fromiter((node in up for node in layout.nodes), bool, len(layout.nodes))
        for _, layout, _ in latest
    }
    families = []
    for name, spec in HARDWARE.items():
        family = Family(spec)
        for _, layout, blob in latest:
            codes = unpack([blob], layout, name)
            if codes is not None and codes.size:
                _add(family, codes[0], layout, name, rows[layout])
        families.append(family)
    return families


def _add(
    family: Family, codes: Codes, layout: Layout, name: str, is_up: NDArray[np.bool_]
) -> None:
    """Add one metric of one block, (n_nodes, n_parts), leaving out what is absent."""
    packing = METRICS[name].packing
    present = (_present(codes, packing) & is_up[:, None]).ravel()
    stem = _stems(layout, name)
    if present.all():
        family.pieces.append((stem, numbers(codes.ravel(), packing).tolist(), None))
    elif present.any():
        values = numbers(codes.ravel()[present], packing).tolist()
        family.pieces.append((stem, values, present))


def _present(codes: Codes, packing: str) -> NDArray[np.bool_]:
    """Whether codes stand for a value."""
    if packing == "exact":
        return np.isfinite(codes)
    absent = ABSENT_RATIO if packing == "ratio" else ABSENT_ROUNDED
    return np.asarray(codes != absent)


@lru_cache(maxsize=32_768)
def _stems(layout: Layout, name: str) -> Stems:
    """Write the labels of one metric of all nodes of a layout."""
    place = layout.column(name)
    n_parts = 0 if place is None else layout.columns[place].n_parts
    if METRICS[name].part == "node":
        return stems(HARDWARE[name], [(node,) for node in layout.nodes])
    parts = [str(part) for part in range(n_parts)]
    return stems(HARDWARE[name], [(node, part) for node in layout.nodes for part in parts])


def _totals(hot: HotStore, up: Collection[str]) -> list[Family]:
    """Return what nodes that are up have counted."""
    counted = hot.totals().nodes
    families = []
    for name, spec in TOTALS.items():
        family = Family(spec)
        for node, total in counted.get(name, {}).items():
            if node in up:
                family.add(float(np.floor(total)), node)
        families.append(family)
    return families
