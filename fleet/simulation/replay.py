"""A source read at one second after the other, in a database of its own."""

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.db.models import Q
from django.db.utils import ConnectionHandler

from fleet.alerts import Subject, reconcile, subject_of
from fleet.alerts.evaluate import (
    evaluated_subjects,
    find_all,
    lost_nodes,
    open_alerts,
)
from fleet.alerts.snapshots import Workers, run_members, snapshot_of
from fleet.models import Alert, Run
from telemetry.store.reading import Source

IN_MEMORY = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


@contextmanager
def private_database() -> Iterator[DatabaseWrapper]:
    """Replace this thread's database by an empty in-memory SQLite within the context."""
    with _replaced_database() as private:
        private.ensure_connection()
        _empty_database().backup(private.connection)
        yield private


@cache
def _empty_database() -> sqlite3.Connection:
    """Return a database to copy, with the tables of today's models.

    Migrating it instead would take longer than most drills; a drill needs no roles.
    """
    template = sqlite3.connect(":memory:", check_same_thread=False)
    with _replaced_database() as private:
        with private.schema_editor() as editor:
            for model in apps.get_models():
                editor.create_model(model)
        private.connection.backup(template)
    return template


@contextmanager
def _replaced_database() -> Iterator[DatabaseWrapper]:
    """Replace this thread's database by an in-memory SQLite within the context."""
    handler = ConnectionHandler({DEFAULT_DB_ALIAS: dict(IN_MEMORY)})
    private = DatabaseWrapper(handler.databases[DEFAULT_DB_ALIAS], DEFAULT_DB_ALIAS)
    try:
        with connected_to(private):
            yield private
    finally:
        # Django keeps a database in memory alive when asked to close it.
        if private.connection is not None:
            private.connection.close()


@contextmanager
def connected_to(database: BaseDatabaseWrapper) -> Iterator[None]:
    """Use another database in this thread within the context."""
    before = connections[DEFAULT_DB_ALIAS]
    connections[DEFAULT_DB_ALIAS] = database
    try:
        yield
    finally:
        connections[DEFAULT_DB_ALIAS] = before


# Alerts about what is found unchanged are refreshed this often.
REFRESH_S = 5


class Replay:
    """Some runs of a source that is read at one second after the other.

    The database is queried only while something fires or is about to: a quiet second costs what
    detection costs, and no more.
    """

    def __init__(
        self,
        source: Source,
        runs: Sequence[Run],
        *,
        workers: Workers | None = None,
    ) -> None:
        self._source = source
        self._workers = workers
        self._runs = runs
        self._members = run_members(runs)
        self._watches: dict[str, Any] = {}
        self._found: frozenset[object] = frozenset()
        self._reconciled_s = -math.inf
        self.read_open_alerts()

    def evaluate(self, second: int) -> list[Alert]:
        """Run detection at a second and reconcile the alerts; return the changed ones."""
        runs = [run for run in self._runs if run.finished_at is None]
        members = {run: self._members[run.pk] for run in runs}
        snapshots = [
            snapshot_of(self._source, run, members[run], now_s=second, workers=self._workers)
            for run in runs
        ]
        lost = lost_nodes(self._open.subjects)
        expected = lost | {name for member in members.values() for name in member.nodes}
        seen = {n: tick for n, tick in self._source.last_seen().items() if n in expected}
        findings = find_all(
            snapshots,
            seen,
            now_s=second,
            open_=self._open,
            lost=lost,
            watches=self._watches,
            may_be_quiet_s=self._source.quiet_s(),
        )
        if not findings and not self.open_rules:
            return []
        # A second that finds what the last ones did needs no refresh yet, but only where each
        # open alert is found: one that is not must end in time.
        evidence = frozenset(
            (f.rule, f.cause, f.severity, f.run, f.node, f.device, str(f.evidence.get("nodes")))
            for f in findings
        )
        subjects = {(finding.rule, subject_of(finding)) for finding in findings}
        is_same = evidence == self._found and subjects == self.open_rules
        if is_same and second - self._reconciled_s < REFRESH_S:
            return []
        self._found, self._reconciled_s = evidence, second
        evaluated = evaluated_subjects(snapshots, seen, self._open.subjects, now_s=second)
        changed = reconcile(findings, evaluated=evaluated, now=datetime.fromtimestamp(second, UTC))
        self.read_open_alerts()
        return changed

    @property
    def open_rules(self) -> set[Subject]:
        return self._open.subjects

    def read_open_alerts(self) -> None:
        """Read the open alerts of these runs only: others may be replayed at the same time."""
        ours = Q(run__in=self._runs) | Q(run=None, node=None)
        self._open = open_alerts(self._runs, ours)
