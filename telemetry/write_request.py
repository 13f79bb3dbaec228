"""The protobuf messages of Prometheus remote write 1.0, and the refusals of OTLP."""

from collections.abc import Mapping, Sequence
from typing import Any

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
    return FieldDescriptorProto(
        name=name,
        number=number,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}"),
    )


_POOL = DescriptorPool()
_POOL.Add(_descriptor())
TimeSeries: Any = GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.TimeSeries"))
Status: Any = GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.Status"))
WriteRequest: Any = GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.WriteRequest"))
