"""Sixteen nodes through an existing Prometheus: what it sends, what arrives, CPU beside its peer.

One Prometheus scrapes an exporter that plays 16 trn2.48xlarge, and writes the same samples to a
whole trnwatch and to a second Prometheus. Half way it is restarted.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast
from urllib.request import urlopen

import psutil
from django.conf import settings

from bench.installation import ROOT
from bench.store import n_appended
from bench.table import print_table
from fleet.models import Alert, Node, Token
from telemetry.ingest.exporters import KEEP
from telemetry.store.hot import open_store
from tests.helpers import free_port, prometheus_command, running

N_NODES, N_CORES, N_DEVICES = 16, 64, 16
EVERY_S = 15
START_WITHIN_S, REST_S = 90.0, 30
# The alert on an idle node needs ten minutes, those that the restart interrupts, and the delay of
# three scrapes.
MEASURE_S = 920
# A node that no process uses, and one whose exporter dies at half time.
IDLE, DYING = "node-03", "node-07"
MICRO = 1e6


@dataclass
class Exporter:
    """What neuron-monitor's exporter shows of each node, one path per node."""

    began_s: float = field(default_factory=time.time)
    is_dead: bool = False

    def page(self, node: str) -> str:
        """Return six series per core, four per device and eight of the node."""
        known = f'instance_id="i-{node}",instance_type="trn2.48xlarge"'
        done = 40.0 * (time.time() - self.began_s)
        lines = [
            f'hardware_ecc_events_total{{{known},event_type="{kind}",neuron_device_index="{i}"}} 0'
            for i in range(N_DEVICES)
            for kind in (f"{of}_ecc_{how}" for of in ("mem", "sram") for how in ECC)
        ]
        lines.append(f"system_memory_used_bytes{{{known}}} 4e11")
        lines.append(f'system_vcpu_usage_ratio{{{known},usage_type="user"}} 0.2')
        lines.append(
            f'neuron_hardware_info{{{known},neuron_device_count="{N_DEVICES}",'
            f'neuroncore_per_device_count="{N_CORES // N_DEVICES}"}} 1'
        )
        if node == IDLE:
            return "\n".join([*lines, ""])
        pod = f'{known},pod_name="llama-worker-{int(node[-2:])}"'
        for i in range(N_CORES):
            core = f'{pod},neuroncore="{i}",runtime_tag="9"'
            # No core is as busy in one scrape as in the next.
            busy = random.gauss(0.7, 0.02)
            lines.append(f"neuroncore_utilization_ratio{{{core}}} {busy:.4f}")
            lines += [f"neuroncore_memory_usage_{part}{{{core}}} 1e9" for part in MEMORY]
        for status in STATUS:
            n = done if status == "completed" else 0
            lines.append(f'execution_status_total{{{pod},status_type="{status}"}} {n}')
        return "\n".join([*lines, ""])


ECC = ("corrected", "uncorrected")
MEMORY = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
STATUS = ("completed", "completed_with_err", "timed_out", "incorrect_input", "failed_to_queue")


class Handler(BaseHTTPRequestHandler):
    """Serves the pages of an Exporter."""

    def do_GET(self) -> None:
        exporter: Exporter = cast("Any", self.server).exporter
        node = self.path.strip("/")
        if exporter.is_dead and node == DYING:
            self.send_error(503)
            return
        body = exporter.page(node).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def exporting() -> Iterator[tuple[Exporter, str]]:
    """Serve the exporters of all nodes; gives them and their address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    exporter = Exporter()
    cast("Any", server).exporter = exporter
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield exporter, f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def in_group(command: list[str], log: Path, env: Mapping[str, str]) -> Iterator[psutil.Process]:
    """Run a program in a group of its own for as long as the block lasts."""
    options = {"cwd": ROOT, "env": dict(env), "start_new_session": True}
    with running(command, log, ends_by=signal.SIGTERM, **options) as process:
        yield psutil.Process(process.pid)


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a program and all that it started."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            used = each.cpu_times()
            total += used.user + used.system
    return total


def metric(port: int, name: str) -> float:
    """Add up the series of a metric that Prometheus shows of itself, of what goes to trnwatch."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith(name + "{") and "/ingest/prometheus" in line
    )


def wait_for(what: str, is_there: Callable[[], bool], *, within_s: float) -> float:
    """Wait until something holds; return the seconds that it took."""
    began = time.monotonic()
    while not is_there():
        if time.monotonic() - began > within_s:
            raise TimeoutError(f"{what}: not within {within_s:.0f} s")
        time.sleep(0.5)
    return time.monotonic() - began


def is_up(port: int, path: str) -> bool:
    """Whether a server answers."""
    with suppress(OSError), urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as page:
        return bool(page.status == 200)
    return False


