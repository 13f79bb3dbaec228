"""Preflights of real nodes: read and judge the output of their probes."""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from django.db import transaction

from fleet.checks.preflights import check_names, common_type, pack, places, store_verdict
from fleet.models import Node, Preflight, Run
from fleet.ops.compression import gunzip_pieces
from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.catalog import Instance
from telemetry.errors import FieldError
from telemetry.ingest.probes import GroupError, measured_group, read_group
from telemetry.simulate.preflight import curve_point

ZIP, GZIP = b"PK\x03\x04", b"\x1f\x8b"
ZIP_ENTRY = b"PK\x01\x02"
MOST_FILES = 10_000
# Folders, and metadata files that desktops add, are members too.
MOST_MEMBERS = 2 * MOST_FILES
MOST_UNPACKED_BYTES = 40_000_000
# A PAX or GNU header holds a long name. It is read whole, and its records cost more than bytes.
MOST_HEADER_BYTES = 64_000
PIECE_BYTES = 1 << 16
BLOCK_BYTES = tarfile.BLOCKSIZE
NUL_BLOCK = bytes(BLOCK_BYTES)
LONG_NAME, LONG_LINK = tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
# Types without data after their header, even if the header has a size.
BARE = (
    *(tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE),
    *(tarfile.DIRTYPE, tarfile.FIFOTYPE),
)
# Python decompresses other zip methods into chunks of unlimited size.
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What an archive may raise while it is read: damaged, or, of RuntimeError, locked by a password or
# packed by a method that Python does not know.
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError)
BROKEN = (*DAMAGED, RuntimeError, ValueError)


class _Allowance:
    """How much all uploads together may still unpack."""

    def __init__(self) -> None:
        self.left_bytes = MOST_UNPACKED_BYTES
        self._left_members = MOST_MEMBERS

    def check_size(self, name: str, n_bytes: int) -> None:
        if n_bytes > self.left_bytes:
            most = MOST_UNPACKED_BYTES // 1_000_000
            message = (
                f"with {name[:60]} they hold more than {most} MB unpacked; hand in fewer files"
            )
            raise FieldError("files", message)

    def take_bytes(self, name: str, n_bytes: int) -> None:
        self.check_size(name, n_bytes)
        self.left_bytes -= n_bytes

    def take_members(self, name: str, n_members: int = 1) -> None:
        self._left_members -= n_members
        if self._left_members < 0:
            message = (
                f"with {name[:60]} they have more than {MOST_MEMBERS:,} members; hand in fewer"
            )
            raise FieldError("files", message)


