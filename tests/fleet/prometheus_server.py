"""A real Prometheus for tests: scrape and query."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.helpers import free_port, prometheus_command, running

TIMEOUT_S = 60.0
Job = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    port: int

    def ask(self, query: str) -> list[Any]:
        """Return what a query finds; nothing while Prometheus is still starting."""
        found = self._get("query", query=query)
        return list(found["data"]["result"]) if found else []

    def values(self, query: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return what a query finds, by some of the labels."""
        return {
            tuple(each["metric"].get(label, "") for label in labels): float(each["value"][1])
            for each in self.ask(query)
        }

    def n_targets(self) -> int:
        """Return how many targets are known, scraped or not."""
        found = self._get("targets", state="active")
        return len(found["data"]["activeTargets"]) if found else 0

    def exemplars(self, query: str, *, since_s: float) -> list[Any]:
        """Return the exemplars of a query's series."""
        found = self._get("query_exemplars", query=query, start=since_s, end=time.time() + 600)
        return [exemplar for series in found["data"] for exemplar in series["exemplars"]]

    def _get(self, what: str, **asked: Any) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return json.load(response)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None


@contextmanager
def prometheus(folder: Path, jobs: Sequence[Job]) -> Iterator[Prometheus]:
    """Run Prometheus with these jobs, exemplars kept, for as long as the block lasts."""
    config = {
        "global": {"scrape_interval": "3s", "scrape_timeout": "3s"},
        "storage": {"exemplars": {"max_exemplars": 1000}},
        "scrape_configs": [*jobs],
    }
    port = free_port()
    command = prometheus_command(folder, port, config, "--enable-feature=exemplar-storage")
    with running(command, folder / "prometheus.log"):
        yield Prometheus(port)


def eventually(question: Callable[[], T]) -> T:
    """Query until there is a result."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (answer := question()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return answer
