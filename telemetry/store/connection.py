"""The wire to Redis: one way to ask, one error when nobody answers."""

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
    """Redis cannot be reached, or cannot take what it is given; try again soon."""


class Connection:
    """Asks Redis, and reconnects by itself when Redis was away."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._commit = redis.register_script(COMMIT)

    def execute(self, *command: Any, **reading: Any) -> Any:
        """Send one command and return the answer; ``reading`` tells redis-py how to read it."""
        try:
            return self._redis.execute_command(*command, **reading)  # type: ignore[no-untyped-call]
        except _UNAVAILABLE as error:
            _raise_unavailable(error)

    def execute_all(self, commands: Iterable[Command]) -> list[Any]:
        """Send many commands in one trip and return their answers."""
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
        try:
            return pipeline.execute()
        except _UNAVAILABLE as error:
            _raise_unavailable(error)

    def commit_all(self, changes: Sequence[bytes]) -> list[list[int]]:
        """Run the commit script once per change, each one whole or not at all."""
        calls = [("EVALSHA", self._commit.sha, 0, change) for change in changes]
        try:
            return self.execute_all(calls) if len(calls) > 1 else [self.execute(*c) for c in calls]
        except exceptions.NoScriptError:
            # Redis was restarted and has forgotten the script: none of them ran.
            self.execute("SCRIPT LOAD", COMMIT)
            return self.execute_all(calls)


def _raise_unavailable(error: exceptions.RedisError) -> NoReturn:
    msg = f"Redis is unavailable: {error}. Check REDIS_URL and that Redis runs."
    raise StoreUnavailable(msg) from error
