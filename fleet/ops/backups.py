"""Back up the database to one file, and restore it."""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol

from django.conf import settings
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from fleet.ops.releases import OtherReleaseError, check_release
from fleet.version import VERSION

WITHIN_S = 6 * 3600


class BackupError(ValueError):
    """A backup that could not be made, read or restored; the message says what to do."""


class Engine(Protocol):
    name: str

    def dump(self, path: Path) -> None:
        """Write a consistent copy to ``path``, while other processes write."""

    def load(self, path: Path) -> None:
        """Replace the database by a copy, completely or not at all."""


def engine_of(database: Mapping[str, Any]) -> Engine:
    """Choose the engine of one of Django's DATABASES."""
    kind = str(database["ENGINE"]).rpartition(".")[2]
    if kind == "sqlite3":
        return Sqlite(Path(database["NAME"]))
    if kind == "postgresql":
        return PostgreSQL(database)
    raise BackupError(f"DATABASE_URL: {kind} cannot be backed up; use SQLite or PostgreSQL.")


class Sqlite:
    """A file, copied by SQLite's own online backup."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path

    def dump(self, path: Path) -> None:
        """Copy a snapshot in one step: readers do not wait for writers here."""
        self._copy(self._path, path)

    def load(self, path: Path) -> None:
        """Copy it back in one transaction: a killed process has changed nothing."""
        try:
            with closing(sqlite3.connect(path)) as copy:
                result = copy.execute("PRAGMA quick_check").fetchone()[0]
        except sqlite3.DatabaseError as error:
            result = str(error)
        if result != "ok":
            raise BackupError(f"The copy is damaged: {result}.")
        self._move_damaged()
        self._copy(path, self._path)

    def _move_damaged(self) -> None:
        """Move a damaged database aside: SQLite copies only into intact ones."""
        if not self._path.exists():
            return
        try:
            with closing(sqlite3.connect(self._path, timeout=20)) as target:
                target.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            return
        except sqlite3.DatabaseError:
            for suffix in ("", "-wal", "-shm"):
                damaged = self._path.with_name(self._path.name + suffix)
                if damaged.exists():
                    damaged.rename(f"{damaged}.damaged")

    def _copy(self, source: Path, target: Path) -> None:
        try:
            with (
                closing(sqlite3.connect(source, timeout=20)) as from_,
                closing(sqlite3.connect(target, timeout=20)) as to,
            ):
                from_.backup(to)
        except sqlite3.Error as error:
            raise BackupError(f"{target}: {error}. Check that no program uses it.") from error


class PostgreSQL:
    """A server, copied by its own pg_dump and pg_restore."""

    name = "postgresql"

    def __init__(self, database: Mapping[str, Any]) -> None:
        self._database = database

    def dump(self, path: Path) -> None:
        """Write PostgreSQL's custom format, compressed, of one snapshot."""
        self._run("pg_dump", "--format=custom", "--no-owner", "--no-privileges", "--file", path)

    def load(self, path: Path) -> None:
        """Drop what there is and restore, all in one transaction."""
        options = ("--clean", "--if-exists", "--no-owner", "--no-privileges")
        self._run("pg_restore", *options, "--single-transaction", "--exit-on-error", path)

    def _run(self, program: str, *arguments: str | Path) -> None:
        path = client_program(program)
        if path is None:
            raise BackupError(f"{program} is not installed: install PostgreSQL's client programs.")
        options = {"--host": "HOST", "--port": "PORT", "--username": "USER", "--dbname": "NAME"}
        command: Sequence[str] = [
            path,
            "--no-password",
            *[
                f"{option}={self._database[field]}"
                for option, field in options.items()
                if self._database.get(field)
            ],
            *map(str, arguments),
        ]
        environment = dict(os.environ) | {"PGPASSWORD": str(self._database.get("PASSWORD") or "")}
        done = subprocess.run(  # noqa: S603  # a program of PostgreSQL's, without a shell
            command, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
        if done.returncode:
            lines = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()
            raise BackupError(f"{program}: {' '.join(lines[:3])}")


def client_program(name: str) -> str | None:
    """Find a client program of PostgreSQL; Debian keeps some off the path."""
    newest_first = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return next(map(str, newest_first), None) or shutil.which(name)


FORMAT = 1
MANIFEST, DATABASE = "manifest.json", "database"
CHUNK_BYTES = 1 << 20
# A manifest lists migrations; a longer file is not a manifest.
MAX_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a backup.

    ``migrations`` are those applied, as ``app.name``; ``sha256`` is over the database's copy.
    """

    format: int
    version: str
    engine: str
    made_at: str
    migrations: Sequence[str]
    sha256: str
    n_bytes: int

    @property
    def applied(self) -> set[tuple[str, str]]:
        return {(app, name) for app, _, name in (key.partition(".") for key in self.migrations)}


def write(path: Path, manifest: Manifest, copy: Path) -> None:
    """Write a backup to a temporary file, then rename it: ``path`` is never incomplete."""
    partial = path.with_name(f".{path.name}.partial")
    description = json.dumps(asdict(manifest), indent=1).encode()
    try:
        # Only the owner may read it: it contains hashes of tokens, and addresses. A file that an
        # earlier attempt left might be readable by others.
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600, exist_ok=False)
        with partial.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as tar:
                about = tarfile.TarInfo(MANIFEST)
                about.size = len(description)
                tar.addfile(about, BytesIO(description))
                tar.add(copy, DATABASE)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path, copy: Path) -> Manifest:
    """Read a backup's manifest, and extract its database to ``copy``; raises if damaged."""
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            manifest = Manifest(**json.loads(_member(tar, MANIFEST).read(MAX_MANIFEST_BYTES)))
            if manifest.format != FORMAT:
                raise ValueError(
                    f"its format is {manifest.format}, and this release reads {FORMAT}"
                )
            with copy.open("wb") as target:
                source = _member(tar, DATABASE)
                digest = hashlib.sha256()
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    target.write(chunk)
                sha256 = digest.hexdigest()
    except (OSError, EOFError, tarfile.TarError, KeyError, TypeError, ValueError) as error:
        raise BackupError(f"{path} is not a complete backup of trnwatch: {error}.") from error
    if sha256 != manifest.sha256:
        raise BackupError(f"{path} is damaged: its SHA-256 is {sha256}, not {manifest.sha256}.")
    return manifest


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(tar.getmember(name))
    if file is None:
        raise ValueError(f"{name} is not in it")
    return file


# A database with rows in these tables is overwritten only with --replace.
PROTECTED = ("fleet_run", "fleet_alert", "fleet_node", "fleet_token", "auth_user")


def back_up(path: Path, *, now: datetime) -> Manifest:
    """Write a consistent backup of the database to ``path``, while trnwatch runs."""
    if path.exists():
        raise BackupError(f"{path} exists already; choose another name.")
    if not path.parent.is_dir():
        raise BackupError(f"{path.parent} is not a folder; create it first.")
    engine = engine_of(settings.DATABASES["default"])
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=path.parent) as folder:
        copy = Path(folder) / "database"
        engine.dump(copy)
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            engine=engine.name,
            made_at=now.isoformat(timespec="seconds"),
            migrations=sorted(
                ".".join(key) for key in MigrationRecorder(connection).applied_migrations()
            ),
            sha256=sha256_of(copy),
            n_bytes=copy.stat().st_size,
        )
        write(path, manifest, copy)
    return manifest


