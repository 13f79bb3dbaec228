"""A process that dies at a chosen database statement within a transaction."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection
from django.db.models import Model

from fleet.models import Alert, AlertEvent, Delivery, NotifiedState, Silence, SilenceEvent

# What transactions are made of dies with the process, not by itself.
FRAMES = ("SAVEPOINT", "RELEASE", "ROLLBACK", "BEGIN", "COMMIT")
WRITTEN: tuple[type[Model], ...] = (
    Alert,
    AlertEvent,
    Delivery,
    Silence,
    SilenceEvent,
    NotifiedState,
)


class DiedError(Exception):
    """The process is gone."""


@contextmanager
def dying_at(statement: int) -> Iterator[None]:
    """Die before the given statement; statements on other connections count too."""
    seen = 0

    def die(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        nonlocal seen
        if not sql.startswith(FRAMES):
            seen += 1
            if seen > statement:
                raise DiedError
        return execute(sql, *args)

    with connection.execute_wrapper(die):
        yield


def everything_stored() -> dict[str, list[dict[str, Any]]]:
    """Return every row that an alert's life writes, by model."""
    return {
        model.__name__: list(model._default_manager.order_by("pk").values()) for model in WRITTEN
    }
