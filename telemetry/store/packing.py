"""How a block becomes bytes: quantised, byte-shuffled, compressed, each metric readable alone."""

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import numpy as np
import zstandard as zstd
from numpy.typing import NDArray

from telemetry.blocks import METRICS, Block, FloatArray

Codes = NDArray[Any]

DIGEST_BYTES = 8
RATIO_STEPS = 254
ABSENT_RATIO = 255
ABSENT_ROUNDED = 0x7FC0
DTYPES: Mapping[str, np.dtype[Any]] = {
    "ratio": np.dtype("u1"),
    "rounded": np.dtype("<u2"),
    "exact": np.dtype("<f8"),
}


class _Codec(threading.local):
    """The compressor and decompressor of one thread; neither may be shared."""

    def __init__(self) -> None:
        bare = zstd.FORMAT_ZSTD1_MAGICLESS
        level_1 = zstd.ZstdCompressionParameters.from_level(1, format=bare)
        self.compress = zstd.ZstdCompressor(compression_params=level_1).compress
        self.decompress = zstd.ZstdDecompressor(format=bare).decompress


codec = _Codec()


@dataclass(frozen=True, slots=True)
class Column:
    """One metric of a layout: how many parts a node has, and how they are rounded."""

    name: str
    n_parts: int
    packing: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Whose values a packed block holds, in which order; kept once, named by its content."""

    nodes: tuple[str, ...] = field(compare=False)
    columns: tuple[Column, ...] = field(compare=False)
    digest: bytes
    encoded: bytes = field(compare=False, repr=False)

    def column(self, name: str) -> int | None:
        """Return the place of a metric, None where no node of the block has it."""
        return next((i for i, c in enumerate(self.columns) if c.name == name), None)


@lru_cache(maxsize=4096)
def layout_of(nodes: tuple[str, ...], shape: tuple[tuple[str, int], ...]) -> Layout:
    """Return the layout of blocks with these nodes and these (metric, number of parts)."""
    if unknown := [name for name, _ in shape if name not in METRICS]:
        msg = f"values: no such metric as {unknown[0]!r}; telemetry.blocks.METRICS names them all"
        raise ValueError(msg)
    if broken := [node for node in nodes if "\n" in node or not node]:
        msg = f"nodes: {broken[0]!r} is no name; it must be one line and not empty"
        raise ValueError(msg)
    columns = tuple(Column(name, n, METRICS[name].packing) for name, n in shape)
    parts = [[c.name, c.n_parts, c.packing] for c in columns]
    encoded = json.dumps([nodes, parts], separators=(",", ":")).encode()
    return Layout(nodes, columns, digest(encoded), encoded)


def read_layout(encoded: bytes) -> Layout:
    """Return the layout that ``encoded`` describes, as whoever wrote it understood it."""
    nodes, parts = json.loads(encoded)
    return Layout(tuple(nodes), tuple(Column(*p) for p in parts), digest(encoded), encoded)


def digest(content: bytes) -> bytes:
    """Name bytes by their content: 8 bytes."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def encode(values: FloatArray, packing: str) -> Codes:
    """Round values to the codes that are kept.

    Parameters
    ----------
    values : FloatArray
        Any shape; NaN where absent.
    packing : str
        How finely: see ``Metric.packing``.

    Returns
    -------
    codes : the same shape
        ``ratio``: 254 steps from 0 to 1 in a byte. ``rounded``: the upper half of a 32-bit
        float, 8 significant bits, which is 0.4 % of the value at worst. ``exact``: the value.
    """
    if packing == "exact":
        return np.asarray(values, "<f8")
    with np.errstate(over="ignore", invalid="ignore"):
        if packing == "ratio":
            steps = np.rint(np.clip(values, 0.0, 1.0) * np.float32(RATIO_STEPS))
            return np.where(np.isnan(steps), ABSENT_RATIO, steps).astype("u1")
        floats = np.ascontiguousarray(values, "<f4")
    bits = floats.view("<u4")
    codes: Codes = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    codes[np.isnan(floats)] = ABSENT_ROUNDED
    return codes


