"""What all processes of the service share in Redis beside samples: plans, counts, the beat."""

import time
from collections.abc import Iterable
from typing import Any

from telemetry.store.connection import Connection

# A process renews its share of a gauge every second or so while it has anything to say; what
# it said stops counting soon after, and is forgotten when it has been gone for long.
SHARE_S = 15.0
FORGET_S = 3_600.0
# Every finished tick is announced here: the payload is the Unix second, in ASCII.
TICKS = "hot:ticks"


class Service(Connection):
    """Plans, counters, gauges and the announcement of ticks."""

    def put_plan(self, run: str, plan: bytes) -> None:
        """Keep what the simulator is to play; an older plan of the run is replaced."""
        self.execute("HSET", "plans", run, plan)

    def plan(self, run: str) -> bytes | None:
        """Return one run's plan, None if there is none."""
        plan: bytes | None = self.execute("HGET", "plans", run)
        return plan

    def drop_plan(self, run: str) -> None:
        """Stop playing a run."""
        self.execute("HDEL", "plans", run)

    def plans(self) -> dict[str, bytes]:
        """Return every plan by run."""
        return {run.decode(): plan for run, plan in self.execute("HGETALL", "plans").items()}

    def count(self, name: str, n: float = 1) -> None:
        """Advance one of the service's own counters."""
        if n:
            self.execute("HINCRBYFLOAT", "service:counters", name, n)

    def counters(self) -> dict[str, float]:
        """Return the service's own counters."""
        return self._numbers("service:counters")

    def gauge(self, name: str, value: float) -> None:
        """Set one of the service's own gauges."""
        self.execute("HSET", "service:gauges", name, value)

    def gauge_share(self, name: str, value: float, *, by: str, now_s: float) -> None:
        """Set one process's share of a gauge; it counts for as long as it is renewed."""
        self.execute("HSET", "service:shares", f"{name}\n{by}", f"{value} {now_s}")

    def gauges(self, *, now_s: float | None = None) -> dict[str, float]:
        """Return the service's own gauges; those held in shares as the sum of fresh ones."""
        moment_s = time.time() if now_s is None else now_s
        held, shares = self.execute_all(
            [("HGETALL", "service:gauges"), ("HGETALL", "service:shares")]
        )
        gauges = {name.decode(): float(value) for name, value in _pairs(held)}
        stale = []
        for field, share in _pairs(shares):
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
        """Return a hash of numbers."""
        return {
            name.decode(): float(value) for name, value in self.execute("HGETALL", key).items()
        }

    def publish_tick(self, tick: int) -> None:
        """Tell whoever listens that a tick is in the store."""
        self.execute("PUBLISH", TICKS, tick)

    def queue_depth(self, queue: str = "celery") -> int:
        """Count the tasks that wait in one of the broker's queues."""
        return int(self.execute("LLEN", queue))

    def bytes_used(self) -> int:
        """Return what Redis holds in memory, its own overhead aside."""
        return int(self.execute("INFO", "memory")["used_memory_dataset"])

    def ping(self) -> bool:
        """Whether Redis answers; raises StoreUnavailable where it does not."""
        return bool(self.execute("PING"))


def _pairs(answer: Any) -> Iterable[tuple[bytes, bytes]]:
    """Return the fields of a hash and their values, in whichever way the client reads one."""
    return (
        answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
    )