def measure(env: Mapping[str, str], *, seconds: int = MEASURE_S) -> dict[str, Any]:
    """Let Prometheus write for so long, and restart it; print what arrived and what it cost."""
    folder = Path(settings.DATA_DIR)
    port, sender_port, peer_port = free_port(), free_port(), free_port()
    _, secret = Token.issue("prometheus", Token.Scope.INGEST, now=datetime.now(UTC))
    env = {**os.environ, **env, "PORT": str(port), "TRNWATCH_DEMO": "0"}
    peer = prometheus_command(folder / "peer", peer_port, {}, "--web.enable-remote-write-receiver")
    with (
        exporting() as (exporter, target),
        in_group([sys.executable, "manage.py", "up"], folder / "up.log", env) as ours,
        in_group(peer, folder / "peer.log", env) as theirs,
    ):
        wait_for("trnwatch", lambda: is_up(port, "/healthz"), within_s=START_WITHIN_S)
        wait_for("Prometheus", lambda: is_up(peer_port, "/-/ready"), within_s=START_WITHIN_S)
        time.sleep(EVERY_S)
        rest = cpu_s(ours), cpu_s(theirs)
        time.sleep(REST_S)
        at_rest = [(cpu_s(ours) - rest[0]) / REST_S, (cpu_s(theirs) - rest[1]) / REST_S]
        config = configuration(target, port, peer_port, secret)
        sender = prometheus_command(folder / "sender", sender_port, config)
        n_sent = {"failed": 0.0, "retried": 0.0}
        began, used = time.monotonic(), (cpu_s(ours), cpu_s(theirs))
        for half in range(2):
            with in_group(sender, folder / "sender.log", env):
                if half == 0:
                    appeared_s = wait_for("nodes", lambda: n_nodes() == N_NODES, within_s=120)
                else:
                    exporter.is_dead = True
                time.sleep(max(0.0, began + seconds * (half + 1) / 2 - time.monotonic()))
                for key in n_sent:
                    name = f"prometheus_remote_storage_samples_{key}_total"
                    n_sent[key] += metric(sender_port, name)
        lasted_s = time.monotonic() - began
        ours_s = cpu_s(ours) - used[0] - at_rest[0] * lasted_s
        theirs_s = cpu_s(theirs) - used[1] - at_rest[1] * lasted_s
        n_peer = n_appended(peer_port)
        # The last scrape is stored when it is complete.
        with suppress(TimeoutError):
            wait_for("samples", lambda: n_arrived() >= n_peer, within_s=60)
        arrived = n_arrived()
    alerts = [(alert.rule, str(alert.node or "")) for alert in Alert.objects.order_by("fired_at")]
    ours_us, theirs_us = ours_s / arrived * MICRO, theirs_s / n_peer * MICRO
    figures = {
        "bench": "remote_write",
        "seconds": lasted_s,
        "nodes": n_nodes(),
        "appeared_s": appeared_s,
        **{f"samples_{key}": n for key, n in n_sent.items()},
        "samples_arrived": arrived,
        "samples_at_peer": n_peer,
        "cpu_us_per_sample": ours_us,
        "peer_cpu_us_per_sample": theirs_us,
        "alerts": alerts,
    }
    ratio = ours_us / theirs_us
    print_table(
        f"{N_NODES} nodes by remote write, a scrape each {EVERY_S} s, {lasted_s:.0f} s, "
        "one restart of the sender",
        [
            ("nodes on the page after", f"{appeared_s:.0f} s"),
            ("samples at Prometheus's receiver", f"{n_peer:,.0f}"),
            ("samples at trnwatch", f"{arrived:,.0f}"),
            *((f"samples that Prometheus {key}", f"{n:,.0f}") for key, n in n_sent.items()),
            ("alerts", ", ".join(f"{rule} {node}" for rule, node in alerts) or "none"),
            ("CPU per sample, above rest", f"{figures['cpu_us_per_sample']:.1f} us"),
            ("Prometheus's receiver", f"{figures['peer_cpu_us_per_sample']:.1f} us"),
            ("ratio", f"{ratio:.1f}"),
            ("CPU at rest, trnwatch and Prometheus", " ".join(f"{s:.3f}" for s in at_rest)),
        ],
    )
    return figures


def n_arrived() -> float:
    """Count the samples that trnwatch has read."""
    counters = open_store(settings.REDIS_URL).counters()
    return counters.get("ingest_samples", 0) + counters.get("ingest_series_ignored", 0)


def n_nodes() -> int:
    """Count the nodes that trnwatch knows."""
    return Node.objects.count()


def configuration(target: str, port: int, peer_port: int, secret: str) -> dict[str, Any]:
    """Return the configuration of the sending Prometheus: the same samples to both."""
    labels = [
        {"node": f"node-{i:02}", "run": "llama", "__metrics_path__": f"/node-{i:02}"}
        for i in range(N_NODES)
    ]
    keep = [{"source_labels": ["__name__"], "action": "keep", "regex": KEEP}]
    receivers = (
        (f"http://127.0.0.1:{port}/api/v1/ingest/prometheus", {"credentials": secret}),
        (f"http://127.0.0.1:{peer_port}/api/v1/write", None),
    )
    return {
        "global": {"scrape_interval": f"{EVERY_S}s"},
        "scrape_configs": [
            {
                "job_name": "neuron-monitor",
                "static_configs": [{"targets": [target], "labels": each} for each in labels],
            }
        ],
        "remote_write": [
            {"url": url, "write_relabel_configs": keep}
            | ({"authorization": authorization} if authorization else {})
            for url, authorization in receivers
        ],
    }
