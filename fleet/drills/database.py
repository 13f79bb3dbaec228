"""A database of a drill's own, in memory: no drill touches what the fleet remembers."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.db.utils import ConnectionHandler

IN_MEMORY = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


@contextmanager
def private_database() -> Iterator[DatabaseWrapper]:
    """Put an empty SQLite in memory where this thread's database was; gone when left."""
    handler = ConnectionHandler({DEFAULT_DB_ALIAS: dict(IN_MEMORY)})
    private = DatabaseWrapper(handler.databases[DEFAULT_DB_ALIAS], DEFAULT_DB_ALIAS)
    held = connections[DEFAULT_DB_ALIAS]
    connections[DEFAULT_DB_ALIAS] = private
    try:
        call_command("migrate", verbosity=0)
        yield private
    finally:
        connections[DEFAULT_DB_ALIAS] = held
        # Django keeps a database in memory alive when asked to close it.
        if private.connection is not None:
            private.connection.close()