def restore(path: Path, *, replaces: bool) -> Manifest:
    """Replace the database by a backup, completely or not at all.

    Everything is checked before anything changes: that the file is complete, of this kind of
    database and of a release that is not too new or old, and that overwriting is allowed
    (``replaces``).
    """
    engine = engine_of(settings.DATABASES["default"])
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=settings.DATA_DIR) as folder:
        copy = Path(folder) / "database"
        manifest = read(path, copy)
        if manifest.engine != engine.name:
            raise BackupError(
                f"{path} is a copy of {manifest.engine}, and DATABASE_URL names {engine.name}."
            )
        try:
            check_release(manifest.applied)
        except OtherReleaseError as error:
            raise BackupError(f"{path} is of trnwatch {manifest.version}. {error}") from error
        if not replaces and (full := _first_filled_table()):
            raise BackupError(f"The database has rows in {full}; --replace overwrites them all.")
        connection.close()
        engine.load(copy)
    return manifest


def _first_filled_table() -> str:
    """Name the first protected table with a row; empty where there is none."""
    there = set(connection.introspection.table_names())
    with connection.cursor() as cursor:
        for table in PROTECTED:
            if table in there:
                cursor.execute(f"SELECT 1 FROM {connection.ops.quote_name(table)} LIMIT 1")  # noqa: S608  # a name from above
                if cursor.fetchone():
                    return table
    return ""
