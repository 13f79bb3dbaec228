"""A database of a drill's own, in memory: no drill touches what the fleet remembers."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.db.utils import ConnectionHandler

IN_MEMORY = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


@contextmanager
def private_database() -> Iterator[DatabaseWrapper]:
    """Put an empty SQLite in memory where this thread's database was; gone when left."""
    with _in_place_of_ours() as private:
        private.ensure_connection()
        _migrated().backup(private.connection)
        yield private


@cache
def _migrated() -> sqlite3.Connection:
    """Return an empty database to copy: to migrate one takes longer than to play most drills."""
    template = sqlite3.connect(":memory:", check_same_thread=False)
    with _in_place_of_ours() as private:
        call_command("migrate", verbosity=0)
        private.connection.backup(template)
    return template


@contextmanager
def _in_place_of_ours() -> Iterator[DatabaseWrapper]:
    """Put an SQLite in memory where this thread's database was."""
    handler = ConnectionHandler({DEFAULT_DB_ALIAS: dict(IN_MEMORY)})
    private = DatabaseWrapper(handler.databases[DEFAULT_DB_ALIAS], DEFAULT_DB_ALIAS)
    held = connections[DEFAULT_DB_ALIAS]
    connections[DEFAULT_DB_ALIAS] = private
    try:
        yield private
    finally:
        connections[DEFAULT_DB_ALIAS] = held
        # Django keeps a database in memory alive when asked to close it.
        if private.connection is not None:
            private.connection.close()
