"""The spool: undelivered lines in files of bounded total size, safe against crashes."""

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
# Magic, checksum of the rest, kind, number, wall clock, seconds since boot, boot id, length.
HEAD = struct.Struct("<4sIBQdd16sI")
CHECKED = HEAD.size - len(MAGIC) - 4
MAX_BYTES = 16_000_000

MAX_SEGMENT_BYTES = 1 << 20
N_SEGMENTS = 8
MILLI = 1000


@dataclass(frozen=True)
class Frame:
    """A spooled line: its endpoint (``kind``), number, time and tail (gzip)."""

    kind: int
    seq: int
    made: Moment
    boot: bytes
    tail: bytes

    def encoded(self) -> bytes:
        """Return the frame as written to disk."""
        made = self.made
        rest = HEAD.pack(
            MAGIC, 0, self.kind, self.seq, made.wall_s, made.up_s, self.boot, len(self.tail)
        )[-CHECKED:]
        return (
            MAGIC + struct.pack("<I", zlib.crc32(self.tail, zlib.crc32(rest))) + rest + self.tail
        )


def frames_in(data: bytes, start: int = 0) -> Iterator[tuple[Frame, int]]:
    """Yield whole frames and the offset of each end; stops at the first invalid byte."""
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
    """Compress bytes as a gzip member at the fastest level."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def stored_gzip_member(data: bytes) -> bytes:
    """Wrap up to 65,535 bytes as a gzip member without compression; members may be joined."""
    n = len(data)
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01" + struct.pack("<HH", n, n ^ 0xFFFF)
    return head + data + struct.pack("<II", zlib.crc32(data), n)


class SpoolError(Exception):
    """The spool cannot be used; the message gives the reason and the fix."""


@dataclass
class Segment:
    """One file of frames: its size, how many frames, and the last frame's number."""

    path: Path
    n_bytes: int = 0
    n_frames: int = 0
    last: int = 0


