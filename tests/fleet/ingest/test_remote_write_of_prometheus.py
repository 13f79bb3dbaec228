"""A real Prometheus scrapes exporters and writes to trnwatch; it is restarted on the way."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from fleet.ingest import prometheus
from fleet.models import Node, Token
from fleet.tasks import assemble_scrapes, watch_fleet
from telemetry.blocks import FloatArray
from telemetry.store.hot import HotStore
from tests.helpers import free_port, just_now, prometheus_command, running

NODES = tuple(f"trn-{i:02}" for i in range(4))
N_CORES = 32
DONE_PER_S = 2.0
# Ten minutes of each part: TRNWATCH_PAIR_S=600.
PAIR_S = int(os.environ.get("TRNWATCH_PAIR_S", "0"))
DEADLINE_S = 120.0 + 2 * PAIR_S


class Exporters(BaseHTTPRequestHandler):
    """neuron-monitor's exporter of several nodes, one at each path."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        labels = 'instance_id="i-1",instance_type="trn1.32xlarge"'
        lines = [
            f'neuroncore_utilization_ratio{{{labels},neuroncore="{i}",runtime_tag="9"}} 0.75'
            for i in range(N_CORES)
        ]
        done = DONE_PER_S * time.time()
        lines.append(f'execution_status_total{{{labels},status_type="completed"}} {done}')
        body = ("\n".join(lines) + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def exporters() -> Iterator[str]:
    """Serve the exporters; gives their address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporters)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def command(
    folder: Path,
    exporters: str,
    address: str,
    secret: str,
    *,
    every_s: int = 1,
    replica: str = "",
) -> list[str]:
    """Return the command that runs Prometheus with what it has stored in the folder."""
    labels = [{"node": node, "__metrics_path__": f"/{node}"} for node in NODES]
    config = {
        "global": {
            "scrape_interval": f"{every_s}s",
            "scrape_timeout": f"{every_s}s",
            "external_labels": {"prometheus_replica": replica} if replica else {},
        },
        "scrape_configs": [
            {
                "job_name": "neuron-monitor",
                "static_configs": [{"targets": [exporters], "labels": each} for each in labels],
            }
        ],
        "remote_write": [
            {
                "url": f"{address}/api/v1/ingest/prometheus",
                "authorization": {"credentials": secret},
                "queue_config": {"batch_send_deadline": "500ms"},
            }
        ],
    }
    return prometheus_command(folder, free_port(), config)


def seconds_of(hot: HotStore, node: str, metric: str, start: int, end: int) -> FloatArray:
    """Return a metric's first part by second, NaN where nothing is stored."""
    values = hot.window(f"node:{node}", (metric,), start=start, end=end).values[metric]
    return values[:, 0, 0] if values.size else np.full(len(values), np.nan)


def wait_for(hot: HotStore, *, since: int, n_seconds: int) -> int:
    """Assemble until so many seconds of each node are stored since then; return the newest."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        prometheus.assemble(hot, now_s=time.time())
        end = max(since, int(time.time()))
        busy = [seconds_of(hot, node, "core_utilization_ratio", since, end) for node in NODES]
        if all(np.isfinite(each).sum() >= n_seconds for each in busy):
            return end
        time.sleep(0.2)
    raise AssertionError(f"only {hot.last_seen()} since {since}")


@pytest.mark.prometheus
def test_nodes_appear_and_no_sample_is_doubled_or_lost(
    address: str, exporters: str, tmp_path: Path, hot: HotStore
) -> None:
    secret = Token.issue("prometheus", Token.Scope.INGEST, now=just_now())[1]
    sender = command(tmp_path, exporters, address, secret)
    start = int(time.time())
    with running(sender, tmp_path / "log", ends_by=signal.SIGTERM):
        wait_for(hot, since=start, n_seconds=5)
    stopped = int(time.time()) + 1
    with running(sender, tmp_path / "log", ends_by=signal.SIGTERM):
        end = wait_for(hot, since=stopped, n_seconds=5)

    assert sorted(Node.objects.values_list("name", flat=True)) == list(NODES)
    assert set(Node.objects.values_list("instance_type", "n_cores")) == {
        ("trn1.32xlarge", N_CORES)
    }
    for node in NODES:
        busy = seconds_of(hot, node, "core_utilization_ratio", start, end)
        seen = np.flatnonzero(np.isfinite(busy))
        np.testing.assert_allclose(busy[seen], 0.75, atol=0.01)
        # Every second since the first one, but for the restart.
        assert np.diff(seen).max() <= stopped - start + 5
        assert len(seen) >= 10
        # Scrapes come at uneven times, so only the mean tells doubled or lost counts.
        done = seconds_of(hot, node, "executions_completed_per_s", start, end)
        assert 0.7 * DONE_PER_S < np.nanmean(done) < 1.4 * DONE_PER_S
    sent = float(hot.execute("HGET", "service:counters", "ingest_samples"))
    assert sent >= len(NODES) * (N_CORES + 1) * 10


def holes_of(hot: HotStore, metric: str, start: int, end: int) -> list[int]:
    """The seconds without a value before each one that has one, from the first value on."""
    gaps: list[int] = []
    for node in NODES:
        seen = np.flatnonzero(np.isfinite(seconds_of(hot, node, metric, start, end)))
        gaps += [int(gap) - 1 for gap in np.diff(seen) if gap > 1]
    return gaps


@pytest.mark.prometheus
def test_a_pair_and_another_interval_leave_one_hole_at_most(
    address: str, exporters: str, tmp_path: Path, hot: HotStore
) -> None:
    """Two replicas scrape the same exporters; then they do so at four times the interval."""
    secret = Token.issue("prometheus", Token.Scope.INGEST, now=just_now())[1]
    start = int(time.time())
    ends = []
    for every_s, n_seconds in ((1, max(6, PAIR_S)), (4, max(16, PAIR_S))):
        began = int(time.time())
        with ExitStack() as pair:
            for replica in ("a", "b"):
                sender = command(
                    tmp_path / f"{replica}{every_s}",
                    exporters,
                    address,
                    secret,
                    every_s=every_s,
                    replica=replica,
                )
                pair.enter_context(running(sender, tmp_path / "log", ends_by=signal.SIGTERM))
            ends.append(wait_for(hot, since=began, n_seconds=n_seconds))
    changed, end = ends
    metric = "executions_completed_per_s"
    # Within each part none is longer than a scrape that came late.
    assert max(holes_of(hot, metric, start, changed), default=0) <= 1
    for node in NODES:
        rates = seconds_of(hot, node, metric, start, end)
        found = rates[np.isfinite(rates)]
        assert len(found) >= 0.5 * (end - start) - 12
        # Scrapes are stored at whole milliseconds and cover whole seconds.
        assert 0.8 * DONE_PER_S < np.nanmean(found) < 1.25 * DONE_PER_S
        # After the change they go on: in the last part there is a rate for nearly each second.
        last = rates[-10:]
        assert np.isfinite(last).sum() >= 5
    holes = [hole for hole in holes_of(hot, metric, start, end) if hole > 5]
    assert len(holes) <= len(NODES)


def test_assembly_waits_longer_for_its_turn_than_detection() -> None:
    # Else a busy queue drops every message that would store samples.
    assembly_s, detection_s = assemble_scrapes.expires, watch_fleet.expires
    assert isinstance(assembly_s, int)
    assert isinstance(detection_s, int)
    assert assembly_s > 5 * detection_s
