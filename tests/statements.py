"""The record of what tests ask a database, and which of them others make superfluous."""

import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

# What a test uses that counts queries, breaks constraints or commits.
ASKS_SQL = {
    "CaptureQueriesContext",
    "IntegrityError",
    "MigrationExecutor",
    "Thread",
    "atomic",
    "django_assert_max_num_queries",
    "django_assert_num_queries",
    "select_for_update",
    "transactional_db",
}
# However many values a statement has, it is the same one.
VALUES = re.compile(r"%s(, %s)*|\b\d+\b|(\(…(, …)*\), )+")
OF_TRANSACTIONS = ("BEGIN", "COMMIT", "PRAGMA", "RELEASE", "ROLLBACK", "SAVEPOINT")


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses, those of its inner functions included."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from names_in(each)


def asks_sql(item: pytest.Item) -> bool:
    """Whether a test, or a function of its module that it calls, is about what SQL can change."""
    marker, function = item.get_closest_marker("django_db"), getattr(item, "function", None)
    module = vars(sys.modules[function.__module__]) if function else {}
    names, left = {*getattr(item, "fixturenames", ())}, [function] if function else []
    while left:
        new = {*names_in(left.pop().__code__)} - names
        names |= new
        left += [module[name] for name in new if isinstance(module.get(name), FunctionType)]
    return bool(names & ASKS_SQL) or bool(marker and marker.kwargs.get("transaction"))


@dataclass(eq=False)
class Recorder:
    """A plugin of pytest that lists in ``path`` the tests whose SQL others send too.

    The slowest are listed first, as long as others send each of their statements. Those in
    ``always`` are not, nor those that are about what SQL can change. What the file says of tests
    that do not run now stays.
    """

    path: Path
    always: tuple[str, ...]
    sent: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    took_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    now: set[str] = field(default_factory=set)

    def __call__(self, execute: Callable[..., Any], sql: str, *others: Any) -> Any:
        """Record a statement, and execute it."""
        if not str(sql).startswith(OF_TRANSACTIONS):
            self.now.add(VALUES.sub("…", str(sql)))
        return execute(sql, *others)

    def watch(self, connection: BaseDatabaseWrapper, **_: object) -> None:
        if self not in connection.execute_wrappers:
            connection.execute_wrappers.append(self)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        asking = {item.nodeid.partition("[")[0] for item in items if asks_sql(item)}
        self.always += tuple(sorted(asking))
        connection_created.connect(self.watch)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        name = item.nodeid.partition("[")[0]
        self.now.clear()
        self.watch(connection)
        began_s = time.process_time()
        done = yield
        self.sent[name] |= self.now
        self.took_s[name] += time.process_time() - began_s
        return done

    def pytest_sessionfinish(self) -> None:
        times = Counter(statement for each in self.sent.values() for statement in each)
        run = {*self.sent, *(name.partition("::")[0] for name in self.sent)}
        listed = [name for name in self.path.read_text().split() if name not in run]
        for name in sorted(self.sent, key=lambda name: -self.took_s[name]):
            others_send = all(times[statement] > 1 for statement in self.sent[name])
            if others_send and not name.startswith(self.always):
                times.subtract(self.sent[name])
                listed.append(name)
        self.path.write_text("".join(f"{name}\n" for name in sorted(listed)))
