"""Packing of blocks and steps: quantised, byte-shuffled, compressed; each metric separate."""

import hashlib
import json
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, cast

import numpy as np
import zstandard as zstd
from numpy.typing import NDArray

from telemetry.blocks import METRICS, Block, FloatArray, IntArray
from telemetry.steps import PHASES, Merged, StepBatch, is_reported

Codes = NDArray[Any]

DIGEST_BYTES = 8
# A CRC-32 ends each block and step, so that damage is noticed.
CHECK_BYTES = 4
# Values rounded in one pass, and the size up to which bytes are not compressed.
MAX_AT_ONCE = 100_000
MAX_RAW_BYTES = 16
RATIO_STEPS = 254
ABSENT_RATIO = 255
ABSENT_ROUNDED = 0x7FC0
DTYPES: Mapping[str, np.dtype[Any]] = {
    "ratio": np.dtype("u1"),
    "rounded": np.dtype("<u2"),
    "exact": np.dtype("<f8"),
}

_RATIOS = np.append(np.arange(ABSENT_RATIO, dtype="f4") / RATIO_STEPS, np.nan).astype("f4")
# Stored steps are marked in bitmaps of this many steps each.
STEPS_PER_HASH = 4096
N_HEAD = 3
_SHAPE = attrgetter("shape")


class _Codec(threading.local):
    """A compressor and a decompressor per thread; they are not thread-safe."""

    def __init__(self) -> None:
        bare = zstd.FORMAT_ZSTD1_MAGICLESS
        level_1 = zstd.ZstdCompressionParameters.from_level(1, format=bare)
        self.compress = zstd.ZstdCompressor(compression_params=level_1).compress
        self.decompress = zstd.ZstdDecompressor(format=bare).decompress


codec = _Codec()


