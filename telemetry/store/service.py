"""What all processes of the service share in Redis beside samples: plans, counts, the beat."""

from telemetry.store.connection import Connection

# Every finished tick is announced here: the payload is the Unix second, in ASCII.
TICKS = "hot:ticks"


class Service(Connection):
    """Plans, counters, gauges and the announcement of ticks."""

    def put_plan(self, run: str, plan: bytes) -> None:
        """Keep what the simulator is to play; an older plan of the run is replaced."""
        self.ask("HSET", "plans", run, plan)

    def plan(self, run: str) -> bytes | None:
        """Return one run's plan, None if there is none."""
        plan: bytes | None = self.ask("HGET", "plans", run)
        return plan

    def drop_plan(self, run: str) -> None:
        """Stop playing a run."""
        self.ask("HDEL", "plans", run)

    def plans(self) -> dict[str, bytes]:
        """Return every plan by run."""
        return {run.decode(): plan for run, plan in self.ask("HGETALL", "plans").items()}

    def count(self, name: str, n: float = 1) -> None:
        """Advance one of the service's own counters."""
        if n:
            self.ask("HINCRBYFLOAT", "service:counters", name, n)

    def counters(self) -> dict[str, float]:
        """Return the service's own counters."""
        return self._numbers("service:counters")

    def gauge(self, name: str, value: float) -> None:
        """Set one of the service's own gauges."""
        self.ask("HSET", "service:gauges", name, value)

    def gauges(self) -> dict[str, float]:
        """Return the service's own gauges."""
        return self._numbers("service:gauges")

    def _numbers(self, key: str) -> dict[str, float]:
        """Return a hash of numbers."""
        return {name.decode(): float(value) for name, value in self.ask("HGETALL", key).items()}

    def publish_tick(self, tick: int) -> None:
        """Tell whoever listens that a tick is in the store."""
        self.ask("PUBLISH", TICKS, tick)

    def queue_depth(self, queue: str = "celery") -> int:
        """Count the tasks that wait in one of the broker's queues."""
        return int(self.ask("LLEN", queue))

    def bytes_used(self) -> int:
        """Return what Redis holds in memory, its own overhead aside."""
        return int(self.ask("INFO", "memory")["used_memory_dataset"])

    def ping(self) -> bool:
        """Whether Redis answers; raises StoreUnavailable where it does not."""
        return bool(self.ask("PING"))
