"""What must stand before the first page: the tables, and the static files in one folder."""

import hashlib
from io import StringIO
from pathlib import Path

from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor


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
