"""What a body may be: how large as sent and as unpacked, and how it may be packed."""

import zlib

from fleet.compression import gunzip_pieces
from fleet.problem import ProblemError


def too_large(limit: int, *, unpacked: bool = False) -> ProblemError:
    """Return the refusal of a body that is larger than we read."""
    how = " once unpacked" if unpacked else ""
    detail = f"The body has more than {limit:,} bytes{how}. Send fewer reports at a time."
    return ProblemError(413, detail, limit_bytes=limit)


def check_announced(length: str | None, *, limit: int) -> None:
    """Refuse a body by the length it announces, before any of it is read."""
    if not length:
        return
    if not length.isdecimal():
        raise ProblemError(400, "Content-Length is not a number.", field="Content-Length")
    if int(length) > limit:
        raise too_large(limit)


def check_utf8(field: str, raw: bytes) -> None:
    """Refuse bytes that are not UTF-8, and say where they stop being so."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} (0x{raw[error.start]:02x})"
        detail = f"The {field} is not UTF-8: see {where}. Send text encoded as UTF-8."
        raise ProblemError(400, detail, field=field) from error


def check_kind(content_type: str, encoding: str) -> bool:
    """Return whether the body is gzip; refuse what is neither that nor plain."""
    if content_type.startswith("multipart/"):
        detail = "Send the lines as the body itself, as application/x-ndjson; no form."
        raise ProblemError(415, detail, field="Content-Type")
    packing = encoding.strip().lower()
    if packing not in {"", "identity", "gzip", "x-gzip"}:
        detail = f"Content-Encoding {packing[:40]!r} is not understood; gzip is."
        raise ProblemError(415, detail, field="Content-Encoding")
    return packing.endswith("gzip")


def check_unpacked(encoding: str) -> None:
    """Refuse a stream that is packed: its lines could not be read as they come."""
    if encoding.strip().lower() not in {"", "identity"}:
        detail = "Lines that are sent live come unpacked; leave out live=1 to send gzip."
        raise ProblemError(415, detail, field="Content-Encoding")


def gunzip(packed: bytes, *, limit: int) -> bytes:
    """Unpack gzip, never more than ``limit`` bytes of it."""
    pieces = []
    size = 0
    try:
        for piece in gunzip_pieces(packed):
            size += len(piece)
            if size > limit:
                raise too_large(limit, unpacked=True)
            pieces.append(piece)
    except EOFError as error:
        raise ProblemError(400, "The gzip body ends early.", field="body") from error
    except (zlib.error, ValueError) as error:
        raise ProblemError(400, f"The body is not gzip: {error}.", field="body") from error
    return b"".join(pieces)
