"""The connection to Redis, and the state that all processes share there besides samples."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.connection import PythonRespSerializer
from redis.retry import Retry

Command = tuple[Any, ...]
COMMIT = (Path(__file__).parent / "commit.lua").read_text()
# A process renews its share of a gauge about every second. A share that is not renewed stops
# counting after SHARE_S and is deleted after FORGET_S.
SHARE_S = 15.0
FORGET_S = 3_600.0
# The channel of finished ticks: the payload is the Unix second, in ASCII.
TICKS = "hot:ticks"
# Commands that are sent together: redis-py takes about a kilobyte for each, and the time of a
# round trip is nothing beside them.
MAX_PIPELINED = 1_000
# As redis-py has it: longer values are sent apart.
LONG_BYTES = 6_000
COUNTERS = "service:counters"
_UNAVAILABLE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
)


def patient(url: str, **options: Any) -> Redis:
    """Return a client that sends long values as they are: hiredis would copy them twice."""
    client: Redis = Redis.from_url(url, **options)
    packer = PythonRespSerializer(LONG_BYTES, client.get_encoder().encode)
    client.connection_pool.connection_kwargs["command_packer"] = packer
    return client


def impatient(url: str, *, within_s: float = 1.0, n_retries: int = 0) -> Redis:
    """Return a client that gives up soon: one that waits delays all else."""
    return patient(
        url,
        socket_timeout=within_s,
        socket_connect_timeout=within_s,
        retry=Retry(NoBackoff(), n_retries, supported_errors=(exceptions.ConnectionError,)),
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
        """Execute many commands in few round trips; return their replies."""
        pipeline = self._redis.pipeline(transaction=False)
        replies: list[Any] = []
        try:
            for command in commands:
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
                if len(pipeline) >= MAX_PIPELINED:
                    replies += pipeline.execute()
            return replies + pipeline.execute()
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


class Service(Connection):
    """Plans, counters, gauges and publication of ticks."""

    def put_plan(self, run: str, plan: bytes) -> None:
        """Store the plan that the simulator plays for a run, replacing an older one."""
        self.execute("HSET", "plans", run, plan)

    def plan(self, run: str) -> bytes | None:
        plan: bytes | None = self.execute("HGET", "plans", run)
        return plan

    def plans_of(self, runs: Sequence[str]) -> dict[str, bytes]:
        """Return the plans of those of these runs that have one."""
        plans = self.execute("HMGET", "plans", *runs) if runs else []
        return {run: plan for run, plan in zip(runs, plans, strict=True) if plan is not None}

    def drop_plan(self, run: str) -> None:
        self.execute("HDEL", "plans", run)

    def plans(self) -> dict[str, bytes]:
        return {run.decode(): plan for run, plan in self.execute("HGETALL", "plans").items()}

    def count(self, name: str, n: float = 1) -> None:
        """Increment one of the service's own counters."""
        if n:
            self.execute("HINCRBYFLOAT", COUNTERS, name, n)

    def note(self, counts: Mapping[str, float], gauges: Mapping[str, float]) -> None:
        """Increment counters and set gauges, in one round trip."""
        commands: list[Command] = [
            ("HINCRBYFLOAT", COUNTERS, name, n) for name, n in counts.items() if n
        ]
        commands += [("HSET", "service:gauges", name, value) for name, value in gauges.items()]
        if commands:
            self.execute_all(commands)

    def counters(self) -> dict[str, float]:
        return self._numbers(COUNTERS)

    def gauge(self, name: str, value: float) -> None:
        self.execute("HSET", "service:gauges", name, value)

    def gauge_share(self, name: str, value: float, *, by: str, now_s: float) -> None:
        """Set one process's share of a gauge; it counts while it is renewed."""
        self.execute("HSET", "service:shares", f"{name}\n{by}", f"{value} {now_s}")

    def gauges(self, *, now_s: float | None = None) -> dict[str, float]:
        """Return the service's own gauges; shared ones as the sum of the fresh shares."""
        moment_s = time.time() if now_s is None else now_s
        packed, shares = self.execute_all(
            [("HGETALL", "service:gauges"), ("HGETALL", "service:shares")]
        )
        gauges = {name.decode(): float(value) for name, value in pairs(packed)}
        stale = []
        for field, share in pairs(shares):
            name = field.decode().partition("\n")[0]
            value, set_s = map(float, share.split())
            is_fresh = abs(moment_s - set_s) <= SHARE_S
            gauges[name] = gauges.get(name, 0.0) + (value if is_fresh else 0.0)
            if abs(moment_s - set_s) > FORGET_S:
                stale.append(field)
        if stale:
            self.execute("HDEL", "service:shares", *stale)
        return gauges

    def _numbers(self, key: str) -> dict[str, float]:
        return {
            name.decode(): float(value) for name, value in self.execute("HGETALL", key).items()
        }

    def publish_tick(self, tick: int) -> None:
        self.execute("PUBLISH", TICKS, tick)

    def queue_depth(self, queue: str = "celery") -> int:
        return int(self.execute("LLEN", queue))

    def bytes_used(self) -> int:
        """Return the size of Redis' data set in memory, without overhead."""
        return int(self.execute("INFO", "memory")["used_memory_dataset"])

    def ping(self) -> bool:
        """Raise StoreUnavailable if Redis is unreachable."""
        return bool(self.execute("PING"))


def pairs(answer: Any) -> Iterable[tuple[bytes, bytes]]:
    """Return a hash's items; in a pipeline redis-py returns a flat list for it."""
    return (
        answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
    )