class Spool:
    """Frames in order, written before they are sent and removed once delivered.

    Above ``max_bytes`` the oldest are dropped and counted. One process at a time may use a
    spool; its methods are thread-safe.
    """

    def __init__(self, folder: Path, *, max_bytes: int, boot: bytes, now: Moment) -> None:
        """Open the spool, with what an earlier process left; a torn last frame is cut off."""
        self.n_dropped = 0
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment_bytes = min(MAX_SEGMENT_BYTES, max_bytes // N_SEGMENTS)
        self._boot = boot
        self._changed = threading.Condition()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder / "lock")
            self.stream = _stream_name(folder / "stream")
            self._sent = os.open(folder / "sent", os.O_RDWR | os.O_CREAT, 0o600)
            self._delivered = int(os.pread(self._sent, 20, 0) or b"0")
            self._segments = deque(_load_segments(folder))
        except (OSError, ValueError) as error:
            msg = f"--spool: {folder} cannot be used: {error}. Give another folder."
            raise SpoolError(msg) from error
        newest = max([self._delivered, *(segment.last for segment in self._segments)])
        # Numbers rise even if an earlier spool was lost with its disk.
        self._next = max(newest + 1, int(now.wall_s * MILLI))
        self._offset = 0
        self._open: int | None = None
        self._remove_delivered()

    def append(self, kind: int, made: Moment, tail: bytes) -> int:
        """Write a line and return its number; on a full disk raises OSError and writes nothing."""
        with self._changed:
            frame = Frame(kind, self._next, made, self._boot, tail)
            self._write(frame.encoded(), frame.seq)
            self._next += 1
            while self.n_bytes > self._max_bytes and len(self._segments) > 1:
                self._drop_oldest()
            self._changed.notify_all()
            return frame.seq

    def next_frames(self, *, max_frames: int, max_bytes: int) -> list[Frame]:
        """Return the oldest undelivered frames, of one kind, a few at a time."""
        with self._changed:
            frames = self._read(max_frames, max_bytes)
            if not frames and self._is_waiting:
                # The files are unreadable: drop them, or delivery would stop for good.
                while self._segments:
                    self._drop_oldest()
            return frames

    def mark_delivered(self, seq: int) -> None:
        """Remove all frames up to a number: they were accepted, or refused for good."""
        with self._changed:
            self._delivered = max(self._delivered, seq)
            os.pwrite(self._sent, b"%020d" % self._delivered, 0)
            self._remove_delivered()

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something to deliver, for ``timeout_s`` at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_waiting, timeout_s)

    @property
    def n_bytes(self) -> int:
        return sum(segment.n_bytes for segment in self._segments)

    @property
    def n_waiting(self) -> int:
        """How many lines wait, without the delivered part of the oldest file."""
        with self._changed:
            waiting = [s for s in self._segments if s.last > self._delivered]
            if not waiting:
                return 0
            first = min(waiting[0].n_frames, waiting[0].last - self._delivered)
            return first + sum(segment.n_frames for segment in list(waiting)[1:])

    def close(self) -> None:
        """Close the files; undelivered lines stay on disk."""
        with self._changed:
            self._close_segment()
            os.close(self._sent)
            os.close(self._lock)

    @property
    def _is_waiting(self) -> bool:
        return bool(self._segments) and self._segments[-1].last > self._delivered

    def _read(self, max_frames: int, max_bytes: int) -> list[Frame]:
        frames: list[Frame] = []
        size = 0
        for segment in self._segments:
            is_first = segment is self._segments[0]
            start = self._offset if is_first else 0
            with segment.path.open("rb") as file:
                file.seek(start)
                data = file.read(segment.n_bytes - start)
            for frame, end in frames_in(data):
                if frame.seq <= self._delivered:
                    self._offset = start + end if is_first else self._offset
                    continue
                size += len(frame.tail)
                is_other = bool(frames) and frame.kind != frames[0].kind
                if frames and (is_other or len(frames) == max_frames or size > max_bytes):
                    return frames
                frames.append(frame)
        return frames

    def _write(self, data: bytes, seq: int) -> None:
        """Append a frame, whole or not at all, to the newest file or a new one."""
        if self._open is None or self._segments[-1].n_bytes >= self._segment_bytes:
            self._close_segment()
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
        """Remove the oldest file and count its undelivered frames as dropped."""
        oldest = self._segments[0]
        if oldest.last > self._delivered:
            self.n_dropped += min(oldest.n_frames, oldest.last - self._delivered)
        self._remove_first()

    def _remove_delivered(self) -> None:
        """Remove fully delivered files; the newest stays while it is small."""
        while self._segments and self._segments[0].last <= self._delivered:
            is_newest = len(self._segments) == 1 and self._open is not None
            if is_newest and self._segments[0].n_bytes < self._segment_bytes:
                return
            self._remove_first()

    def _remove_first(self) -> None:
        if len(self._segments) == 1:
            self._close_segment()
        self._segments.popleft().path.unlink()
        self._offset = 0

    def _close_segment(self) -> None:
        if self._open is not None:
            os.close(self._open)
            self._open = None


def _lock(path: Path) -> int:
    """Open a file and lock it; raises OSError if another process holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        msg = "another agent is using it"
        raise OSError(msg) from error
    return descriptor


def _stream_name(path: Path) -> str:
    """Return the random name of this spool's number sequence, created on first use."""
    name = path.read_text().strip() if path.exists() else ""
    if len(name) != 32:
        name = secrets.token_hex(16)
        new = path.with_suffix(".new")
        new.write_text(name)
        new.replace(path)
    return name


def _load_segments(folder: Path) -> Iterator[Segment]:
    """Read the files of a spool; one without a whole frame is removed.

    The next frame may have the number that it was named by, and so be written to it.
    """
    for path in sorted(folder.glob("*.frames")):
        segment = _load_segment(path)
        if segment.n_frames:
            yield segment
        else:
            path.unlink()


def _load_segment(path: Path) -> Segment:
    """Read a file's frames and cut off a torn end."""
    segment = Segment(path)
    data = path.read_bytes()
    for frame, end in frames_in(data):
        segment.n_bytes, segment.last = end, frame.seq
        segment.n_frames += 1
    if segment.n_bytes < len(data):
        os.truncate(path, segment.n_bytes)
    return segment
