"""What must stand before the first page: the tables, and the static files in one folder."""

import hashlib
import shutil
import tempfile
from io import StringIO
from pathlib import Path

from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

MB = 1_000_000
# What a start writes: tables, static files, Redis' first file, logs.
START_BYTES = 10 * MB
# Reading so much takes a fraction of a second.
CHECKED_BYTES = 200 * MB


class NoRoomError(RuntimeError):
    """The disk is too full to start on; says how full."""


def check_room(folder: Path) -> None:
    """See that a folder can be written, and that its disk has room for a start.

    Raises OSError where it cannot be written.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(4096))
    free = shutil.disk_usage(folder).free
    if free < START_BYTES:
        raise NoRoomError(
            f"The disk is full: {folder} has {free / MB:.1f} MB left, and a start takes "
            f"{START_BYTES // MB} MB. Free some space and start again, or name another folder by "
            "TRNWATCH_DATA_DIR."
        )


def check_database() -> None:
    """Look through a small SQLite database for damage, which a start would not meet at once.

    Raises DatabaseError where it is damaged.
    """
    if connection.vendor != "sqlite":
        return
    path = Path(str(connection.settings_dict["NAME"]))
    if not path.exists() or path.stat().st_size > CHECKED_BYTES:
        return
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA quick_check(1)")
        [said] = cursor.fetchone()
    if said != "ok":
        raise DatabaseError(f"database disk image is malformed: {said.splitlines()[-1]}")


def migrate_if_needed() -> int:
    """Bring the tables up to date; gives how many migrations that took."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        call_command("migrate", verbosity=0, interactive=False)
        # All that runs on this folder begins after this: nobody is left who reads plain text.
        call_command("seal_receivers", stdout=StringIO())
    return len(plan)


def collect_static_if_needed(folder: Path) -> bool:
    """Gather the static files into ``folder`` unless they are what was gathered last."""
    mark = folder.with_name(f"{folder.name}.mark")
    now = _fingerprint()
    if folder.is_dir() and mark.exists() and mark.read_text() == now:
        return False
    call_command("collectstatic", verbosity=0, interactive=False, clear=True)
    mark.write_text(now)
    return True


def _fingerprint() -> str:
    """Sum up the name, size and age of every static file."""
    digest = hashlib.sha256()
    for finder in get_finders():
        for name, storage in finder.list([]):
            facts = Path(storage.path(name)).stat()
            digest.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()
