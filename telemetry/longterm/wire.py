"""Remote write on the wire: Prometheus' WriteRequest, as protobuf in snappy's block format."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import cramjam
import numpy as np
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray

HEADERS: Mapping[str, str] = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
# The specification's messages: field names by number, each with its type or the message it is.
MESSAGES: Mapping[str, Sequence[tuple[str, str]]] = {
    "Label": (("name", "string"), ("value", "string")),
    "Sample": (("value", "double"), ("timestamp", "int64")),
    "TimeSeries": (("labels", "Label"), ("samples", "Sample")),
    "WriteRequest": (("timeseries", "TimeSeries"),),
}
PACKAGE = "prometheus"
# A Sample as a field of its TimeSeries: every one has the same length, as milliseconds since
# 1970 take six bytes as a varint from 2004 until 2109.
SAMPLE = np.dtype(
    [
        ("field", "u1"),
        ("length", "u1"),
        ("value_field", "u1"),
        ("value", "<f8"),
        ("time_field", "u1"),
        ("time", "u1", 6),
    ]
)
FIRST_MS, END_MS = 1 << 35, 1 << 42
SERIES_FIELD = b"\x0a"


def _descriptor() -> FileDescriptorProto:
    """Describe the messages as protobuf's own compiler would."""
    file = FileDescriptorProto(name="remote.proto", package=PACKAGE, syntax="proto3")
    for message, fields in MESSAGES.items():
        described = DescriptorProto(name=message)
        for number, (name, kind) in enumerate(fields, start=1):
            described.field.append(_field(name, number, kind))
        file.message_type.append(described)
    return file


def _field(name: str, number: int, kind: str) -> FieldDescriptorProto:
    if kind in MESSAGES:
        return FieldDescriptorProto(
            name=name,
            number=number,
            label=FieldDescriptorProto.LABEL_REPEATED,
            type=FieldDescriptorProto.TYPE_MESSAGE,
            type_name=f".{PACKAGE}.{kind}",
        )
    return FieldDescriptorProto(
        name=name,
        number=number,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}"),
    )


_POOL = DescriptorPool()
_POOL.Add(_descriptor())
TimeSeries: Any = GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.TimeSeries"))
WriteRequest: Any = GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.WriteRequest"))


@lru_cache(maxsize=1 << 20)
def series(name: str, labels: tuple[tuple[str, str], ...]) -> bytes:
    """Return the head of a TimeSeries: its labels in order of name, those without value left out.

    They are written once per process and series; a fleet says the same names every second.
    """
    pairs = sorted([("__name__", name), *((key, value) for key, value in labels if value)])
    message: bytes = TimeSeries(
        labels=[{"name": key, "value": value} for key, value in pairs]
    ).SerializeToString()
    return message


def samples(values: FloatArray, times_ms: IntArray) -> NDArray[np.void]:
    """Return samples as they go into a TimeSeries.

    Parameters
    ----------
    values : FloatArray
        Of any shape.
    times_ms : IntArray
        Milliseconds since 1970, of a shape that broadcasts to that of the values.
    """
    if times_ms.size and not FIRST_MS <= int(times_ms.min()) <= int(times_ms.max()) < END_MS:
        msg = f"times_ms: {int(times_ms.min())} to {int(times_ms.max())}; expected milliseconds"
        raise ValueError(msg)
    written = np.empty(values.shape, SAMPLE)
    written["field"], written["length"] = 0x12, SAMPLE.itemsize - 2
    written["value_field"], written["value"] = 0x09, values
    written["time_field"] = 0x10
    bits = times_ms.astype("u8")[..., None] >> np.arange(0, 42, 7, dtype="u8")
    more = np.array([0x80] * 5 + [0], "u8")
    written["time"] = (bits & np.uint64(0x7F)) | more
    return written


def request(heads: Sequence[bytes], values: FloatArray, times_ms: IntArray) -> bytes:
    """Return the body of a write: one TimeSeries per head, with its values that are not NaN.

    Parameters
    ----------
    heads : (n_series,)
        See ``series``.
    values : (n_series, n_times)
        NaN where there is nothing to say.
    times_ms : (n_series, n_times), or what broadcasts to it
        Rising along each series.
    """
    present = ~np.isnan(values)
    written = samples(values[present], np.broadcast_to(times_ms, values.shape)[present])
    body, size = written.tobytes(), SAMPLE.itemsize
    counts = present.sum(axis=1)
    ends = (np.cumsum(counts) * size).tolist()
    pieces: list[bytes] = []
    begin = 0
    for head, end in zip(heads, ends, strict=True):
        if end > begin:
            pieces += (SERIES_FIELD, _varint(len(head) + end - begin), head, body[begin:end])
        begin = end
    return bytes(cramjam.snappy.compress_raw(b"".join(pieces)))


@lru_cache(maxsize=65_536)
def _varint(number: int) -> bytes:
    """Write a number seven bits at a time, the lowest first."""
    pieces: list[int] = []
    while number >= 0x80:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*pieces, number])
