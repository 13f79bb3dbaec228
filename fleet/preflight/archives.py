"""Uploaded files of probes: as they are, or many in one archive; bounded, whatever it claims."""

import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from fleet.preflight.asking import PreflightError

ZIP, GZIP = b"PK\x03\x04", b"\x1f\x8b"
MOST_FILES = 10_000
MOST_UNPACKED_BYTES = 64_000_000
# What an archive may raise while it is read: damaged, or, of RuntimeError, locked by a password or
# packed by a method that Python does not know.
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError)
BROKEN = (*DAMAGED, RuntimeError, ValueError)


def unpacked(uploads: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return all files that were handed in, by their names without folders.

    Raises
    ------
    PreflightError
        Where there are none or too many, they are too large, or an archive cannot be read.
    """
    found: list[tuple[str, bytes]] = []
    left = MOST_UNPACKED_BYTES
    for name, data in uploads:
        for inner, content in _within(name, data, left):
            left -= len(content)
            found.append((inner, content))
            if left < 0:
                most = MOST_UNPACKED_BYTES // 1_000_000
                raise PreflightError("files", f"hold more than {most} MB; hand in fewer")
            if len(found) > MOST_FILES:
                raise PreflightError("files", f"are more than {MOST_FILES:,}; hand in fewer")
    if not found:
        raise PreflightError("files", "there are none; choose what the probes printed")
    return found


def _within(name: str, data: bytes, most: int) -> Iterator[tuple[str, bytes]]:
    """Yield a file, or those in an archive."""
    read = _zipped if data.startswith(ZIP) else _tarred if data.startswith(GZIP) else None
    if read is None:
        yield PurePosixPath(name).name, data
        return
    try:
        yield from read(data, most)
    except BROKEN as error:
        said = (
            f"{name[:60]} is no .zip or .tar.gz that can be read: it is damaged, locked by a "
            "password or packed in another way; pack it anew, or hand in the files themselves"
        )
        raise PreflightError("files", said) from error


def _zipped(data: bytes, most: int) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            if not entry.is_dir() and (name := _name(entry.filename)):
                with archive.open(entry) as file:
                    yield name, file.read(most + 1)


def _tarred(data: bytes, most: int) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|gz") as archive:
        for entry in archive:
            file = archive.extractfile(entry) if entry.isfile() else None
            if file is not None and (name := _name(entry.name)):
                yield name, file.read(most + 1)


def _name(path: str) -> str:
    """Return a file's name; nothing of what desktops add unasked."""
    parts = PurePosixPath(path).parts
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return "" if hidden or not parts else parts[-1]
