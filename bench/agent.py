"""What the agent costs a training node at 1 Hz, and while it samples: CPU and memory on trn2."""

import json
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
from typing import Any

import psutil
from django.conf import settings

from bench.ingest import ROOT, SAMPLE, web_server
from bench.table import print_table
from fleet.models import Token
from telemetry.store.hot import HotStore, open_store
from tests.telemetry.agent.ingest_server import Server, serve_ingest
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
    measure_sample()


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


# A neuron-monitor that keeps to the period it is given.
MONITOR = """#!{python}
import json, sys, time
with open(sys.argv[2]) as file:
    every_s = float(json.load(file)["period"].rstrip("s"))
with open({sample!r}) as file:
    line = file.readline()
while True:
    time.sleep(every_s)
    print(line, end="", flush=True)
"""
BEFORE_S, DURING_S = 20, 28
TAKEN = {"accepted": 1, "refused": []}


def measure_sample() -> None:
    """Measure the agent before and during a sample of 30 s, each with a neuron-monitor."""
    request = {"sample": {"id": 1, "every_s": 0.1, "length_s": 30}}
    with tempfile.TemporaryDirectory() as name, serve_ingest() as server:
        folder = Path(name)
        machine, one_file = trn2(folder / "sys"), folder / "trnwatch-agent.pyz"
        program = folder / "bin/neuron-monitor"
        program.parent.mkdir()
        program.write_text(MONITOR.format(python=sys.executable, sample=str(SAMPLE)))
        program.chmod(0o755)
        subprocess.run([sys.executable, "tools/agent.py", one_file], cwd=ROOT, check=True)
        command: list[str | Path] = [
            sys.executable,
            one_file,
            "--server",
            server.address,
            "--no-imds",
        ]
        command += ["--spool", folder / "spool"]
        command += ["--efa-sysfs", machine.efa, "--neuron-sysfs", machine.neuron]
        path = f"{program.parent}:{os.environ['PATH']}"
        env = os.environ | {"TRNWATCH_TOKEN": "bench", "PATH": path}
        with subprocess.Popen(command, env=env) as child:
            try:
                process = psutil.Process(child.pid)
                time.sleep(WARM_UP_S)
                before = _cpu_ratio(process, BEFORE_S)
                server.answers += [(200, TAKEN | request, {})] * (DURING_S + 60)
                while not _answers(server):
                    time.sleep(0.01)
                during = _cpu_ratio(process, DURING_S)
                while len(_answers(server)) < 2:
                    time.sleep(0.1)
                rss_mb = process.memory_info().rss / 1e6
                n_lines = sum(len(each.lines) for each in server.requests)
            finally:
                child.terminate()
    sample = list(_answers(server).values())[-1]
    print_table(
        f"The agent while it samples each 0.1 s, {n_lines} reports sent; 16 EFA and 16 Neuron "
        "devices, without neuron-monitor itself",
        [
            ("CPU of one core before", f"{before:.2%}"),
            ("CPU of one core while sampling", f"{during:.2%}"),
            ("resident memory after", f"{rss_mb:.1f} MB"),
            ("the sample as sent", f"{len(json.dumps(sample)) / 1e3:.0f} kB"),
            *((f"readings of {table['name']}", f"{table['n']}") for table in sample["tables"]),
        ],
    )


def _cpu_ratio(process: psutil.Process, length_s: float) -> float:
    before, began_s = process.cpu_times(), time.monotonic()
    time.sleep(length_s)
    after = process.cpu_times()
    used_s = after.user + after.system - before.user - before.system
    return float(used_s / (time.monotonic() - began_s))


def _answers(server: Server) -> dict[str, Any]:
    """Return what the agent answered to the request so far, each answer once."""
    lines = [line for request in tuple(server.requests) for line in request.lines]
    found = [line["agent"]["sample"] for line in lines if "sample" in line.get("agent", {})]
    return {each.get("state", "sample"): each for each in found}


@contextmanager
def agent(port: int, secret: str, *, every_s: int) -> Iterator[psutil.Process]:
    """Run the agent as one file, reading a replayed stream and a tree of sysfs files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machine, one_file = trn2(folder / "sys"), folder / "trnwatch-agent.pyz"
        subprocess.run([sys.executable, "tools/agent.py", one_file], cwd=ROOT, check=True)
        command: list[str | Path] = [
            sys.executable,
            one_file,
            "--server",
            f"http://127.0.0.1:{port}",
        ]
        command += ["--spool", folder / "spool", "--every", str(every_s), "--command"]
        command += [shlex.join([sys.executable, str(ROOT / "tools/replay.py"), str(SAMPLE)])]
        command += ["--efa-sysfs", machine.efa, "--neuron-sysfs", machine.neuron]
        with subprocess.Popen(command, env=os.environ | {"TRNWATCH_TOKEN": secret}) as process:
            try:
                yield psutil.Process(process.pid)
            finally:
                process.terminate()
