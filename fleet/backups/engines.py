"""How each kind of database is copied while it is in use, and how a copy is put back whole."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

WITHIN_S = 6 * 3600


class BackupError(Exception):
    """A copy that could not be made, read or put back; the message says what to do."""


class Engine(Protocol):
    """One kind of database."""

    name: str

    def dump(self, path: Path) -> None:
        """Write a copy as of one moment to ``path``, while others go on writing."""

    def load(self, path: Path) -> None:
        """Put a copy in place of everything there is: whole, or not at all."""


def engine_of(database: Mapping[str, Any]) -> Engine:
    """Return the engine of one of Django's DATABASES."""
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
        """Copy the database at ``path``."""
        self._path = path

    def dump(self, path: Path) -> None:
        """Copy it in one step: a snapshot, for readers do not wait for writers here."""
        self._copy(self._path, path)

    def load(self, path: Path) -> None:
        """Copy it back in one transaction: who is killed in the middle has changed nothing."""
        try:
            with closing(sqlite3.connect(path)) as copy:
                said = copy.execute("PRAGMA quick_check").fetchone()[0]
        except sqlite3.DatabaseError as error:
            said = str(error)
        if said != "ok":
            raise BackupError(f"The copy is damaged: {said}.")
        self._set_aside_if_damaged()
        self._copy(path, self._path)

    def _set_aside_if_damaged(self) -> None:
        """Move a file that is no database any more away: SQLite copies only into whole ones."""
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
            raise BackupError(f"{target}: {error}. Does anything still use it?") from error


class PostgreSQL:
    """A server, copied by its own pg_dump and pg_restore."""

    name = "postgresql"

    def __init__(self, database: Mapping[str, Any]) -> None:
        """Copy the database that one of Django's DATABASES names."""
        self._database = database

    def dump(self, path: Path) -> None:
        """Write PostgreSQL's custom format, compressed, of one snapshot."""
        self._run("pg_dump", "--format=custom", "--no-owner", "--no-privileges", "--file", path)

    def load(self, path: Path) -> None:
        """Drop what there is and restore, all in one transaction."""
        options = ("--clean", "--if-exists", "--no-owner", "--no-privileges")
        self._run("pg_restore", *options, "--single-transaction", "--exit-on-error", path)

    def _run(self, program: str, *arguments: str | Path) -> None:
        found = client_program(program)
        if found is None:
            raise BackupError(f"{program} is not installed: install PostgreSQL's client programs.")
        command: Sequence[str] = [found, "--no-password", *self._where(), *map(str, arguments)]
        environment = dict(os.environ) | {"PGPASSWORD": str(self._database.get("PASSWORD") or "")}
        done = subprocess.run(  # noqa: S603  # a program of PostgreSQL's, without a shell
            command, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
        if done.returncode:
            said = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()
            raise BackupError(f"{program}: {' '.join(said[:3])}")

    def _where(self) -> list[str]:
        told = {"--host": "HOST", "--port": "PORT", "--username": "USER", "--dbname": "NAME"}
        return [
            f"{option}={self._database[field]}"
            for option, field in told.items()
            if self._database.get(field)
        ]


def client_program(name: str) -> str | None:
    """Return the path of one of PostgreSQL's client programs; Debian keeps some off the path."""
    newest_first = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return next(map(str, newest_first), None) or shutil.which(name)
