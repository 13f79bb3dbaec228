"""Realistic noisy samples, and a durable Redis."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from fleet.ops.embedded_redis import REDIS_SERVER
from telemetry.blocks import METRICS, FloatArray, Span
from tests.helpers import NOON_S, free_port, until_answers

TRN2 = {"node": 1, "core": 64, "device": 16, "efa": 16}
# What a training node reads, and how much it wavers from tick to tick.
TYPICAL = {
    "core_utilization_ratio": (0.7, 0.02),
    "hbm_bandwidth_bytes_per_s": (1.4e12, 0.02),
    "device_memory_used_bytes": (8.2e10, 0.0),
    "efa_latency_s": (2.1e-5, 0.03),
    "efa_tx_bytes_per_s": (3.1e9, 0.03),
    "efa_rx_bytes_per_s": (3.1e9, 0.03),
    "efa_tx_packets_per_s": (3.8e5, 0.03),
    "vcpu_usage_ratio": (0.2, 0.05),
    "host_memory_used_bytes": (4.1e11, 0.0),
    "executions_completed_per_s": (12.0, 0.1),
}


def training(
    shard: str = "llama/0",
    nodes: Sequence[str] = ("steady", "limping"),
    *,
    start: int = NOON_S,
    n_ticks: int = 60,
    every_s: int = 1,
    seed: int = 0,
) -> Span:
    """Return a span in which trn2.48xlarge nodes train, every reading with its own noise."""
    rng = np.random.default_rng(seed)
    values: dict[str, FloatArray] = {}
    for name, metric in METRICS.items():
        mean, wavers = TYPICAL.get(name, (0.0, 0.0))
        noise = rng.standard_normal((n_ticks, len(nodes), TRN2[metric.part]))
        values[name] = mean * (1.0 + wavers * noise)
    ticks = np.arange(start, start + n_ticks * every_s, every_s)
    return Span(shard, ticks, tuple(nodes), values, every_s)


class Redis:
    """A Redis that keeps an append-only file, can be killed, and started again."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}"
        options = f"--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync always"
        self._command = [REDIS_SERVER, *options.split(), "--save", "", "--dir", str(folder)]
        self.folder = folder
        self._log = folder / "redis.log"
        self._port = port
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until_answers(self._port)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as kill -9 does: nothing is tidied up."""
        self._process.kill()
        self._process.wait()


@contextmanager
def several_redis(folder: Path, n: int = 3) -> Iterator[list[Redis]]:
    """Run some of them for as long as the block lasts."""
    with ExitStack() as stack:
        servers = []
        for i in range(n):
            own = folder / f"redis-{i}"
            own.mkdir()
            servers.append(Redis(own, free_port()))
            stack.callback(servers[-1].kill)
        yield servers
