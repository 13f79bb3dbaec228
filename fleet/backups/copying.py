"""Backing up and restoring: what commands do, step by step."""

import tempfile
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from fleet.backups import archives
from fleet.backups.archives import Manifest
from fleet.backups.engines import BackupError, engine_of
from fleet.version import VERSION

# Tables that hold what people would miss; a row in one of them is not overwritten unasked.
PRECIOUS = ("fleet_run", "fleet_alert", "fleet_node", "fleet_token", "auth_user")


def back_up(path: Path, *, now: datetime) -> Manifest:
    """Write a backup of the database to ``path``, as of one moment, while trnwatch runs."""
    if path.exists():
        raise BackupError(f"{path} exists already; choose another name.")
    if not path.parent.is_dir():
        raise BackupError(f"{path.parent} is no folder; make it first.")
    engine = engine_of(settings.DATABASES["default"])
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=path.parent) as folder:
        copy = Path(folder) / "database"
        engine.dump(copy)
        manifest = Manifest(
            format=archives.FORMAT,
            version=VERSION,
            engine=engine.name,
            made_at=now.isoformat(timespec="seconds"),
            migrations=_applied(),
            sha256=archives.sum_of(copy),
            n_bytes=copy.stat().st_size,
        )
        archives.write(path, manifest, copy)
    return manifest


def restore(path: Path, *, replaces: bool) -> Manifest:
    """Put a backup in place of the database: whole, or not at all.

    Everything is checked before anything changes: that the file is whole, of this kind of
    database, of no newer release, and that nothing is overwritten unasked (``replaces``).
    """
    engine = engine_of(settings.DATABASES["default"])
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=settings.DATA_DIR) as folder:
        copy = Path(folder) / "database"
        manifest = archives.read(path, copy)
        if manifest.engine != engine.name:
            raise BackupError(
                f"{path} is a copy of {manifest.engine}, and DATABASE_URL names {engine.name}."
            )
        if unknown := sorted(set(manifest.migrations) - _known()):
            raise BackupError(
                f"{path} was made by trnwatch {manifest.version}, which is newer than this "
                f"{VERSION}: {unknown[-1]} is not known here. Restore it with that release."
            )
        if not replaces and (full := _full()):
            raise BackupError(f"The database has rows in {full}; --replace overwrites them all.")
        connection.close()
        engine.load(copy)
    return manifest


def missing_migrations(manifest: Manifest) -> int:
    """Count the migrations that this release would apply to what was restored."""
    return len(_known() - set(manifest.migrations))


def _applied() -> list[str]:
    """Name the migrations that the database has seen."""
    return sorted(".".join(key) for key in MigrationLoader(connection).applied_migrations)


def _known() -> set[str]:
    """Name the migrations that this release has."""
    return {".".join(key) for key in MigrationLoader(None).disk_migrations}


def _full() -> str:
    """Name the first precious table that holds a row; empty where none does."""
    there = set(connection.introspection.table_names())
    with connection.cursor() as cursor:
        for table in PRECIOUS:
            if table in there:
                cursor.execute(f"SELECT 1 FROM {connection.ops.quote_name(table)} LIMIT 1")  # noqa: S608  # a name from above
                if cursor.fetchone():
                    return table
    return ""
