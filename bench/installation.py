"""An installation for one benchmark run: its own Redis, database and Django settings."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django
from django.core.management import call_command

from tests.helpers import redis_server

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def installation() -> Iterator[dict[str, str]]:
    """Set Django up on a Redis and a database made for this run; gives the environment."""
    with tempfile.TemporaryDirectory(prefix="trnwatch bench ") as name:
        folder = Path(name)
        with redis_server(folder) as url:
            os.environ |= {
                "DJANGO_SETTINGS_MODULE": "fleet.settings",
                "TRNWATCH_DATA_DIR": str(folder),
                "REDIS_URL": f"{url}/0",
            }
            os.environ.pop("DATABASE_URL", None)
            django.setup()
            call_command("migrate", verbosity=0)
            yield dict(os.environ)
