"""From packed blocks to a span: the nodes of many shards side by side, gaps as NaN."""

from collections.abc import Mapping, Sequence

import numpy as np

from telemetry.blocks import METRICS, FloatArray, Span
from telemetry.store.packing import Layout, decode, unpack

# A packed block: its tick, whose values it holds, and the values.
Packed = tuple[int, Layout, bytes]


def gather(
    held: Mapping[str, Sequence[Packed]], metrics: Sequence[str], *, start: int, end: int
) -> Span:
    """Return metrics of all shards' blocks as one span; none named means all there are."""
    groups = _alike(held)
    nodes = tuple(dict.fromkeys(node for layout in groups for node in layout.nodes))
    names = metrics or [
        name for name in METRICS if any(layout.column(name) is not None for layout in groups)
    ]
    values = {name: _metric(name, groups, nodes, start=start, end=end) for name in names}
    return Span(",".join(held), np.arange(start, end + 1), nodes, values)


def _alike(held: Mapping[str, Sequence[Packed]]) -> dict[Layout, list[Packed]]:
    """Group packed blocks by layout: each group is decoded in one pass."""
    groups: dict[Layout, list[Packed]] = {}
    for blocks in held.values():
        for block in blocks:
            groups.setdefault(block[1], []).append(block)
    return groups


def _metric(
    name: str,
    groups: Mapping[Layout, Sequence[Packed]],
    nodes: Sequence[str],
    *,
    start: int,
    end: int,
) -> FloatArray:
    """Return one metric: (n_ticks, n_nodes, n_parts), NaN where nothing was said."""
    places = [(layout, place) for layout in groups if (place := layout.column(name)) is not None]
    n_parts = max((layout.columns[place].n_parts for layout, place in places), default=0)
    dtype = "f8" if METRICS[name].packing == "exact" else "f4"
    values = np.full((end + 1 - start, len(nodes), n_parts), np.nan, dtype)
    rows = {node: i for i, node in enumerate(nodes)}
    for layout, place in places:
        blocks = groups[layout]
        column = layout.columns[place]
        codes = unpack([blob for _, _, blob in blocks], layout, name)
        if codes is not None:
            ticks = np.array([tick - start for tick, _, _ in blocks])[:, None]
            found = decode(codes, column.packing)
            values[ticks, [rows[node] for node in layout.nodes], : column.n_parts] = found
    return values
