"""Lines from a file or a pipe, in groups that arrived together, never more than memory bears."""

import os
import select
from collections.abc import Iterator
from typing import BinaryIO

from telemetry.ingest.neuron_monitor import MAX_LINE_BYTES

# Lines that come closer together than this arrived together.
QUIET_S = 0.05
CHUNK_BYTES = 1 << 20
MAX_GROUP_BYTES = 2 * MAX_LINE_BYTES


def groups_of(file: BinaryIO, *, most: int = 500) -> Iterator[list[bytes]]:
    """Yield a file's lines, ``most`` at a time; of one that is too long only the beginning."""
    group: list[bytes] = []
    size = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        group.append(line)
        size += len(line)
        while not line.endswith(b"\n") and len(line) > MAX_LINE_BYTES:
            line = file.readline(MAX_LINE_BYTES + 1)
        if len(group) == most or size > MAX_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def together(descriptor: int) -> Iterator[list[bytes]]:
    """Yield the lines that arrive together on a pipe, as soon as none follows at once."""
    rest, is_open, skips = b"", True, False
    while is_open:
        read, is_open = _read_until_quiet(descriptor, rest)
        if skips:
            # The rest of a line whose beginning was too long already.
            _, newline, read = read.partition(b"\n")
            skips = not newline
        whole, _, rest = read.rpartition(b"\n") if is_open else (read, b"", b"")
        if len(rest) > MAX_LINE_BYTES:
            whole, rest, skips = whole + b"\n" + rest, b"", True
        if whole:
            yield whole.split(b"\n")


def _read_until_quiet(descriptor: int, rest: bytes) -> tuple[bytes, bool]:
    """Read on until there is a line and then silence; also say whether more may come."""
    pieces, size, has_line = [rest], len(rest), False
    while size <= MAX_GROUP_BYTES:
        ready, _, _ = select.select([descriptor], [], [], QUIET_S if has_line else None)
        if not ready:
            break
        piece = os.read(descriptor, CHUNK_BYTES)
        if not piece:
            return b"".join(pieces), False
        pieces.append(piece)
        size += len(piece)
        has_line = has_line or b"\n" in piece
    return b"".join(pieces), True
