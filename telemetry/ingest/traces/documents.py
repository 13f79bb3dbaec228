"""JSON files of profilers: plain or gzipped, complete, and not too large."""

import gzip
import re
import zlib
from pathlib import Path
from typing import Any

import msgspec

from telemetry.trace import TraceError

GZIP = b"\x1f\x8b"
MAX_BYTES = 2 * 1024**3
HEAD_BYTES = 65_536
# PyTorch up to 2.5 writes an empty description without its quotes, which is invalid JSON.
EMPTY_VALUE = re.compile(rb'("Process Group (?:Description|Name)"\s*:\s*)(?=[,}])')


class Event(msgspec.Struct):
    """An event of a Chrome trace."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    ts: Any = None
    dur: Any = 0
    pid: Any = 0
    args: Any = None


class Document(msgspec.Struct):
    """One file: a Chrome trace, or neuron-profile's system or device profile."""

    traceEvents: list[Event] | None = None  # noqa: N815 - their name
    distributedInfo: Any = None  # noqa: N815 - their name
    baseTimeNanoseconds: Any = 0  # noqa: N815 - their name
    trace_events: list[dict[str, Any]] | None = None
    cc_ops: list[dict[str, Any]] | None = None
    active_time: list[dict[str, Any]] | None = None
    hbm_usage: list[dict[str, Any]] | None = None
    throttle: list[dict[str, Any]] | None = None
    metadata: Any = None


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, unzipped."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if head[:2] != GZIP:
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error as error:
        raise _truncated(path) from error


def text_of(path: Path) -> bytes:
    if path.stat().st_size > MAX_BYTES:
        raise _too_large(path)
    try:
        raw = path.read_bytes()
        if raw[:2] == GZIP:
            with gzip.open(path) as stream:
                raw = stream.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _truncated(path) from error
    if len(raw) > MAX_BYTES:
        raise _too_large(path)
    return raw


def read_document(path: Path) -> Document:
    """Read a file that is an object, or the bare list of a Chrome trace's events."""
    raw = EMPTY_VALUE.sub(rb'\1""', text_of(path))
    try:
        if raw.lstrip()[:1] == b"[":
            return Document(msgspec.json.decode(raw, type=list[Event]))
        found = msgspec.json.decode(raw, type=Document)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path.name}: is not a profiler's trace: {error}") from error
    except msgspec.DecodeError as error:
        raise TraceError(f"{path.name}: is not complete JSON ({error}); copy it again") from error
    if all(each is None for each in (found.traceEvents, found.trace_events, found.cc_ops)):
        raise TraceError(
            f"{path.name}: is not a profiler's trace: it has neither traceEvents (Chrome) nor "
            "trace_events or cc_ops (neuron-profile)"
        )
    return found


def _truncated(path: Path) -> TraceError:
    return TraceError(f"{path.name}: the gzip file is truncated; copy it again")


def _too_large(path: Path) -> TraceError:
    return TraceError(f"{path.name}: is more than 2 GiB; record fewer steps, or one file per rank")
