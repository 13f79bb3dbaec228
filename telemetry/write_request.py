"""The protobuf messages of Prometheus remote write 1.0, and the refusals of OTLP."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

# The specifications' messages: field names by number, each with its type or the message it is.
MESSAGES: Mapping[str, Sequence[tuple[str, str]]] = {
    "Label": (("name", "string"), ("value", "string")),
    "Sample": (("value", "double"), ("timestamp", "int64")),
    "TimeSeries": (("labels", "Label"), ("samples", "Sample")),
    "WriteRequest": (("timeseries", "TimeSeries"),),
    # The same on the wire, with labels as they are: readers know most series.
    "EncodedSeries": (("labels", "bytes"), ("samples", "Sample")),
    # google.rpc.Status
    "Status": (("code", "int32"), ("message", "string")),
}
PACKAGE = "prometheus"


def _descriptor() -> FileDescriptorProto:
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
    label = "REPEATED" if kind == "bytes" else "OPTIONAL"
    return FieldDescriptorProto(
        name=name,
        number=number,
        label=FieldDescriptorProto.Label.Value(f"LABEL_{label}"),
        type=FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}"),
    )


_POOL = DescriptorPool()
_POOL.Add(_descriptor())
Label, TimeSeries, WriteRequest, EncodedSeries, Status = (
    cast("Any", GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}")))
    for name in ("Label", "TimeSeries", "WriteRequest", "EncodedSeries", "Status")
)
