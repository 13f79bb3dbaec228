"""JSON files of profilers: plain or gzipped, complete, and not too large."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import msgspec

from importers.text import strict_json, utf8
from importers.traces.trace import TraceError

GZIP = b"\x1f\x8b"
MAX_BYTES = 2 * 1024**3
HEAD_BYTES = 65_536


class Event(msgspec.Struct):
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
    """Return the first bytes of a file, unzipped; of text, as UTF-8."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if head[:2] == GZIP:
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
        except zlib.error as error:
            raise _truncated(path) from error
    return utf8(head)


def text_of(path: Path) -> bytes:
    """Return a file's text, unzipped and as UTF-8."""
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
    return utf8(raw)


def decode(text: bytes, kind: Any) -> Any:
    """Decode JSON, and what profilers write that is none; raises msgspec.DecodeError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        mended = strict_json(text)
        if mended == text:
            raise
    return msgspec.json.decode(mended, type=kind)


def read_document(path: Path) -> Document:
    """Read a file that is an object, or the bare list of a Chrome trace's events."""
    text = text_of(path)
    try:
        if text.lstrip()[:1] == b"[":
            # Chrome's array format may leave out its end.
            text = text.rstrip()
            text = text if text.endswith(b"]") else text.removesuffix(b",") + b"]"
            return Document(decode(text, list[Event]))
        document: Document = decode(text, Document)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path.name}: is not a profiler's trace: {error}") from error
    except msgspec.DecodeError as error:
        raise TraceError(f"{path.name}: is not complete JSON ({error}); copy it again") from error
    if all(
        each is None for each in (document.traceEvents, document.trace_events, document.cc_ops)
    ):
        raise TraceError(
            f"{path.name}: is not a profiler's trace: it has neither traceEvents (Chrome) nor "
            "trace_events or cc_ops (neuron-profile)"
        )
    return document


def _truncated(path: Path) -> TraceError:
    return TraceError(f"{path.name}: the gzip file is truncated; copy it again")


def _too_large(path: Path) -> TraceError:
    return TraceError(f"{path.name}: is more than 2 GiB; record fewer steps, or one file per rank")
