"""What the agent costs a training node at 1 Hz: CPU and memory on the trn2.48xlarge stream."""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
from django.conf import settings

from bench.ingest import ROOT, SAMPLE, web_server
from bench.table import print_table
from fleet.models import Token
from telemetry.store.hot import HotStore, open_store
from tests.telemetry.agent.machine import trn2

WARM_UP_S, MEASURED_S = 21, 120
MOST_CPU_RATIO, MOST_MB = 0.004, 30.0


def measure(env: Mapping[str, str]) -> None:
    """Run the agent as a node would, against a web server of this installation; print the cost."""
    hot = open_store(settings.REDIS_URL)
    _, secret = Token.issue("bench", Token.Scope.INGEST, now=datetime.now(UTC))
    with web_server(dict(env), secret) as site:
        for every_s in (1, 10):
            measure_one(hot, site.port, secret, every_s=every_s)


def measure_one(hot: HotStore, port: int, secret: str, *, every_s: int) -> None:
    """Measure an agent that sends every so often."""
    with agent(port, secret, every_s=every_s) as process:
        time.sleep(WARM_UP_S)
        before, n_before = process.cpu_times(), hot.counters().get("ingest_reports", 0)
        time.sleep(MEASURED_S)
        after, n = process.cpu_times(), hot.counters()["ingest_reports"] - n_before
        used_s = after.user + after.system - before.user - before.system
        rss_mb = process.memory_info().rss / 1e6
    cpu_ratio = used_s / MEASURED_S
    print_table(
        f"The agent for {MEASURED_S} s, --every {every_s}, {n:.0f} reports taken; "
        "16 EFA and 16 Neuron devices",
        [
            (f"CPU of one core (the budget is {MOST_CPU_RATIO:.1%})", f"{cpu_ratio:.2%}"),
            (f"resident memory (the budget is {MOST_MB:.0f} MB)", f"{rss_mb:.1f} MB"),
        ],
    )


@contextmanager
def agent(port: int, secret: str, *, every_s: int) -> Iterator[psutil.Process]:
    """Run the agent as one file, reading a replayed stream and a tree of sysfs files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machine, one_file = trn2(folder / "sys"), folder / "trnwatch-agent.pyz"
        subprocess.run([sys.executable, "tools/agent.py", one_file], cwd=ROOT, check=True)
        command = [sys.executable, one_file, "--server", f"http://127.0.0.1:{port}"]
        command += ["--spool", folder / "spool", "--every", str(every_s), "--command"]
        command += [shlex.join([sys.executable, str(ROOT / "tools/replay.py"), str(SAMPLE)])]
        command += ["--efa-sysfs", machine.efa, "--neuron-sysfs", machine.neuron]
        with subprocess.Popen(command, env=os.environ | {"TRNWATCH_TOKEN": secret}) as process:
            try:
                yield psutil.Process(process.pid)
            finally:
                process.terminate()
