"""Samples that agents send on request: cores and EFA devices, many readings a second.

``telemetry/agent/sampling.py`` packs them.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from telemetry.blocks import FloatArray
from telemetry.ingest.lines import RefusedError, explain
from telemetry.ingest.schemas import MAX_CORES, Name, UnixSeconds, WholeCount

TableName = Literal["monitor", "driver", "efa_tx", "efa_rx"]
MAX_ROWS, MAX_PACKED_BYTES, MAX_UNPACKED_BYTES = 1000, 600_000, 8_000_000
FIELD = "agent.sample"
# By table: the type of its values, what one of them is, and the number of a missing one.
CORES = (np.dtype("<u1"), 1 / 200, 0xFF)
BYTES = (np.dtype("<u4"), 1.0, 0xFFFF_FFFF)
VALUES: Mapping[str, tuple[np.dtype[Any], float, int]] = {
    "monitor": CORES,
    "driver": CORES,
    "efa_tx": BYTES,
    "efa_rx": BYTES,
}
TIMES = np.dtype("<u4")
MS = 1000.0


class TableHead(Struct, forbid_unknown_fields=True):
    """One table of a sample: its parts, its number of rows, and what is to say about it."""

    name: TableName
    parts: Annotated[list[Annotated[str, Meta(pattern=r"^[0-9.]{1,16}\Z")]],
                     Meta(max_length=MAX_CORES)]  # fmt: skip
    n: Annotated[int, Meta(ge=0, le=MAX_ROWS)]
    note: Name = ""


class SampleAnswer(Struct):
    """What an agent answers to the request of a sample: that it samples, why not, or the sample.

    ``data`` are the tables one after the other, packed by zlib: of each first the times, in
    milliseconds after ``at``, then its rows.
    """

    id: WholeCount
    state: Literal["sampling"] | None = None
    reason: Name | None = None
    at: UnixSeconds = 0.0
    every_s: Annotated[float, Meta(ge=0.01, le=60)] = 0.1
    length_s: Annotated[float, Meta(gt=0, le=600)] = 30.0
    tables: Annotated[list[TableHead], Meta(min_length=1, max_length=4)] | None = None
    data: Annotated[bytes, Meta(max_length=MAX_PACKED_BYTES)] = b""


@dataclass(frozen=True, slots=True)
class SampleTable:
    """The rows of one source, NaN for what is missing.

    ``t_s`` (n,) are Unix seconds by the node's clock, when a row was read. ``values`` (n, n_parts)
    are of the time since the row before, or since ``start_s``: utilization (0 to 1), or bytes.
    """

    name: TableName
    parts: tuple[str, ...]
    start_s: float
    t_s: FloatArray
    values: FloatArray
    note: str

    @property
    def spacing_s(self) -> float | None:
        """Median time between rows; None with fewer than two."""
        return float(np.median(np.diff(self.t_s))) if len(self.t_s) > 1 else None


def sample_id(answer: object) -> int:
    """Return the id of an answer; raises RefusedError where it has none."""
    number = answer.get("id") if isinstance(answer, dict) else None
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise RefusedError(f"{FIELD}.id", "is not the id of a request")
    return number


def read_sample(answer: object) -> SampleAnswer:
    """Check an answer with all its tables; raises RefusedError, naming the field."""
    try:
        read = msgspec.convert(answer, SampleAnswer)
    except msgspec.ValidationError as error:
        refused = explain(error, b"{}", SampleAnswer)
        raise RefusedError(
            ".".join(filter(None, (FIELD, refused.field))), refused.reason
        ) from error
    if read.state is None and read.reason is None:
        sample_tables(read)
    return read


def sample_tables(sample: SampleAnswer) -> list[SampleTable]:
    """Unpack the tables; raises RefusedError where they do not fit the data."""
    if sample.tables is None:
        raise RefusedError(FIELD, "has neither a state, nor a reason, nor tables")
    data = _unpacked(sample.data)
    sizes = [head.n * (TIMES.itemsize + len(head.parts) * VALUES[head.name][0].itemsize)
             for head in sample.tables]  # fmt: skip
    if len(data) != sum(sizes):
        reason = f"has {len(data):,} bytes once unpacked; the tables need {sum(sizes):,}"
        raise RefusedError(f"{FIELD}.data", reason)
    tables, offset = [], 0
    for i, head in enumerate(sample.tables):
        kind, unit, missing = VALUES[head.name]
        n_parts = len(head.parts)
        ms = np.frombuffer(data, TIMES, head.n, offset)
        if (np.diff(ms.astype(np.int64)) < 0).any():
            raise RefusedError(f"{FIELD}.tables.{i}", "has times that go back")
        raw = np.frombuffer(data, kind, head.n * n_parts, offset + ms.nbytes)
        values = np.where(raw == missing, np.nan, raw.astype(float) * unit)
        t_s = sample.at + ms / MS
        shaped = values.reshape(head.n, n_parts)
        tables.append(SampleTable(head.name, tuple(head.parts), sample.at, t_s, shaped, head.note))
        offset += ms.nbytes + raw.nbytes
    return tables


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise RefusedError(f"{FIELD}.data", f"is not packed by zlib: {error}") from error
    if unpacker.unconsumed_tail:
        reason = f"has more than {MAX_UNPACKED_BYTES:,} bytes once unpacked"
        raise RefusedError(f"{FIELD}.data", reason)
    if not unpacker.eof:
        raise RefusedError(f"{FIELD}.data", "ends early")
    return unpacked
