"""One file per backup: what it is, then the copy of the database, with a sum over it."""

import hashlib
import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

from fleet.backups.engines import BackupError

FORMAT = 1
MANIFEST, DATABASE = "manifest.json", "database"
PIECE_BYTES = 1 << 20
# A manifest lists migrations by name; whatever is longer is no manifest.
MAX_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup is of.

    ``migrations`` are those applied, as ``app.name``; ``sha256`` is over the database's copy.
    """

    format: int
    version: str
    engine: str
    made_at: str
    migrations: Sequence[str]
    sha256: str
    n_bytes: int


def write(path: Path, manifest: Manifest, copy: Path) -> None:
    """Write a backup beside its place, then move it there: a name stands for a whole one."""
    partial = path.with_name(f".{path.name}.partial")
    told = json.dumps(asdict(manifest), indent=1).encode()
    try:
        # Only the owner may read it: it holds hashes of tokens, and addresses. What an earlier
        # attempt left under this name might be open to others.
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600, exist_ok=False)
        with partial.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as tar:
                about = tarfile.TarInfo(MANIFEST)
                about.size = len(told)
                tar.addfile(about, BytesIO(told))
                tar.add(copy, DATABASE)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path, copy: Path) -> Manifest:
    """Read a backup's manifest, and write its database to ``copy``; raises where it is damaged."""
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            manifest = _manifest(_member(tar, MANIFEST).read(MAX_MANIFEST_BYTES))
            with copy.open("wb") as target:
                sha256 = _poured(_member(tar, DATABASE), target)
    except (OSError, EOFError, tarfile.TarError, KeyError, TypeError, ValueError) as error:
        raise BackupError(f"{path} is no whole backup of trnwatch: {error}.") from error
    if sha256 != manifest.sha256:
        raise BackupError(f"{path} is damaged: its sum is {sha256}, not {manifest.sha256}.")
    return manifest


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest(told: bytes) -> Manifest:
    manifest = Manifest(**json.loads(told))
    if manifest.format != FORMAT:
        raise ValueError(f"its format is {manifest.format}, and this release reads {FORMAT}")
    return manifest


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(tar.getmember(name))
    if file is None:
        raise ValueError(f"{name} is no file in it")
    return file


def _poured(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy to the end, and return the sum of what was copied."""
    digest = hashlib.sha256()
    while piece := source.read(PIECE_BYTES):
        digest.update(piece)
        target.write(piece)
    return digest.hexdigest()
