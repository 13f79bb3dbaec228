"""The hot store and Prometheus: CPU per million core-samples, bytes per core-tick."""

import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path

import psutil
from django.conf import settings

from bench.table import print_table
from telemetry.blocks import Block
from telemetry.exporter.exposition import write_page
from telemetry.exporter.hardware import HARDWARE, node_families, read_snapshot
from telemetry.simulate.plan import Plan, RunSpec
from telemetry.simulate.shard import play, start_clock
from telemetry.store.hot import HotStore, open_store
from tests.helpers import free_port, prometheus_command, running

SPEC = RunSpec(
    name="side",
    model="llama2-70b",
    instance="trn2.48xlarge",
    nodes=128,
    tp=32,
    seq_len=4096,
    global_batch=2048,
    compile_s=0,
)
N_CORES = 64 * SPEC.nodes
# Training is under way by then, and every phase of a step is seen.
PLAYED_FROM_S, PLAYED_S = 600, 60
PAGES = 12
SCRAPE_WARM_UP_S, SCRAPE_S = 12, 30
MILLION = 1e6


@dataclass
class Costs:
    """CPU seconds of this process and of Redis, and the pages that show the same readings."""

    ours_s: float = 0.0
    redis_s: float = 0.0
    pages: list[bytes] = field(default_factory=list)


def measure(env: Mapping[str, str]) -> None:
    """Store a minute of 128 nodes, let Prometheus scrape the same, and print both."""
    hot = open_store(settings.REDIS_URL)
    ticks = played(int(time.time()) - PLAYED_S)
    costs = stored(hot, ticks)
    folder = Path(env["TRNWATCH_DATA_DIR"])
    with serving(costs.pages) as target, prometheus(folder, target) as (process, port):
        peer_s, n_scraped = scraped(process, port)
    n_core_samples = N_CORES * PLAYED_S
    n_samples = PLAYED_S * n_readings(ticks[0])
    store_s = costs.ours_s + costs.redis_s
    per_core = store_s / n_core_samples * MILLION
    peer_per_core = peer_s / n_scraped * n_samples / n_core_samples * MILLION
    print_table(
        f"{SPEC.nodes} x {SPEC.instance}, {n_samples // PLAYED_S:,} readings a second",
        [
            ("store, CPU per million core-samples", f"{per_core:.3f} s"),
            ("  of it Redis", f"{costs.redis_s / n_core_samples * MILLION:.3f} s"),
            ("Prometheus, the same readings", f"{peer_per_core:.3f} s"),
            ("store / Prometheus", f"1 / {peer_per_core / per_core:.0f}"),
            ("store, CPU per reading", f"{store_s / n_samples * MILLION:.3f} µs"),
            ("Prometheus, CPU per reading", f"{peer_s / n_scraped * MILLION:.3f} µs"),
            ("hot bytes per core-tick", f"{hot_bytes(hot) / n_core_samples:.2f}"),
        ],
    )


def played(epoch_s: int) -> list[list[Block]]:
    """Play the fleet: for each tick, the blocks of all its shards."""
    plan = Plan(run=SPEC, seed=1, epoch_s=epoch_s - PLAYED_FROM_S)
    spans = []
    for shard in plan.shards:
        clock = play(plan, shard, start_clock(plan), epoch_s, every_s=60).clock
        spans.append(play(plan, shard, clock, epoch_s + PLAYED_S).span)
    return [list(blocks) for blocks in zip(*(span.blocks() for span in spans), strict=True)]


def n_readings(blocks: Sequence[Block]) -> int:
    """Count the values of one tick."""
    return sum(array.size for block in blocks for array in block.values.values())


def stored(hot: HotStore, ticks: Sequence[Sequence[Block]]) -> Costs:
    """Commit tick by tick as the workers do; the last ticks are rendered too, off the clock."""
    clocks: dict[str, bytes | None] = dict.fromkeys(block.shard for block in ticks[0])
    costs = Costs()
    for i, blocks in enumerate(ticks):
        redis_before_s, before_s = redis_cpu_s(hot), time.process_time()
        for block in blocks:
            before, after = clocks[block.shard], str(block.tick).encode()
            hot.commit(block.shard, before=before, after=after, blocks=[block], steps=None)
            clocks[block.shard] = after
        costs.ours_s += time.process_time() - before_s
        costs.redis_s += redis_cpu_s(hot) - redis_before_s
        if i >= len(ticks) - PAGES:
            costs.pages.append(rendered(hot, blocks[0].tick))
    return costs


def redis_cpu_s(hot: HotStore) -> float:
    """Return the CPU seconds that Redis has used."""
    used = hot.execute("INFO", "cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def hot_bytes(hot: HotStore) -> int:
    """Return what the minutes of blocks take in Redis, its own overhead included."""
    keys = list(hot.execute("KEYS", "hot:side/*")) + list(hot.execute("KEYS", "hot:layout:*"))
    return sum(hot.execute_all(("MEMORY USAGE", key, "SAMPLES", 0) for key in keys))


def rendered(hot: HotStore, tick: int) -> bytes:
    """Write the newest tick as a page of the same readings only."""
    names = {spec.name for spec in HARDWARE.values()}
    families = node_families(read_snapshot(hot, now_s=tick))
    return write_page(family for family in families if family.spec.name in names)


@contextmanager
def serving(pages: Sequence[bytes]) -> Iterator[str]:
    """Serve one page after another; nothing is rendered while Prometheus is measured."""
    turn = cycle(pages)

    class Handler(BaseHTTPRequestHandler):
        """Answers each scrape with the next page."""

        def do_GET(self) -> None:
            page = next(turn)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[tuple[psutil.Process, int]]:
    """Run Prometheus, scraping the target every second."""
    jobs = [{"job_name": "side", "static_configs": [{"targets": [target]}]}]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
    port = free_port()
    command = prometheus_command(folder / "prometheus", port, config)
    with running(command, folder / "prometheus.log") as process:
        yield psutil.Process(process.pid), port


def scraped(process: psutil.Process, port: int) -> tuple[float, float]:
    """Return the CPU seconds Prometheus used in a while, and the samples it took in."""
    time.sleep(SCRAPE_WARM_UP_S)
    before, n_before = process.cpu_times(), n_appended(port)
    time.sleep(SCRAPE_S)
    after, n_after = process.cpu_times(), n_appended(port)
    return after.user + after.system - before.user - before.system, n_after - n_before


def n_appended(port: int) -> float:
    """Ask Prometheus how many samples it has taken in."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    name = "prometheus_tsdb_head_samples_appended_total"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