@dataclass(frozen=True, slots=True)
class PackedColumn:
    name: str
    n_parts: int
    packing: str


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The nodes and metrics of a packed block, in order; stored once under its digest."""

    nodes: tuple[str, ...] = field(compare=False)
    columns: tuple[PackedColumn, ...] = field(compare=False)
    digest: bytes
    encoded: bytes = field(compare=False, repr=False)

    @property
    def n_check_bytes(self) -> int:
        """Return how many bytes end its blocks; earlier code wrote no newline and no check."""
        return CHECK_BYTES if self.encoded.endswith(b"\n") else 0

    def column(self, name: str) -> int | None:
        """Return the index of a metric, None if the block does not have it."""
        return next((i for i, c in enumerate(self.columns) if c.name == name), None)


@lru_cache(maxsize=4096)
def layout_of(nodes: tuple[str, ...], shape: tuple[tuple[str, int], ...]) -> PackedLayout:
    """Return the layout of blocks with these nodes and these (metric, number of parts)."""
    if unknown := [name for name, _ in shape if name not in METRICS]:
        msg = f"values: {unknown[0]!r} is unknown. Give a metric of telemetry.blocks.METRICS"
        raise ValueError(msg)
    if broken := [node for node in nodes if "\n" in node or not node]:
        msg = f"nodes: {broken[0]!r} is not a name. Give one line that is not empty"
        raise ValueError(msg)
    columns = tuple(PackedColumn(name, n, METRICS[name].packing) for name, n in shape)
    parts = [[c.name, c.n_parts, c.packing] for c in columns]
    encoded = json.dumps([nodes, parts], separators=(",", ":")).encode() + b"\n"
    return PackedLayout(nodes, columns, digest(encoded), encoded)


def read_layout(encoded: bytes) -> PackedLayout:
    """Decode a layout, with the packings it was written with."""
    nodes, parts = json.loads(encoded)
    return PackedLayout(
        tuple(nodes), tuple(PackedColumn(*p) for p in parts), digest(encoded), encoded
    )


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def checked(content: bytes) -> bytes:
    return content + zlib.crc32(content).to_bytes(CHECK_BYTES, "little")


def is_whole_block(layout: PackedLayout, blob: bytes) -> bool:
    return not layout.n_check_bytes or _is_whole(blob)


def is_whole_step(record: bytes) -> bool:
    # Earlier code wrote steps without a check: the digest and 64-bit floats.
    return len(record) % 8 == 0 or _is_whole(record)


def _is_whole(content: bytes) -> bool:
    check = zlib.crc32(memoryview(content)[:-CHECK_BYTES])
    return check.to_bytes(CHECK_BYTES, "little") == content[-CHECK_BYTES:]


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
    """Return the values of codes; NaN where absent."""
    if packing == "exact":
        return codes
    if packing == "ratio":
        return _RATIOS[codes]
    return cast("FloatArray", (codes.astype("<u4") << 16).view("<f4"))


def pack(block: Block) -> tuple[PackedLayout, bytes]:
    """Return a block's layout and its values as bytes.

    The bytes are the layout's digest, the length of each metric's section (32 bits each), and
    the sections: codes with all first bytes first, then all second bytes, compressed. A check
    of all bytes is at the end.
    """
    return pack_all([block])[0]


def pack_all(blocks: Sequence[Block]) -> list[tuple[PackedLayout, bytes]]:
    """Pack blocks; those of the same shape are rounded together, shared values once."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    # A report covers several seconds, all with its values.
    first: dict[tuple[int, tuple[str, ...]], int] = {}
    firsts = [first.setdefault((id(b.values), b.nodes), i) for i, b in enumerate(blocks)]
    for i in first.values():
        block = blocks[i]
        shapes = tuple(map(_SHAPE, block.values.values()))
        groups.setdefault((len(block.nodes), *block.values, *shapes), []).append(i)
    packed: dict[int, tuple[PackedLayout, bytes]] = {}
    for members in groups.values():
        width = sum(values.size for values in blocks[members[0]].values.values())
        at_once = max(1, MAX_AT_ONCE // max(width, 1))
        for start in range(0, len(members), at_once):
            some = members[start : start + at_once]
            packed |= zip(some, _pack_same([blocks[i] for i in some]), strict=True)
    return [packed[i] for i in firsts]


def _pack_same(blocks: Sequence[Block]) -> list[tuple[PackedLayout, bytes]]:
    for name, values in blocks[0].values.items():
        if values.ndim != 2 or len(values) != len(blocks[0].nodes):
            wanted = f"({len(blocks[0].nodes)}, parts)"
            msg = f"values[{name!r}] has shape {values.shape}; want {wanted}"
            raise ValueError(msg)
    shape = tuple((name, values.shape[1]) for name, values in blocks[0].values.items())
    layouts = [layout_of(block.nodes, shape) for block in blocks]
    # By column, the section of each block.
    sections: list[list[bytes]] = [[] for _ in shape]
    # Nodes often have the same values, such as error counts: each is compressed once.
    frames: dict[bytes, bytes] = {}
    for packing in DTYPES:
        places = [i for i, column in enumerate(layouts[0].columns) if column.packing == packing]
        if not places:
            continue
        names = [layouts[0].columns[i].name for i in places]
        sizes = [blocks[0].values[name].size for name in names]
        flat = np.concatenate([b.values[name] for b in blocks for name in names], axis=None)
        rows = encode(flat, packing).view("u1").reshape(len(blocks), sum(sizes), -1)
        planes = rows.transpose(0, 2, 1)
        end = 0
        for place, size in zip(places, sizes, strict=True):
            start, end = end, end + size
            data, n = planes[:, :, start:end].tobytes(), size * planes.shape[1]
            of_each = [data[i * n : i * n + n] for i in range(len(blocks))]
            sections[place] = framed(of_each, n, frames)
    lengths = struct.Struct(f"<{len(shape)}I")
    bodies = [*zip(*sections, strict=True)] or [()] * len(blocks)
    return [
        (layout, checked(b"".join([layout.digest, lengths.pack(*map(len, body)), *body])))
        for layout, body in zip(layouts, bodies, strict=True)
    ]


def framed(contents: Sequence[bytes], n_bytes: int, frames: dict[bytes, bytes]) -> list[bytes]:
    """Return contents of ``n_bytes`` as Zstandard frames; ``frames`` has what was compressed.

    Up to ``MAX_RAW_BYTES`` are not compressed.
    """
    if n_bytes > MAX_RAW_BYTES:
        frames |= {each: codec.compress(each) for each in {*contents} - frames.keys()}
        return [frames[each] for each in contents]
    # One segment of n bytes, in one block, the last, that is not compressed.
    head = b"\x20" + n_bytes.to_bytes(1) + (n_bytes << 3 | 1).to_bytes(3, "little")
    return [head + each for each in contents]


def unpack(blobs: Sequence[bytes], layout: PackedLayout, name: str) -> Codes | None:
    """Return one metric's codes from blocks of one layout: (n_blobs, n_nodes, n_parts).

    None if the layout does not have the metric. Other metrics are not decompressed.
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


def ratio_codes(blob: bytes, layout: PackedLayout, name: str) -> Codes | None:
    """Return one block's codes of a ratio, a byte each: (n_nodes, n_parts).

    None if the block does not have it. Faster than ``unpack`` for many blocks of as many layouts.
    """
    place = layout.column(name)
    if place is None or layout.columns[place].packing != "ratio":
        return None
    lengths = struct.unpack_from(f"<{place + 1}I", blob, DIGEST_BYTES)
    begin = DIGEST_BYTES + 4 * len(layout.columns) + sum(lengths[:-1])
    codes = np.frombuffer(codec.decompress(blob[begin : begin + lengths[-1]]), "u1")
    return codes.reshape(len(layout.nodes), -1)


def unshuffle(planes: bytes, packing: str, shape: tuple[int, int, int]) -> Codes:
    dtype = DTYPES[packing]
    rows = np.frombuffer(planes, "u1").reshape(shape[0], dtype.itemsize, shape[1] * shape[2])
    if dtype.itemsize == 2:
        # A fifteenth of the time of a transposition, which moves byte by byte.
        codes: Codes = rows[:, 1].astype(dtype)
        codes <<= 8
        codes |= rows[:, 0]
    else:
        codes = np.ascontiguousarray(rows.transpose(0, 2, 1)).view(dtype)
    return codes.reshape(shape)


def unpack_block(shard: str, tick: int, blob: bytes, layout: PackedLayout) -> Block:
    values: dict[str, FloatArray] = {}
    for column in layout.columns:
        codes = unpack([blob], layout, column.name)
        if codes is not None:
            values[column.name] = decode(codes[0], column.packing)
    return Block(shard, tick, layout.nodes, values)


def pack_steps(batch: StepBatch) -> tuple[bytes, bytes, list[bytes]]:
    """Return the digest of the workers' names, the names as bytes, and a record per step.

    A record is the digest, then as 64-bit floats step number, end, tokens, each phase of each
    worker and, only if the batch has any, the loss and other communication. A check of all bytes
    is at the end.
    """
    names = json.dumps(batch.workers, separators=(",", ":")).encode()
    head = np.stack([batch.step, batch.ended_at_s, batch.tokens], axis=1).astype("<f8")
    phases = np.stack([batch.phases[phase] for phase in PHASES], axis=1).reshape(len(batch), -1)
    extra = [] if batch.reported_loss is None else [batch.loss]
    if batch.reported_other_comm_s is not None:
        extra = [batch.loss, batch.reported_other_comm_s]
    columns = [each[:, None] for each in extra]
    rows = np.concatenate([head, phases, *columns], axis=1, dtype="<f8")
    key = digest(names)
    return key, names, [checked(key + row.tobytes()) for row in rows]


def unpack_steps(
    run: str, records: Sequence[bytes], workers_of: Callable[[bytes], Iterable[str] | None]
) -> StepBatch:
    """Return records as a batch, in order of step; absent workers are NaN.

    ``workers_of`` returns the workers of a digest, None if that was lost.
    """
    groups: dict[tuple[bytes, int], list[bytes]] = {}
    for record in records:
        row = record[DIGEST_BYTES : len(record) // 8 * 8]
        groups.setdefault((record[:DIGEST_BYTES], len(row)), []).append(row)
    names_of = {
        digest: tuple(names)
        for digest in {digest for digest, _ in groups}
        if (names := workers_of(digest)) is not None
    }
    known = {key: names_of[key[0]] for key in groups if key[0] in names_of}
    if not known:
        return StepBatch.empty(run)
    # In the order of the newest that miss no worker: a restart may give them other ranks.
    most = max(map(len, known.values()))
    digests = (record[:DIGEST_BYTES] for record in reversed(records))
    newest = next(names for each in digests if len(names := names_of.get(each, ())) == most)
    workers = tuple(dict.fromkeys(name for names in (newest, *known.values()) for name in names))
    columns = {name: i for i, name in enumerate(workers)}
    # After the phases come as many columns as the record has: loss, other communication.
    n_phases = {key: len(PHASES) * len(names) for key, names in known.items()}
    n_extra = max(1, *(key[1] // 8 - N_HEAD - n for key, n in n_phases.items()))
    end = N_HEAD + len(PHASES) * len(workers)
    parts = []
    for key, names in known.items():
        n_columns = N_HEAD + n_phases[key]
        narrow = np.frombuffer(b"".join(groups[key]), "<f8").reshape(len(groups[key]), -1)
        if names == workers and narrow.shape[1] == end + n_extra:
            parts.append(narrow)
            continue
        wide = np.full((len(narrow), end + n_extra), np.nan)
        wide[:, :N_HEAD] = narrow[:, :N_HEAD]
        phases = wide[:, N_HEAD:end].reshape(len(wide), len(PHASES), len(workers))
        phases[:, :, [columns[name] for name in names]] = narrow[:, N_HEAD:n_columns].reshape(
            len(wide), len(PHASES), len(names)
        )
        wide[:, end : end + narrow.shape[1] - n_columns] = narrow[:, n_columns:]
        parts.append(wide)
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    phases = rows[:, N_HEAD:end].reshape(len(rows), len(PHASES), len(workers))
    named = {phase: phases[:, i] for i, phase in enumerate(PHASES)}
    extra = [each if is_reported(each).any() else None for each in rows[:, end:].T]
    number, ended_at_s, tokens = rows[:, 0].astype(int), rows[:, 1], rows[:, 2]
    return StepBatch(
        run,
        workers,
        number,
        ended_at_s,
        named,
        tokens,
        extra[0],
        reported_other_comm_s=extra[1] if len(extra) > 1 else None,
    )


def steps_between(batch: StepBatch, since_s: float, until_s: float) -> StepBatch:
    return steps_where(batch, (batch.ended_at_s >= since_s) & (batch.ended_at_s < until_s))


def sort_by_end(batch: StepBatch) -> StepBatch:
    """Sort a batch by the steps' ends; clocks and restarts may change the order."""
    if (np.diff(batch.ended_at_s) >= 0).all():
        return batch
    return _chosen(batch, np.argsort(batch.ended_at_s, kind="stable"))


def steps_where(batch: StepBatch, kept: NDArray[np.bool_]) -> StepBatch:
    if kept.all():
        return batch
    return _chosen(batch, kept)


def _chosen(batch: StepBatch, rows: NDArray[np.bool_] | IntArray) -> StepBatch:
    phases = {phase: values[rows] for phase, values in batch.phases.items()}
    step, ended_at_s, tokens = batch.step[rows], batch.ended_at_s[rows], batch.tokens[rows]
    loss = None if batch.reported_loss is None else batch.reported_loss[rows]
    merged = batch.merged and Merged(batch.merged.n_steps[rows], batch.merged.tokens[rows])
    other = None if batch.reported_other_comm_s is None else batch.reported_other_comm_s[rows]
    return StepBatch(
        batch.run, batch.workers, step, ended_at_s, phases, tokens, loss, merged, other
    )