def unpack_uploads(uploads: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Unpack all uploads into (name without folders, content).

    Raises FieldError where there are none or too many, they are too large, or an archive cannot
    be read.
    """
    unpacked: list[tuple[str, bytes]] = []
    allowance = _Allowance()
    for name, data in uploads:
        for inner, content in _within(name, data, allowance):
            unpacked.append((inner, content))
            if len(unpacked) > MOST_FILES:
                raise FieldError("files", f"are more than {MOST_FILES:,}; hand in fewer")
    if not unpacked:
        raise FieldError("files", "there are none; choose what the probes printed")
    return unpacked


def _within(name: str, data: bytes, allowance: _Allowance) -> Iterator[tuple[str, bytes]]:
    read = _zipped if data.startswith(ZIP) else _tarred if data.startswith(GZIP) else None
    if read is None:
        allowance.take_bytes(name, len(data))
        yield PurePosixPath(name).name, data
        return
    try:
        yield from read(name, data, allowance)
    except FieldError:
        raise
    except BROKEN as error:
        message = (
            f"{name[:60]} is no .zip or .tar.gz that can be read: it is damaged, locked by a "
            "password or packed in another way; pack it again, or hand in the files themselves"
        )
        raise FieldError("files", message) from error


def _zipped(name: str, data: bytes, allowance: _Allowance) -> Iterator[tuple[str, bytes]]:
    # Each entry of the directory becomes an object as soon as the archive is opened.
    allowance.take_members(name, data.count(ZIP_ENTRY))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        wanted = [
            (inner, entry)
            for entry in archive.infolist()
            if not entry.is_dir() and (inner := _name(entry.filename))
        ]
        # The directory may be wrong, so this only refuses early; what is read counts too.
        allowance.check_size(name, sum(entry.file_size for _, entry in wanted))
        for inner, entry in wanted:
            if entry.compress_type not in ZIP_METHODS:
                raise ValueError(f"method {entry.compress_type}")
            pieces = []
            with archive.open(entry) as file:
                while piece := file.read(PIECE_BYTES):
                    allowance.take_bytes(name, len(piece))
                    pieces.append(piece)
            yield inner, b"".join(pieces)


def _tarred(name: str, data: bytes, allowance: _Allowance) -> Iterator[tuple[str, bytes]]:
    """Yield the regular files of a .tar.gz.

    ``tarfile`` reads a PAX header whole, however long it says it is, so headers are read here.
    """
    stream = _TarStream(name, gunzip_pieces(data), allowance)
    path, size = "", -1  # as extended headers give them for the next member
    while (block := stream.read(BLOCK_BYTES)) and block != NUL_BLOCK:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
        if header.size < 0 or header.type == tarfile.GNUTYPE_SPARSE:
            raise ValueError("a header that is not read")
        if header.type in PAX:
            path, size = _pax(stream.extended(header.size), path, size)
        elif header.type in (LONG_NAME, LONG_LINK):
            text = stream.extended(header.size)
            path = _text(text.rstrip(b"\0")) if header.type == LONG_NAME else path
        else:
            allowance.take_members(name)
            n_bytes = header.size if size < 0 else size
            inner = _name(path or header.name) if header.isreg() else ""
            if inner:
                yield inner, stream.content(n_bytes)
            elif header.type not in BARE:
                stream.skip(n_bytes)
            path, size = "", -1


class _TarStream:
    """The bytes of an archive, counted as they are unpacked."""

    def __init__(self, name: str, pieces: Iterator[bytes], allowance: _Allowance) -> None:
        self._name = name
        self._pieces = pieces
        self._allowance = allowance
        self._held = memoryview(b"")

    def _next(self, most_bytes: int) -> memoryview:
        """Return up to ``most_bytes`` bytes; none at the end."""
        if not self._held:
            piece = next(self._pieces, b"")
            self._allowance.take_bytes(self._name, len(piece))
            self._held = memoryview(piece)
        taken, self._held = self._held[:most_bytes], self._held[most_bytes:]
        return taken

    def read(self, n_bytes: int) -> bytes:
        content = bytearray()
        while len(content) < n_bytes and (piece := self._next(n_bytes - len(content))):
            content += piece
        if content and len(content) < n_bytes:
            raise EOFError
        return bytes(content)

    def skip(self, n_bytes: int) -> None:
        """Skip a member's data, padded to whole blocks."""
        # What is held was counted when it was unpacked.
        self._allowance.check_size(self._name, n_bytes - len(self._held))
        left = _padded(n_bytes)
        while left and (piece := self._next(left)):
            left -= len(piece)

    def content(self, n_bytes: int) -> bytes:
        """Read a member's data; refuse it by its declared size before unpacking."""
        self._allowance.check_size(self._name, n_bytes - len(self._held))
        content = self.read(n_bytes)
        if len(content) < n_bytes:
            raise EOFError
        self.read(_padded(n_bytes) - n_bytes)
        return content

    def extended(self, n_bytes: int) -> bytes:
        """Read the data of a header that applies to the next member."""
        if n_bytes > MOST_HEADER_BYTES:
            message = (
                f"{self._name[:60]} has a header of {n_bytes:,} bytes, above the limit of "
                f"{MOST_HEADER_BYTES:,}; pack the files again, without extended attributes"
            )
            raise FieldError("files", message)
        return self.content(n_bytes)


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _pax(records: bytes, path: str, size: int) -> tuple[str, int]:
    """Read path and size from PAX records, if they give them.

    A record is its own length in decimal, a space, ``key=value`` and a line feed (POSIX pax).
    """
    start = 0
    while start < len(records) and records[start]:
        length, _, _ = records[start : start + 20].partition(b" ")
        n_bytes = int(length)
        if n_bytes <= len(length) + 1:
            raise ValueError("a PAX record that is empty")
        record = records[start + len(length) + 1 : start + n_bytes - 1]
        key, _, value = record.partition(b"=")
        if key == b"path":
            path = _text(value)
        elif key == b"size":
            size = int(value)
            if size < 0:
                raise ValueError("a negative size")
        start += n_bytes
    return path, size


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _name(path: str) -> str:
    """Return a member's file name; empty for metadata files that desktops add."""
    parts = PurePosixPath(path).parts
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return "" if hidden or not parts else parts[-1]


FILES_MOST_FILES = 40_000
MOST_BYTES = 16 << 20
MOST_BYTES_IN_ALL = 512 << 20


def judge_files(
    files: Sequence[tuple[str, bytes]],
    *,
    instance_type: str = "",
    take: int | None = None,
    run: Run | None = None,
    by: str,
    now: datetime,
) -> Preflight:
    """Judge the outputs of probes, and store them as a finished preflight.

    Raises FieldError naming what is wrong; then nothing is stored.
    """
    try:
        read = read_group(files)
        names = list(read.nodes)
        check_names(names, take=take)
        known = Node.objects.in_bulk(names, field_name="name")
        kind = common_type(instance_type, known)
        instance = catalog.instances()[kind]
        measured = measured_group(
            read, n_efa=instance.n_efa, curve=partial(expected_times, instance)
        )
        if not any(measured.racks):
            measured = replace(measured, racks=places(measured.nodes, known.values()))
    except GroupError as error:
        raise FieldError("files", str(error)) from error
    with transaction.atomic():
        preflight: Preflight = Preflight.objects.create(
            asked_by=by,
            asked_at=now,
            run=run,
            instance_type=kind,
            names=list(measured.nodes),
            take=take,
            source=Preflight.Source.FILES,
            measured=pack(measured),
        )
        store_verdict(preflight, measured, now=now)
    return preflight


def expected_times(instance: Instance, n_nodes: int, sizes: FloatArray) -> FloatArray:
    """Compute the expected seconds of an all-reduce over whole nodes at each size, (k,)."""
    return np.array(
        [sum(curve_point(instance, n_nodes, max(1, int(size)), "all_reduce")) for size in sizes]
    )


def read_files(paths: Sequence[Path]) -> list[tuple[str, bytes]]:
    """Read files, and those directly in folders; FieldError where one cannot be read."""
    files: list[Path] = []
    for path in paths:
        is_folder = path.is_dir()
        files += sorted(each for each in path.iterdir() if each.is_file()) if is_folder else [path]
    if not files:
        raise FieldError("files", "is empty. Name files, or a folder that contains files.")
    if len(files) > FILES_MOST_FILES:
        raise FieldError("files", f"{len(files):,} are too many; hand in {FILES_MOST_FILES:,}")
    read, n_bytes = [], 0
    for path in files:
        try:
            with path.open("rb") as file:
                data = file.read(MOST_BYTES)
        except OSError as error:
            message = f"cannot read {error.filename} ({error.strerror})"
            raise FieldError("files", message) from error
        n_bytes += len(data)
        if n_bytes > MOST_BYTES_IN_ALL:
            most = MOST_BYTES_IN_ALL >> 20
            message = f"with {path.name} they hold more than {most} MiB; hand in fewer"
            raise FieldError("files", message)
        read.append((path.name, data))
    return read
