"""Protobuf messages by a table, and those of Prometheus remote write 1.0 and of refusals."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

# Of each message its fields: number, name, and type or the message it is; messages are lists.
Messages = Mapping[str, Sequence[tuple[int, str, str]]]


def message_classes(package: str, messages: Messages, *, syntax: str = "proto3") -> dict[str, Any]:
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)
    for message, fields in messages.items():
        described = DescriptorProto(name=message)
        for number, name, kind in fields:
            is_message, scalar = kind in messages, kind.removeprefix("repeated ")
            described.field.append(
                FieldDescriptorProto(
                    name=name,
                    number=number,
                    label=FieldDescriptorProto.LABEL_REPEATED
                    if is_message or scalar != kind
                    else FieldDescriptorProto.LABEL_OPTIONAL,
                    type=FieldDescriptorProto.Type.Value(
                        "TYPE_MESSAGE" if is_message else f"TYPE_{scalar.upper()}"
                    ),
                    type_name=f".{package}.{kind}" if is_message else None,
                )
            )
        file.message_type.append(described)
    pool = DescriptorPool()
    pool.Add(file)
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages
    }


_CLASSES = message_classes(
    "prometheus",
    {
        "Label": ((1, "name", "string"), (2, "value", "string")),
        "Sample": ((1, "value", "double"), (2, "timestamp", "int64")),
        "TimeSeries": ((1, "labels", "Label"), (2, "samples", "Sample")),
        "WriteRequest": ((1, "timeseries", "TimeSeries"),),
        # The same on the wire, with labels as they are: readers know most series.
        "EncodedSeries": ((1, "labels", "repeated bytes"), (2, "samples", "Sample")),
        # google.rpc.Status
        "Status": ((1, "code", "int32"), (2, "message", "string")),
    },
)
Label, WriteRequest = _CLASSES["Label"], _CLASSES["WriteRequest"]
EncodedSeries, Status = _CLASSES["EncodedSeries"], _CLASSES["Status"]
