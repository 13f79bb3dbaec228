"""Limits of what one request may hold, checked before objects are made of it.

A few kilobytes unpack to millions of empty messages, each of which costs a thousand times its
bytes in memory and time. So they are counted on the wire first; the count stops at its limit.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from telemetry.ingest.lines import RefusedError

# Packers of honest reports reach a ratio of 10 to 40 (snappy: at most 22); bombs reach 1,000.
MAX_UNPACKED_RATIO = 50
# So little may be packed in any ratio: it is what unidentified clients may send.
FREE_UNPACKED_BYTES = 65_536
# Prometheus sends up to 2,000 series in a request by default, collectors up to 8,192 points.
MAX_SERIES, MAX_SAMPLES = 20_000, 100_000
# Mimir and Cortex allow 30 labels of 2,048 bytes; collectors add more.
MAX_LABELS, MAX_LABEL_BYTES = 64, 2_048
# One series, or one data point, with all of that and more than a hundred samples.
MAX_SERIES_BYTES = 262_144
# By field of OTLP's messages; each data point may have some twenty attributes.
OTLP_FIELDS = {
    "resource_metrics": MAX_SERIES,
    "scope_metrics": MAX_SERIES,
    "metrics": MAX_SERIES,
    "data_points": MAX_SAMPLES,
    "attributes": 500_000,
}
# Of each other list of messages or texts: an exemplar for each data point.
MAX_OTHERS = MAX_SAMPLES
# Everything together, also what no schema describes: twenty fields for each data point.
MAX_FIELDS = 2_000_000
# Values of one JSON line: a report of 4,096 cores has some 50,000.
MAX_LINE_VALUES = 200_000
# Values of step reports in one request, which are kept until all are read, at 40 bytes each: 500
# lines, as our own sender's, of 512 exchanges and their times.
MAX_STEP_VALUES = 600_000
# Values of one JSON body that is read into messages: 10 MB of data points have some 800,000.
MAX_JSON_VALUES = 1_000_000
# Each object of it takes a hundred bytes; these points have three each at least.
MAX_JSON_OBJECTS = 300_000

# As protobuf's own readers.
MAX_DEPTH = 100

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}


def most_unpacked(n_sent: int, most: int) -> int:
    """Return how many bytes a body may unpack to: a multiple of what was sent, and ``most``."""
    return min(most, max(MAX_UNPACKED_RATIO * n_sent, FREE_UNPACKED_BYTES))


def too_many(field: str, most: int, of: str = "") -> RefusedError:
    return RefusedError(field, f"has more than {most:,}{of}. Send fewer in each request")


def count_values(text: bytes) -> int:
    """Return at least the number of values in a JSON text, without reading it."""
    return text.count(b",") + text.count(b"{") + text.count(b"[")


class _Field(NamedTuple):
    name: str
    # The fields of the message it is; None: it is none.
    fields: "Mapping[int, _Field] | None"
    # Whether its bytes are packed numbers, which take more room once read.
    is_numbers: bool
    # Whether it is a list of messages or texts, each of which becomes an object.
    is_list: bool


def _fields_of(kind: Descriptor, known: dict[str, dict[int, _Field]]) -> Mapping[int, _Field]:
    if kind.full_name in known:
        return known[kind.full_name]
    fields = known[kind.full_name] = {}
    for field in kind.fields:
        child = field.message_type
        is_text = field.type in {field.TYPE_STRING, field.TYPE_BYTES}
        is_numbers = not child and not is_text
        fields[field.number] = _Field(
            field.name,
            _fields_of(child, known) if child else None,
            is_numbers,
            field.is_repeated and not is_numbers,
        )
    return fields


@cache
def _schema(kind: Any) -> Mapping[int, _Field]:
    return _fields_of(cast("Descriptor", kind.DESCRIPTOR), {})


def check_fields(message: bytes, kind: Any, most: Mapping[str, int]) -> None:
    """Count a message's fields; raises RefusedError at the first limit by name, or in all.

    A list that ``most`` does not name may have ``MAX_OTHERS``. ``kind`` is a class of protobuf
    messages. Raises DecodeError where it is no message.
    """
    left, n_left = dict(most), MAX_FIELDS
    place, end, fields = 0, len(message), _schema(kind)
    # The messages around this one: where each goes on.
    around: list[tuple[int, int, Mapping[int, _Field]]] = []
    while place < end or around:
        if place >= end:
            place, end, fields = around.pop()
            continue
        number, wire, start, place = _field_at(message, place, end)
        field = fields.get(number)
        n_left -= 1
        if field is not None and (field.is_list or field.name in left):
            left[field.name] = left.get(field.name, MAX_OTHERS) - 1
            if left[field.name] < 0:
                raise too_many(field.name, most.get(field.name, MAX_OTHERS))
        if field is not None and wire == BYTES:
            if field.is_numbers:
                n_left -= place - start
            elif field.fields is not None and start < place:
                if len(around) == MAX_DEPTH:
                    raise DecodeError("messages are nested too deeply")
                around.append((place, end, fields))
                place, end, fields = start, place, field.fields
        if n_left < 0:
            raise too_many("body", MAX_FIELDS, " fields")


def split_messages(message: bytes, name: str, *, most: int) -> Iterator[bytes]:
    """Yield the messages in field 1, ``name``; raises RefusedError above ``most``, or if large.

    Other fields are skipped. Raises DecodeError where it is no message.
    """
    place, end, n_messages, n_fields = 0, len(message), 0, 0
    while place < end:
        number, wire, start, place = _field_at(message, place, end)
        n_fields += 1
        if n_fields > 2 * most:
            raise too_many("body", 2 * most, " fields")
        if number != 1 or wire != BYTES:
            continue
        n_messages += 1
        if n_messages > most:
            raise too_many(name, most)
        if place - start > MAX_SERIES_BYTES:
            raise RefusedError(
                name,
                f"has one of {place - start:,} bytes; at most {MAX_SERIES_BYTES:,}. Send fewer "
                "labels and samples in each",
            )
        yield message[start:place]


def _field_at(message: bytes, place: int, end: int) -> tuple[int, int, int, int]:
    """Return number and wire type of the field at a place, where its content begins, and ends."""
    key, place = _varint(message, place, end)
    number, wire = key >> 3, key & 7
    start = place
    if wire == BYTES:
        size, start = _varint(message, place, end)
        place = start + size
    elif wire == VARINT:
        _, place = _varint(message, place, end)
    elif wire in FIXED_BYTES:
        place += FIXED_BYTES[wire]
    else:
        raise DecodeError(f"a field has the wire type {wire}")
    if place > end or not number:
        raise DecodeError("a field has no number, or ends after its message")
    return number, wire, start, place


def _varint(message: bytes, place: int, end: int) -> tuple[int, int]:
    """Return a number of variable length, of at most ten bytes, and where it ends."""
    value = shift = 0
    for at in range(place, min(place + 10, end)):
        byte = message[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise DecodeError("a number has no end")
