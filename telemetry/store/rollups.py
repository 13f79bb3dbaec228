"""Roll-ups: minimum, mean and maximum of every part, by minute and by ten, and their packing."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import METRICS, Block, FloatArray, IntArray, Span, mean
from telemetry.store.packing import (
    DTYPES,
    Codes,
    codec,
    decode,
    encode,
    pack,
    read_layout,
    unpack,
    unshuffle,
)
from telemetry.units import DAY_S, HOUR_S, MINUTE_S

N_STATS = 3
# What is older than some days has a row for so long. It divides each coarser row of charts.
TEN_MINUTES_S = 10 * MINUTE_S
# The name of a row that holds every metric. What PostgreSQL and a header add to a row is 440 bytes
# (measured), half a row of one metric of one node; a row of up to this size reads as fast.
TOGETHER, TOGETHER_BYTES = "", 2**16
# Tukey's fences: of a normal distribution 0.7 % is outside.
FENCE = 1.5
# Quartiles need as many parts.
LEAST_PARTS = 4


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
        low, high, total = samples.min(axis=1), samples.max(axis=1), samples.sum(axis=1)
        n = np.full(total.shape, samples.shape[1])
        # Where some are missing, these only.
        if (lacks := np.isnan(total)).any():
            some = samples.swapaxes(0, 1)[:, lacks]
            present = ~np.isnan(some)
            low[lacks], high[lacks] = np.fmin.reduce(some, axis=0), np.fmax.reduce(some, axis=0)
            total[lacks], n[lacks] = np.where(present, some, 0.0).sum(axis=0), present.sum(axis=0)
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


def decode_single(shard: str, rows: Iterable[tuple[int, bytes, bytes]]) -> list[Minutes]:
    """Return single minutes, given as (minute, layout, data); those of one layout together."""
    by_layout: dict[bytes, list[tuple[int, bytes]]] = {}
    for minute, encoded, data in rows:
        by_layout.setdefault(encoded, []).append((minute, data))
    pieces = []
    for encoded, some in by_layout.items():
        layout, blobs = read_layout(encoded), [data for _, data in some]
        values: dict[str, FloatArray] = {}
        for column in layout.columns:
            codes = unpack(blobs, layout, column.name)
            if codes is not None:
                values[column.name] = decode(codes, column.packing)
        minutes = np.array([minute for minute, _ in some])
        pieces.append(Minutes(shard, minutes, layout.nodes, values))
    return pieces


def encode_hour(minutes: Minutes) -> Iterator[tuple[str, bytes]]:
    """Yield one hour's minutes as rows: (metric, or ``TOGETHER`` if all fit in one; bytes).

    The bytes are the header's length, the header (nodes, minutes, columns and packing by metric),
    the length of each section, and the sections, one for each metric and node: byte-shuffled and
    compressed, so that one node can be read alone.
    """
    offsets = ((minutes.minutes % HOUR_S) // MINUTE_S).tolist()
    columns = [(name, a.shape[2], METRICS[name].packing) for name, a in minutes.values.items()]
    sections = [_hour_sections(minutes.values[name], packing) for name, _, packing in columns]
    every = list(chain.from_iterable(sections))
    if sum(map(len, every)) <= TOGETHER_BYTES:
        yield TOGETHER, _row([minutes.nodes, offsets, columns], every)
        return
    for (name, n_columns, packing), some in zip(columns, sections, strict=True):
        yield name, _row([minutes.nodes, offsets, n_columns, packing], some)


def encode_day(rows: Minutes) -> bytes:
    """Return one day's rows of ten minutes as one row, as ``encode_hour`` does.

    Only parts that stand out have values of their own. All others of a row share three: their
    lowest, their mean, their highest. Sums and extremes over parts stay the same.
    """
    offsets = ((rows.minutes % DAY_S) // TEN_MINUTES_S).tolist()
    columns = [(name, a.shape[2], METRICS[name].packing) for name, a in rows.values.items()]
    sections = [_day_sections(rows.values[name], packing) for name, _, packing in columns]
    return _row([rows.nodes, offsets, columns], list(chain.from_iterable(sections)))


def _row(header: list[Any], sections: list[bytes]) -> bytes:
    packed = codec.compress(json.dumps(header).encode())
    lengths = np.array([len(packed), *map(len, sections)], "<u4")
    return b"".join([lengths[:1].tobytes(), packed, lengths[1:].tobytes(), *sections])


def _hour_sections(values: FloatArray, packing: str) -> list[bytes]:
    codes = encode(values, packing).transpose(1, 2, 0)
    return [codec.compress(shuffled(node)) for node in codes]


def _day_sections(values: FloatArray, packing: str) -> list[bytes]:
    """Pack each node: what its ordinary parts share, which parts stand out, and those."""
    stats = values.reshape(*values.shape[:2], N_STATS, -1).transpose(1, 2, 3, 0)
    apart = stands_out(stats)
    ordinary = np.where(apart[:, None], np.nan, stats)
    low, high = np.fmin.reduce(ordinary[:, 0], axis=1), np.fmax.reduce(ordinary[:, 2], axis=1)
    shared = encode(np.stack([low, mean(ordinary[:, 1], 1), high], axis=1), packing)
    codes = encode(stats, packing)
    return [
        codec.compress(
            b"".join(
                [
                    shuffled(shared[i]),
                    np.packbits(apart[i]).tobytes(),
                    shuffled(codes[i][:, apart[i]]),
                ]
            )
        )
        for i in range(len(codes))
    ]


def shuffled(codes: Codes) -> bytes:
    """Return codes as bytes, all first bytes first."""
    flat = np.ascontiguousarray(codes)
    return flat.view("u1").reshape(flat.size, flat.itemsize).T.tobytes()


def stands_out(stats: FloatArray) -> NDArray[np.bool_]:
    """Whether a part differs from the others of its node: (n_nodes, n_parts, n_rows).

    Parameters
    ----------
    stats : (n_nodes, 3, n_parts, n_rows)
        Lowest, mean and highest; NaN where nothing was reported.

    Notes
    -----
    A part stands out where its lowest, mean or highest is outside of Tukey's fences around those
    of all parts, or its mean is where the median part never was; where it alone, or others alone,
    reported; and where there are too few parts to tell.
    """
    known = np.isfinite(stats[:, 1])
    n = known.sum(axis=1, keepdims=True)
    ordered = np.sort(stats, axis=2)

    def ranked(place: IntArray) -> FloatArray:
        return np.take_along_axis(ordered, np.maximum(place, 0)[:, None], axis=2)

    lower, upper = ranked((n - 1) // 4), ranked(n - 1 - (n - 1) // 4)
    median = (ranked((n - 1) // 2) + ranked(n // 2)) / 2
    reach = FENCE * (upper - lower)
    with np.errstate(invalid="ignore"):
        outside = ((stats < lower - reach) | (stats > upper + reach)).any(axis=1)
        outside |= (stats[:, 1] < median[:, 0]) | (stats[:, 1] > median[:, 2])
    return np.asarray((outside | ~known | (n < LEAST_PARTS)) & (n > 0))


def decode_hour(
    key: str, hour: int, data: bytes, node: str | None = None, metric: str | None = None
) -> Minutes | None:
    """Return a row of an hour, all of it or of one node or metric; None if that is not in it."""
    return _decoded(key, data, _hour_codes, (hour, MINUTE_S), node=node, metric=metric)


def decode_day(
    day: int, data: bytes, node: str | None = None, metric: str | None = None
) -> Minutes | None:
    """Return a row of a day as ``decode_hour`` does; parts that do not stand out are alike."""
    return _decoded(TOGETHER, data, _day_codes, (day, TEN_MINUTES_S), node=node, metric=metric)


def _decoded(
    key: str,
    data: bytes,
    codes_of: Callable[[list[bytes], str, int, int], Codes],
    grid: tuple[int, int],
    *,
    node: str | None,
    metric: str | None,
) -> Minutes | None:
    start = 4 + int.from_bytes(data[:4], "little")
    nodes, offsets, *columns = json.loads(codec.decompress(data[4:start]))
    # A row of one metric has its number of columns and its packing.
    columns = columns[0] if len(columns) == 1 else [[key, *columns]]
    names = [name for name, _, _ in columns]
    if (node is not None and node not in nodes) or (metric is not None and metric not in names):
        return None
    first = start + 4 * len(nodes) * len(columns)
    ends = first + np.cumsum(np.frombuffer(data[start:first], "<u4"))
    begins = [first, *ends[:-1].tolist()]
    rows = range(len(nodes)) if node is None else [nodes.index(node)]
    values = {}
    for place, (name, n_columns, packing) in enumerate(columns):
        if metric in (None, name):
            sections = [place * len(nodes) + i for i in rows]
            contents = [codec.decompress(data[begins[i] : int(ends[i])]) for i in sections]
            codes = codes_of(contents, packing, n_columns, len(offsets))
            values[name] = decode(codes, packing).transpose(2, 0, 1)
    minutes = grid[0] + grid[1] * np.array(offsets)
    return Minutes("", minutes, tuple(nodes[i] for i in rows), values)


def _hour_codes(contents: list[bytes], packing: str, n_columns: int, n_rows: int) -> Codes:
    return unshuffle(b"".join(contents), packing, (len(contents), n_columns, n_rows))


def _day_codes(contents: list[bytes], packing: str, n_columns: int, n_rows: int) -> Codes:
    n_parts = n_columns // N_STATS
    end_shared = N_STATS * n_rows * DTYPES[packing].itemsize
    end_apart = end_shared - (-n_parts * n_rows // 8)
    codes = np.empty((len(contents), N_STATS, n_parts, n_rows), DTYPES[packing])
    for mine, content in zip(codes, contents, strict=True):
        bits = np.frombuffer(content[end_shared:end_apart], "u1")
        apart = np.unpackbits(bits, count=n_parts * n_rows).reshape(n_parts, n_rows).astype(bool)
        shared = unshuffle(content[:end_shared], packing, (1, N_STATS, n_rows))[0]
        mine[:] = shared[:, None]
        mine[:, apart] = unshuffle(content[end_apart:], packing, (1, N_STATS, int(apart.sum())))[0]
    return codes.reshape(len(contents), n_columns, n_rows)


def ten_minutes(minutes: Minutes) -> Minutes:
    """Merge minutes to rows of ten minutes; rows without any are left out."""
    starts = np.unique(minutes.minutes // TEN_MINUTES_S * TEN_MINUTES_S)
    n_each = TEN_MINUTES_S // MINUTE_S
    places = np.searchsorted(starts, minutes.minutes // TEN_MINUTES_S * TEN_MINUTES_S)
    rows = places * n_each + minutes.minutes % TEN_MINUTES_S // MINUTE_S
    values = {}
    for name, array in minutes.values.items():
        filled = np.full((len(starts) * n_each, *array.shape[1:]), np.nan)
        filled[rows] = array
        stats = filled.reshape(len(filled), len(minutes.nodes), N_STATS, -1)
        merged = coarser(stats.swapaxes(1, 2).reshape(len(filled), N_STATS, -1), n_each)
        stats = merged.reshape(len(starts), N_STATS, len(minutes.nodes), -1).swapaxes(1, 2)
        values[name] = stats.reshape(len(starts), *array.shape[1:])
    return Minutes(minutes.shard, starts, minutes.nodes, values)


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


def coarser(stats: FloatArray, n_each: int) -> FloatArray:
    """Merge neighbouring rows: minimum of minima, mean of means, maximum of maxima.

    Parameters
    ----------
    stats : (n, 3, n_parts)
        Minimum, mean and maximum; NaN for gaps.
    n_each : int
        How many rows become one.

    Returns
    -------
    merged : (ceil(n / n_each), 3, n_parts)
        NaN where all rows are.
    """
    if n_each == 1:
        return stats
    lacking = -len(stats) % n_each
    whole = np.pad(stats, [(0, lacking), (0, 0), (0, 0)], constant_values=np.nan)
    groups = whole.reshape(len(whole) // n_each, n_each, *stats.shape[1:])
    there = np.isfinite(groups[:, :, 1])
    total = np.where(there, groups[:, :, 1], 0.0).sum(axis=1)
    n = there.sum(axis=1)
    mean = np.divide(total, n, out=np.full(total.shape, np.nan), where=n > 0)
    low = np.fmin.reduce(groups[:, :, 0], axis=1)
    high = np.fmax.reduce(groups[:, :, 2], axis=1)
    return np.stack([low, mean, high], axis=1)
