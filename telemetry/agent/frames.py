"""One spooled line as bytes: a head with a checksum, and the line's tail, packed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from telemetry.agent.clock import Moment

MAGIC = b"TWF1"
# Checksum of all that follows, what kind, number, wall clock, seconds since boot, boot, length.
HEAD = struct.Struct("<4sIBQdd16sI")
CHECKED = HEAD.size - len(MAGIC) - 4
MOST_BYTES = 16_000_000


@dataclass(frozen=True)
class Frame:
    """A line on its way: which door it is for, its number, when it was made, and its tail."""

    kind: int
    seq: int
    made: Moment
    boot: bytes
    tail: bytes

    def encoded(self) -> bytes:
        """Return the frame as it is spooled."""
        made = self.made
        rest = HEAD.pack(
            MAGIC, 0, self.kind, self.seq, made.wall_s, made.up_s, self.boot, len(self.tail)
        )[-CHECKED:]
        return (
            MAGIC + struct.pack("<I", zlib.crc32(self.tail, zlib.crc32(rest))) + rest + self.tail
        )


def frames_in(data: bytes, start: int = 0) -> Iterator[tuple[Frame, int]]:
    """Yield whole frames and where each ends, until the data ends or makes no sense."""
    while len(data) - start >= HEAD.size:
        magic, check, kind, seq, wall_s, up_s, boot, n_bytes = HEAD.unpack_from(data, start)
        end = start + HEAD.size + n_bytes
        if magic != MAGIC or n_bytes > MOST_BYTES or end > len(data):
            return
        tail = data[start + HEAD.size : end]
        if zlib.crc32(tail, zlib.crc32(data[start + 8 : start + HEAD.size])) != check:
            return
        yield Frame(kind, seq, Moment(wall_s, up_s), boot, tail), end
        start = end


def packed(data: bytes) -> bytes:
    """Pack bytes as a gzip member, quickly."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def stored(data: bytes) -> bytes:
    """Wrap a few bytes as a gzip member without packing them: members may follow one another."""
    n = len(data)
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01" + struct.pack("<HH", n, n ^ 0xFFFF)
    return head + data + struct.pack("<II", zlib.crc32(data), n)
