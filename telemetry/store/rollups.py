"""Roll-ups to minutes and hours: minimum, mean and maximum of every part, and their packing."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from telemetry.blocks import METRICS, Block, FloatArray, IntArray, Span
from telemetry.store.packing import (
    codec,
    decode,
    encode,
    pack,
    read_layout,
    unpack_block,
    unshuffle,
)
from telemetry.units import HOUR_S, MINUTE_S

N_STATS = 3


@dataclass(frozen=True, slots=True)
class Minutes:
    """Rolled-up minutes of a shard.

    ``values[name]`` is (n_minutes, n_nodes, 3 * n_parts): the lowest of each part, then the
    mean of each, then the highest; NaN where nothing was reported. ``minutes`` rises.
    """

    shard: str
    minutes: IntArray
    nodes: tuple[str, ...]
    values: Mapping[str, FloatArray]

    def where(self, kept: Any) -> "Minutes":
        values = {name: array[kept] for name, array in self.values.items()}
        return Minutes(self.shard, self.minutes[kept], self.nodes, values)


def roll_up(span: Span) -> Minutes:
    """Roll a span up to minutes; partly covered and empty minutes are left out.

    Parameters
    ----------
    span : its ``every_s`` must divide a minute

    Returns
    -------
    minutes : minimum, mean and maximum over the samples of each minute that are not NaN
    """
    if MINUTE_S % span.every_s:
        msg = f"every_s: {span.every_s} s does not divide a minute; thin by a divisor of 60"
        raise ValueError(msg)
    first = n_minutes = 0
    if len(span.ticks):
        # A minute is whole if the ticks just outside the span would fall into other minutes.
        begin = (int(span.ticks[0]) - span.every_s) // MINUTE_S * MINUTE_S + MINUTE_S
        end = (int(span.ticks[-1]) + span.every_s) // MINUTE_S * MINUTE_S
        first = int(np.searchsorted(span.ticks, begin))
        n_minutes = max(0, end - begin) // MINUTE_S
    per_minute = MINUTE_S // span.every_s
    kept = slice(first, first + n_minutes * per_minute)
    ticks = span.ticks[kept][::per_minute]
    values = {
        name: _stats(array[kept].reshape(n_minutes, per_minute, *array.shape[1:]))
        for name, array in span.values.items()
        if array.shape[2]
    }
    empty = np.ones(n_minutes, dtype=bool)
    for stats in values.values():
        empty &= np.isnan(stats).all(axis=(1, 2))
    return Minutes(span.shard, ticks - ticks % MINUTE_S, span.nodes, values).where(~empty)


def _stats(samples: FloatArray) -> FloatArray:
    """Reduce (n_minutes, n_samples, n_nodes, n_parts) to the layout of ``Minutes.values``."""
    with np.errstate(invalid="ignore"):
        low, high = np.fmin.reduce(samples, axis=1), np.fmax.reduce(samples, axis=1)
        total = samples.sum(axis=1, dtype="f8")
        n = np.float64(samples.shape[1])
        if np.isnan(total).any():
            present = ~np.isnan(samples)
            total = np.where(present, samples, 0.0).sum(axis=1, dtype="f8")
            n = present.sum(axis=1)
        mean = np.where(n > 0, total, np.nan) / np.maximum(n, 1)
    return np.concatenate([low, mean, high], axis=2)


def as_stored(name: str, values: FloatArray) -> FloatArray:
    """Round values as the durable tier does, so that both tiers show the same values."""
    packing = METRICS[name].packing
    return decode(encode(values, packing), packing)


def encode_minute(minutes: Minutes, i: int) -> tuple[bytes, bytes]:
    """Return the layout and the packed values of one minute."""
    values = {name: array[i] for name, array in minutes.values.items()}
    layout, data = pack(Block(minutes.shard, int(minutes.minutes[i]), minutes.nodes, values))
    return layout.encoded, data


def decode_minute(shard: str, minute: int, layout: bytes, data: bytes) -> Minutes:
    block = unpack_block(shard, minute, data, read_layout(layout))
    values = {name: array[None] for name, array in block.values.items()}
    return Minutes(shard, np.array([minute]), block.nodes, values)


def encode_hour(minutes: Minutes) -> Iterator[tuple[str, bytes]]:
    """Yield each metric of one hour's minutes as (name, bytes).

    The bytes are the header's length, the header (nodes, minutes, columns, packing), the length
    of each node's section, and the sections: byte-shuffled and compressed, so that one node
    can be read alone.
    """
    offsets = ((minutes.minutes % HOUR_S) // MINUTE_S).tolist()
    for name, values in minutes.values.items():
        packing = METRICS[name].packing
        header = json.dumps([minutes.nodes, offsets, values.shape[2], packing]).encode()
        codes = np.ascontiguousarray(encode(values, packing).transpose(1, 2, 0))
        planes = codes.view("u1").reshape(len(minutes.nodes), codes[0].size, -1)
        turned = np.ascontiguousarray(planes.transpose(0, 2, 1))
        frames = [codec.compress(node.tobytes()) for node in turned]
        packed = codec.compress(header)
        lengths = np.array([len(packed), *map(len, frames)], "<u4")
        yield name, b"".join([lengths[:1].tobytes(), packed, lengths[1:].tobytes(), *frames])


def decode_hour(name: str, hour: int, data: bytes, node: str | None = None) -> Minutes | None:
    """Return one metric of an hour, of all nodes or of one; None if the node is not in it."""
    n_header = int.from_bytes(data[:4], "little")
    nodes, offsets, n_columns, packing = json.loads(codec.decompress(data[4 : 4 + n_header]))
    if node is not None and node not in nodes:
        return None
    start = 4 + n_header + 4 * len(nodes)
    ends = start + np.cumsum(np.frombuffer(data[4 + n_header : start], "<u4"))
    begins = [start, *ends[:-1].tolist()]
    rows = range(len(nodes)) if node is None else [nodes.index(node)]
    frames = b"".join(codec.decompress(data[begins[i] : int(ends[i])]) for i in rows)
    codes = unshuffle(frames, packing, (len(rows), n_columns, len(offsets)))
    values = decode(codes, packing).transpose(2, 0, 1)
    minutes = hour + MINUTE_S * np.array(offsets)
    return Minutes("", minutes, tuple(nodes[i] for i in rows), {name: values})


def merge_minutes(shard: str, pieces: Sequence[Minutes]) -> Minutes:
    """Join minutes; where several have the same node and minute, the last one is kept."""
    minutes = np.unique(np.concatenate([piece.minutes for piece in pieces]))
    nodes = tuple(dict.fromkeys(node for piece in pieces for node in piece.nodes))
    column = {node: i for i, node in enumerate(nodes)}
    widths: dict[str, int] = {}
    for piece in pieces:
        for name, array in piece.values.items():
            widths[name] = max(widths.get(name, 0), array.shape[2])
    values = {name: np.full((len(minutes), len(nodes), n), np.nan) for name, n in widths.items()}
    for piece in pieces:
        rows = np.searchsorted(minutes, piece.minutes)[:, None]
        columns = [column[node] for node in piece.nodes]
        for name, array in piece.values.items():
            values[name][rows, columns] = widened(array, widths[name])
    return Minutes(shard, minutes, nodes, values)


def widened(stats: FloatArray, width: int) -> FloatArray:
    """Pad stats with parts that are NaN."""
    if stats.shape[2] == width:
        return stats
    apart = stats.reshape(*stats.shape[:2], N_STATS, -1)
    more = width // N_STATS - apart.shape[3]
    wide = np.pad(apart, [(0, 0), (0, 0), (0, 0), (0, more)], constant_values=np.nan)
    return wide.reshape(*stats.shape[:2], width)
