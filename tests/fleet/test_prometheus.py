"""A real Prometheus scrapes a living server, and answers questions about the fleet."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from fleet.models import Run, Token
from telemetry.store.hot import HotStore
from tests.parts import block, free_port, steps

pytestmark = pytest.mark.prometheus
PATIENCE_S = 60.0


@contextmanager
def prometheus(folder: Path, target: str, token: str) -> Iterator[Callable[[str], list[Any]]]:
    """Run Prometheus against a target; gives how to ask it."""
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {
                "job_name": "trnwatch",
                "authorization": {"credentials": token},
                "static_configs": [{"targets": [target.removeprefix("http://")]}],
            }
        ],
    }
    # JSON is YAML too.
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield lambda query: ask(port, query)
    finally:
        process.kill()
        process.wait()


def ask(port: int, query: str) -> list[Any]:
    """Return what a query finds; nothing while Prometheus is still starting."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            found: list[Any] = json.load(response)["data"]["result"]
    except (urllib.error.URLError, ConnectionError):
        return []
    return found


def eventually(question: Callable[[], list[Any]]) -> list[Any]:
    """Ask until there is an answer."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := question()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return answer


def test_prometheus_scrapes_the_fleet_and_answers(
    address: str, run: Run, hot: HotStore, tmp_path: Path
) -> None:
    now = int(time.time())
    hot.append([block(tick=now + second) for second in range(100)])
    hot.append_steps(steps(n_steps=120, ended_at_s=now - 20, compute_s=0.7, transfer_s=0.3))
    _, secret = Token.issue("prometheus", Token.Scope.SCRAPE, now=timezone.now())

    with prometheus(tmp_path, address, secret) as query:
        up = eventually(lambda: query('up{job="trnwatch"} == 1'))
        cores = query("count by (node) (trnwatch_core_utilization_ratio)")
        share = query('trnwatch_run_allreduce_share_ratio{run="llama"} > 0.25')
        firing = query("sum by (severity) (trnwatch_alerts_firing)")

    assert len(up) == 1
    assert {c["metric"]["node"]: c["value"][1] for c in cores} == {"steady": "32", "limping": "32"}
    assert [float(s["value"][1]) for s in share] == [pytest.approx(0.3)]
    assert {f["metric"]["severity"]: f["value"][1] for f in firing}["page"] == "0"
