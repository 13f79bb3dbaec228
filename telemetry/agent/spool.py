"""The spool: what was not delivered yet, in files of bounded size that survive any death."""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from telemetry.agent.clock import Moment

MAGIC = b"TWF1"
# Checksum of all that follows, what kind, number, wall clock, seconds since boot, boot, length.
HEAD = struct.Struct("<4sIBQdd16sI")
CHECKED = HEAD.size - len(MAGIC) - 4
MAX_BYTES = 16_000_000


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
        if magic != MAGIC or n_bytes > MAX_BYTES or end > len(data):
            return
        tail = data[start + HEAD.size : end]
        if zlib.crc32(tail, zlib.crc32(data[start + 8 : start + HEAD.size])) != check:
            return
        yield Frame(kind, seq, Moment(wall_s, up_s), boot, tail), end
        start = end


def gzip_member(data: bytes) -> bytes:
    """Pack bytes as a gzip member, quickly."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def stored_gzip_member(data: bytes) -> bytes:
    """Wrap a few bytes as a gzip member without packing them: members may follow one another."""
    n = len(data)
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01" + struct.pack("<HH", n, n ^ 0xFFFF)
    return head + data + struct.pack("<II", zlib.crc32(data), n)


MAX_SEGMENT_BYTES = 1 << 20
N_SEGMENTS = 8
MILLI = 1000


class SpoolError(Exception):
    """The spool cannot be used; the message says why and what to do."""


@dataclass
class Segment:
    """One file of frames: how many bytes and frames, and the last number in it."""

    path: Path
    n_bytes: int = 0
    n_frames: int = 0
    last: int = 0


class Spool:
    """Frames in order, written before they are sent and dropped once they are delivered.

    Beyond ``most_bytes`` the oldest go, and are counted. One process at a time may use it;
    within it every method may be called from any thread.
    """

    def __init__(self, folder: Path, *, most_bytes: int, boot: bytes, now: Moment) -> None:
        """Take over what an earlier process left behind; a torn end is cut off."""
        self.n_dropped = 0
        self._folder = folder
        self._most_bytes = most_bytes
        self._segment_bytes = min(MAX_SEGMENT_BYTES, most_bytes // N_SEGMENTS)
        self._boot = boot
        self._changed = threading.Condition()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder / "lock")
            self.stream = _stream_name(folder / "stream")
            self._sent = os.open(folder / "sent", os.O_RDWR | os.O_CREAT, 0o600)
            self._delivered = int(os.pread(self._sent, 20, 0) or b"0")
            self._segments = deque(_load_segment(path) for path in sorted(folder.glob("*.frames")))
        except (OSError, ValueError) as error:
            msg = f"The spool {folder} cannot be used: {error}. Give another one (--spool)."
            raise SpoolError(msg) from error
        newest = max([self._delivered, *(segment.last for segment in self._segments)])
        # Numbers only rise, also where an older spool was lost with its disk.
        self._next = max(newest + 1, int(now.wall_s * MILLI))
        self._place = 0
        self._open: int | None = None
        self._clear()

    def append(self, kind: int, made: Moment, tail: bytes) -> int:
        """Keep a line and return its number; raises OSError, with nothing kept, on a full disk."""
        with self._changed:
            frame = Frame(kind, self._next, made, self._boot, tail)
            self._write(frame.encoded(), frame.seq)
            self._next += 1
            while self.n_bytes > self._most_bytes and len(self._segments) > 1:
                self._drop_oldest()
            self._changed.notify_all()
            return frame.seq

    def next_frames(self, *, most: int, most_bytes: int) -> list[Frame]:
        """Return the oldest undelivered frames, of one kind, a few at a time."""
        with self._changed:
            found = self._read(most, most_bytes)
            if not found and self._is_waiting:
                # What is on the disk can no longer be read: better to lose it than to stand still.
                while self._segments:
                    self._drop_oldest()
            return found

    def delivered(self, seq: int) -> None:
        """Forget all up to a number: they were taken, or never will be."""
        with self._changed:
            self._delivered = max(self._delivered, seq)
            os.pwrite(self._sent, b"%020d" % self._delivered, 0)
            self._clear()

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something to deliver, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_waiting, timeout_s)

    @property
    def n_bytes(self) -> int:
        """How many bytes the spool has on disk."""
        return sum(segment.n_bytes for segment in self._segments)

    @property
    def n_waiting(self) -> int:
        """How many lines wait, the part of the oldest file that was delivered aside."""
        with self._changed:
            waiting = [s for s in self._segments if s.last > self._delivered]
            if not waiting:
                return 0
            first = min(waiting[0].n_frames, waiting[0].last - self._delivered)
            return first + sum(segment.n_frames for segment in list(waiting)[1:])

    def close(self) -> None:
        """Let go of the files; what waits stays."""
        with self._changed:
            self._shut()
            os.close(self._sent)
            os.close(self._lock)

    @property
    def _is_waiting(self) -> bool:
        return bool(self._segments) and self._segments[-1].last > self._delivered

    def _read(self, most: int, most_bytes: int) -> list[Frame]:
        """Read undelivered frames of one kind from the files."""
        found: list[Frame] = []
        size = 0
        for segment in self._segments:
            is_first = segment is self._segments[0]
            start = self._place if is_first else 0
            with segment.path.open("rb") as file:
                file.seek(start)
                data = file.read(segment.n_bytes - start)
            for frame, end in frames_in(data):
                if frame.seq <= self._delivered:
                    self._place = start + end if is_first else self._place
                    continue
                size += len(frame.tail)
                is_other = bool(found) and frame.kind != found[0].kind
                if found and (is_other or len(found) == most or size > most_bytes):
                    return found
                found.append(frame)
        return found

    def _write(self, data: bytes, seq: int) -> None:
        """Write a frame, whole or not at all, into the newest file or a new one."""
        if self._open is None or self._segments[-1].n_bytes >= self._segment_bytes:
            self._shut()
            path = self._folder / f"{seq:020d}.frames"
            self._open = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._segments.append(Segment(path))
        segment = self._segments[-1]
        try:
            n_written = os.write(self._open, data)
            if n_written < len(data):
                msg = f"only {n_written} of {len(data)} bytes fit on the disk"
                raise OSError(msg)
        except OSError:
            os.truncate(segment.path, segment.n_bytes)
            raise
        segment.n_bytes += len(data)
        segment.n_frames += 1
        segment.last = seq

    def _drop_oldest(self) -> None:
        """Give up the oldest file, and count what nobody will see."""
        oldest = self._segments[0]
        if oldest.last > self._delivered:
            self.n_dropped += min(oldest.n_frames, oldest.last - self._delivered)
        self._remove_first()

    def _clear(self) -> None:
        """Remove files of which all was delivered; the newest stays while it is small."""
        while self._segments and self._segments[0].last <= self._delivered:
            is_newest = len(self._segments) == 1 and self._open is not None
            if is_newest and self._segments[0].n_bytes < self._segment_bytes:
                return
            self._remove_first()

    def _remove_first(self) -> None:
        """Remove the oldest file."""
        if len(self._segments) == 1:
            self._shut()
        self._segments.popleft().path.unlink()
        self._place = 0

    def _shut(self) -> None:
        """Write no more into the newest file."""
        if self._open is not None:
            os.close(self._open)
            self._open = None


def _lock(path: Path) -> int:
    """Open a file that only one process may hold."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        msg = "another agent uses it"
        raise OSError(msg) from error
    return descriptor


def _stream_name(path: Path) -> str:
    """Return the name of this spool's stream of numbers, a new one the first time."""
    name = path.read_text().strip() if path.exists() else ""
    if len(name) != 32:
        name = secrets.token_hex(16)
        new = path.with_suffix(".new")
        new.write_text(name)
        new.replace(path)
    return name


def _load_segment(path: Path) -> Segment:
    """Take over a file, and cut off an end that was torn."""
    segment = Segment(path)
    data = path.read_bytes()
    for frame, end in frames_in(data):
        segment.n_bytes, segment.last = end, frame.seq
        segment.n_frames += 1
    if segment.n_bytes < len(data):
        os.truncate(path, segment.n_bytes)
    return segment
