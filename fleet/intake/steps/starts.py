"""Which start of its job a worker belongs to, where no launcher numbers them."""

from fleet.intake.steps.state import KEEP_S
from telemetry.ingest.steps import WorkerLine
from telemetry.store.hot import HotStore

AUTO = "auto"


class Starts:
    """Starts told apart by their workers: one that comes again belongs to the next start.

    Every process of a job has a mark of its own (``boot``). The first start to which its worker
    has not come yet takes it, in Redis, so that all web processes agree.
    """

    def __init__(self) -> None:
        """Know nobody yet."""
        self._known: dict[tuple[str, str, str], str] = {}

    def session_of(self, hot: HotStore, said: WorkerLine) -> str:
        """Return the start that a line is of."""
        if said.session != AUTO or said.boot is None:
            return said.session
        key = (said.run, said.worker, said.boot)
        if key not in self._known:
            if len(self._known) > 50_000:
                self._known.clear()
            self._known[key] = self._joined(hot, *key)
        return self._known[key]

    def _joined(self, hot: HotStore, run: str, worker: str, boot: str) -> str:
        """Put a worker's process into the first start that has none of this worker."""
        key = f"steps-in:starts:{run}"
        held, number = hot.ask("HMGET", key, f"boot:{worker}:{boot}", "newest")
        if held is not None:
            return f"{AUTO}-{int(held)}"
        start = int(number or 1)
        while not hot.ask("HSETNX", key, f"taken:{start}:{worker}", boot):
            if hot.ask("HGET", key, f"taken:{start}:{worker}") == boot.encode():
                break
            start += 1
        hot.ask_all(
            [
                ("HSET", key, f"boot:{worker}:{boot}", start),
                ("HSET", key, "newest", max(start, int(number or 1))),
                ("EXPIRE", key, KEEP_S),
            ]
        )
        return f"{AUTO}-{start}"
