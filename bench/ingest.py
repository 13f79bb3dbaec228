"""Reports of real nodes over HTTP, and Prometheus: CPU per report until it can be queried.

A node sends single reports, or as the agent does with ``--every 10``: ten reports as columns, to
the server or to the relay of its rack.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import zstandard
from django.conf import settings

from bench.columns import TEN, as_columns
from bench.cost import calibrate
from bench.store import n_readings, prometheus, redis_cpu_s, rendered, scraped, serving
from bench.table import print_table
from fleet.models import Token
from telemetry.agent.relay import PATH as RELAY
from telemetry.agent.relay import Held
from telemetry.store.hot import HotStore, open_store
from tests.helpers import free_port

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "tests/telemetry/ingest/data/trn2.48xlarge.ndjson"
SAMPLE_ID = b"i-0000002079071820"
PATH = "/api/v1/ingest/neuron-monitor"
N_NODES, N_CORES, N_RACK = 100, 64, 16
# What neuron-monitor's exporter for Prometheus shows of the same report: six series per core,
# four per device, and 32 of the node.
N_EXPORTED = 64 * 6 + 16 * 4 + 32
WARM_UP_S, MEASURED_S = 12, 31
MICRO = 1e6


@dataclass(frozen=True)
class Site:
    """A web server under measurement."""

    port: int
    process: psutil.Process
    secret: str

    def head(self, *lines: str, path: str = PATH) -> bytes:
        """Return the head of a request."""
        first = f"POST {path} HTTP/1.1"
        known = (first, "Host: localhost", f"Authorization: Bearer {self.secret}")
        return "\r\n".join([*known, *lines, "", ""]).encode()

    def cpu_s(self) -> float:
        """Return the CPU seconds that the web server has used."""
        used = self.process.cpu_times()
        return float(used.user + used.system)


def measure(env: Mapping[str, str]) -> None:
    """Let 100 nodes report each second in three ways, Prometheus scrape the same; print all."""
    hot = open_store(settings.REDIS_URL)
    _, secret = Token.issue("bench", Token.Scope.INGEST, now=datetime.now(UTC))
    ways = (one_request_each, one_stream, columns_of_ten, relayed_columns)
    with web_server(dict(env), secret) as site:
        ours_us = [asyncio.run(cpu_per_report_us(site, hot, way)) for way in ways]
    blocks = [block for shard, block in hot.latest().items() if shard.startswith("node:i-bench")]
    readings = n_readings(blocks) / len(blocks)
    pages = [rendered(hot, blocks[0].tick)]
    with serving(pages) as target, prometheus(Path(env["TRNWATCH_DATA_DIR"]), target) as peer:
        peer_s, n_scraped = scraped(*peer)
    peer_us = peer_s / n_scraped * readings * MICRO
    show(ours_us, peer_us, readings=readings)


def show(ours_us: Sequence[float], peer_us: float, *, readings: float) -> None:
    """Print what a report costs by each way, and Prometheus for the same readings."""
    each, live, ten, relayed = ours_us
    print_table(
        f"{N_NODES} real trn2.48xlarge over HTTP at 1 Hz, {readings:.0f} readings in a report",
        [
            ("a request per report, CPU per report", f"{each:.0f} µs"),
            ("a stream per node, CPU per report", f"{live:.0f} µs"),
            (f"{TEN} reports as columns, CPU per report", f"{ten:.0f} µs"),
            (f"the same of {N_RACK} nodes by a relay, CPU per report", f"{relayed:.0f} µs"),
            ("a calibration loop of bench/cost.py", f"{calibration_ms():.1f} ms"),
            ("Prometheus, the same readings", f"{peer_us:.0f} µs"),
            (
                f"Prometheus, the {N_EXPORTED} series of neuron-monitor's own exporter",
                f"{peer_us * N_EXPORTED / readings:.0f} µs",
            ),
            (
                "per core-sample: request, stream, columns, relay, Prometheus",
                per_core(*ours_us, peer_us),
            ),
            ("request / Prometheus", f"{each / peer_us:.1f}"),
            ("columns / Prometheus (the budget is 1/3)", f"{ten / peer_us:.2f}"),
        ],
    )


def calibration_ms() -> float:
    """Return what a loop of known work takes here, at best."""
    times_s = []
    for _ in range(5):
        began_s = time.process_time()
        calibrate()
        times_s.append(time.process_time() - began_s)
    return 1e3 * min(times_s)


def per_core(*figures: float) -> str:
    """Return figures per report as figures per core-sample."""
    return ", ".join(f"{figure / N_CORES:.2f}" for figure in figures) + " µs"


@contextmanager
def web_server(env: dict[str, str], secret: str) -> Iterator[Site]:
    """Run uvicorn as `make up` does."""
    port = free_port()
    options = ["--port", str(port), "--no-access-log", "--log-level", "warning"]
    options += ["--http", "fleet.api.connections:LimitedProtocol", "--timeout-keep-alive", "20"]
    options += ["--no-proxy-headers", "--no-server-header"]
    command = [sys.executable, "-m", "uvicorn", "fleet.asgi:application", *options]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | env)
    try:
        asyncio.run(until_open(port))
        yield Site(port, psutil.Process(process.pid), secret)
    finally:
        process.terminate()
        process.wait()


async def until_open(port: int) -> None:
    """Wait until the port is open."""
    for _ in range(300):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


async def cpu_per_report_us(site: Site, hot: HotStore, way: "Way") -> float:
    """Let every node report; return the CPU per report, web and Redis, in microseconds."""
    until = time.time() + WARM_UP_S + MEASURED_S
    nodes = [asyncio.create_task(way(site, number, until)) for number in range(N_NODES)]
    await asyncio.sleep(WARM_UP_S)
    before_s, n_before = site.cpu_s() + redis_cpu_s(hot), n_reports(hot)
    await asyncio.sleep(MEASURED_S - 1)
    used_s, n = site.cpu_s() + redis_cpu_s(hot) - before_s, n_reports(hot) - n_before
    await asyncio.gather(*nodes)
    return used_s / n * MICRO


def n_reports(hot: HotStore) -> float:
    """Return the number of accepted reports."""
    return hot.counters().get("ingest_reports", 0.0)


def reports(number: int) -> list[bytes]:
    """Return what a node has to say, over and over."""
    lines = SAMPLE.read_bytes().splitlines()
    name = b"i-bench-%08d" % number
    return [line.replace(SAMPLE_ID, name) + b"\n" for line in lines]


async def one_request_each(site: Site, number: int, until: float) -> None:
    """Send a request each second on a connection that is kept."""
    lines = reports(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    await asyncio.sleep(number / N_NODES)
    turn = 0
    while time.time() < until:
        line = lines[turn % len(lines)]
        writer.write(site.head(f"Content-Length: {len(line)}") + line)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"}")
        turn += 1
        await asyncio.sleep(1)
    writer.close()


async def one_stream(site: Site, number: int, until: float) -> None:
    """Send a line each second into one request that goes on."""
    lines = reports(number)
    _, writer = await asyncio.open_connection("127.0.0.1", site.port)
    await asyncio.sleep(number / N_NODES)
    writer.write(site.head("Transfer-Encoding: chunked", path=f"{PATH}?live=1"))
    turn = 0
    while time.time() < until:
        line = lines[turn % len(lines)]
        writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        await writer.drain()
        turn += 1
        await asyncio.sleep(1)
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    writer.close()


async def columns_of_ten(site: Site, number: int, until: float) -> None:
    """Send ten reports every ten seconds on a connection that is kept."""
    await send_columns(site, number, until, n_nodes=1)


async def relayed_columns(site: Site, number: int, until: float) -> None:
    """Send what the nodes of a rack report in ten seconds, as their relay does."""
    if number % N_RACK == 0:
        await send_columns(site, number, until, n_nodes=min(N_RACK, N_NODES - number))


async def send_columns(site: Site, number: int, until: float, *, n_nodes: int) -> None:
    """Send columns of nodes from ``number`` on: of one by itself, of more as a relay does."""
    lines = {each: reports(each) for each in range(number, number + n_nodes)}
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    await asyncio.sleep(TEN * number / N_NODES)
    known = {"authorization": f"Bearer {site.secret}", "content-encoding": "zstd"}
    while time.time() < until:
        now_s = time.time()
        clocks = {"x-trnwatch-at": f"{now_s:.6f}", "x-trnwatch-up": f"{time.monotonic():.6f}"}
        bodies = [
            as_columns(of_node, f"bench-{each:08d}", now_s, pack=zstandard.compress)
            for each, of_node in lines.items()
        ]
        if n_nodes == 1:
            path, body = PATH, bodies[0]
            more = {**clocks, "content-encoding": "zstd", "prefer": "wait=1"}
        else:
            path, more = RELAY, {}
            body = b"".join(Held(PATH, known | clocks, each).encoded() for each in bodies)
        more |= {"content-length": str(len(body)), "content-type": "application/x-ndjson"}
        writer.write(site.head(*map(": ".join, more.items()), path=path) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.findall(rb"content-length: (\d+)", head)[0]))
        await asyncio.sleep(TEN - (time.time() - now_s))
    writer.close()


Way = Callable[[Site, int, float], Coroutine[Any, Any, None]]