def decode(codes: Codes, packing: str) -> FloatArray:
    """Return the values that codes stand for; NaN where absent."""
    if packing == "exact":
        return codes
    if packing == "ratio":
        return _RATIOS[codes]
    return cast("FloatArray", (codes.astype("<u4") << 16).view("<f4"))


_RATIOS = np.append(np.arange(ABSENT_RATIO, dtype="f4") / RATIO_STEPS, np.nan).astype("f4")


def pack(block: Block) -> tuple[Layout, bytes]:
    """Return a block's layout, and its values as bytes.

    The bytes are the layout's digest, the length of each metric's part (32 bits each), and
    the parts: codes with all first bytes first, then all second bytes, compressed.
    """
    for name, values in block.values.items():
        if values.ndim != 2 or len(values) != len(block.nodes):
            msg = f"values[{name!r}] has shape {values.shape}; want ({len(block.nodes)}, parts)"
            raise ValueError(msg)
    shape = tuple((name, values.shape[1]) for name, values in block.values.items())
    layout = layout_of(block.nodes, shape)
    parts = [b""] * len(layout.columns)
    for packing in DTYPES:
        _pack_alike(block, layout, packing, parts)
    lengths = np.fromiter(map(len, parts), "<u4", len(parts))
    return layout, b"".join([layout.digest, lengths.tobytes(), *parts])


def _pack_alike(block: Block, layout: Layout, packing: str, parts: list[bytes]) -> None:
    """Pack the metrics that are rounded alike, in one pass."""
    places = [i for i, column in enumerate(layout.columns) if column.packing == packing]
    if not places:
        return
    flat = [np.ravel(block.values[layout.columns[i].name]) for i in places]
    codes = encode(np.concatenate(flat), packing)
    planes = np.ascontiguousarray(codes.view("u1").reshape(len(codes), -1).T)
    end = 0
    for i, values in zip(places, flat, strict=True):
        start, end = end, end + len(values)
        parts[i] = codec.compress(planes[:, start:end].tobytes())


def unpack(blobs: Sequence[bytes], layout: Layout, name: str) -> Codes | None:
    """Return one metric's codes in blocks of one layout: (n_blobs, n_nodes, n_parts).

    None where no node has the metric. The other metrics are not decompressed.
    """
    place = layout.column(name)
    if place is None:
        return None
    start = DIGEST_BYTES + 4 * len(layout.columns)
    heads = b"".join([blob[DIGEST_BYTES:start] for blob in blobs])
    ends = start + np.cumsum(np.frombuffer(heads, "<u4").reshape(len(blobs), -1), axis=1)
    begins = ends[:, place - 1].tolist() if place else [start] * len(blobs)
    pieces = zip(blobs, begins, ends[:, place].tolist(), strict=True)
    planes = b"".join([codec.decompress(blob[a:b]) for blob, a, b in pieces])
    column = layout.columns[place]
    return unshuffle(planes, column.packing, (len(blobs), len(layout.nodes), column.n_parts))


def unshuffle(planes: bytes, packing: str, shape: tuple[int, int, int]) -> Codes:
    """Put bytes that lie first with first and second with second together again."""
    dtype = DTYPES[packing]
    rows = np.frombuffer(planes, "u1").reshape(shape[0], dtype.itemsize, shape[1] * shape[2])
    codes: Codes = np.ascontiguousarray(rows.transpose(0, 2, 1)).view(dtype).reshape(shape)
    return codes


def unpack_block(shard: str, tick: int, blob: bytes, layout: Layout) -> Block:
    """Return the whole block that ``blob`` holds."""
    values: dict[str, FloatArray] = {}
    for column in layout.columns:
        codes = unpack([blob], layout, column.name)
        if codes is not None:
            values[column.name] = decode(codes[0], column.packing)
    return Block(shard, tick, layout.nodes, values)
