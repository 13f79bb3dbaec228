"""The connection to Redis, with one exception for all outages."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from redis import Redis, exceptions

Command = tuple[Any, ...]
COMMIT = (Path(__file__).parent / "commit.lua").read_text()
_UNAVAILABLE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
)


class StoreUnavailable(exceptions.ConnectionError, ConnectionError):  # noqa: N818
    """Redis is unreachable, out of memory or read-only; try again later."""


class Connection:
    """Executes commands on Redis; reconnects after an outage."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._commit = redis.register_script(COMMIT)

    def execute(self, *command: Any, **reading: Any) -> Any:
        """Execute one command; ``reading`` are redis-py's options for parsing the reply."""
        try:
            return self._redis.execute_command(*command, **reading)  # type: ignore[no-untyped-call]
        except _UNAVAILABLE as error:
            _raise_unavailable(error)

    def execute_all(self, commands: Iterable[Command]) -> list[Any]:
        """Execute many commands in one round trip; return their replies."""
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
        try:
            return pipeline.execute()
        except _UNAVAILABLE as error:
            _raise_unavailable(error)

    def commit_all(self, changes: Sequence[bytes]) -> list[list[int]]:
        """Run the commit script once per change; each change is atomic."""
        calls = [("EVALSHA", self._commit.sha, 0, change) for change in changes]
        try:
            return self.execute_all(calls) if len(calls) > 1 else [self.execute(*c) for c in calls]
        except exceptions.NoScriptError:
            # Redis was restarted without the script: no change was made.
            self.execute("SCRIPT LOAD", COMMIT)
            return self.execute_all(calls)


def _raise_unavailable(error: exceptions.RedisError) -> NoReturn:
    msg = f"Redis is unavailable: {error}. Check REDIS_URL and that Redis runs."
    raise StoreUnavailable(msg) from error
