"""Cost of remote write: from the hot store to bytes, and to VictoriaMetrics."""

import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from django.conf import settings

from bench.table import print_table
from telemetry.long_term.remote_write import Endpoint, WriteBatch, WriteClient, batches
from telemetry.long_term.writer import minute_groups, second_chunks
from telemetry.simulate.plan import Plan, RunSpec
from telemetry.simulate.shard import play, start_clock
from telemetry.store import durable
from telemetry.store.hot import HotStore, open_store

SPEC = RunSpec(
    name="wide",
    model="llama2-70b",
    instance="trn2.48xlarge",
    nodes=64,
    tp=32,
    seq_len=4096,
    global_batch=1024,
    compile_s=0,
)
N_TICKS = 60
N_MINUTES = 60
MILLION = 1e6
STARTS_WITHIN_S = 20.0


def measure(_: Mapping[str, str]) -> None:
    """Play a minute and an hour of 64 nodes, and print what it takes to write them."""
    hot = open_store(settings.REDIS_URL)
    start, hour = filled(hot)

    def seconds() -> Iterator[WriteBatch]:
        return batches(second_chunks(hot, start=start, end=start + N_TICKS, every_s=1))

    def minutes() -> Iterator[WriteBatch]:
        groups = minute_groups(start=hour, end=hour + 60 * N_MINUTES)
        return (batch for group in groups for batch in batches(group))

    rows = [*encoding("seconds", seconds), *encoding("minutes", minutes)]
    if shutil.which("victoria-metrics"):
        rows += [*storing("seconds", seconds), *storing("minutes", minutes)]
    print_table("Writing to the long-term store; per million samples, on one core", rows)


def filled(hot: HotStore) -> tuple[int, int]:
    """Put a minute of ticks into the hot tier and an hour of minutes into the durable one."""
    start = int(time.time()) // 60 * 60 - 120
    hour = start // 3600 * 3600 - 7200
    plan = Plan(run=SPEC, seed=1, epoch_s=hour - 3600)
    for shard in plan.shards:
        clock = play(plan, shard, start_clock(plan), hour, every_s=60).clock
        played = play(plan, shard, clock, hour + 60 * N_MINUTES, every_s=20)
        durable.write_rollups(played.span)
        clock = play(plan, shard, played.clock, start - 1, every_s=60).clock
        hot.append(play(plan, shard, clock, start + N_TICKS).span.blocks())
    return start, hour


def encoding(what: str, made: Callable[[], Iterator[WriteBatch]]) -> list[tuple[str, str]]:
    """Return what reading and encoding take, once the names are known."""
    for batch in made():
        batch.body()
    began_s, n_samples, n_bytes = time.process_time(), 0, 0
    for batch in made():
        n_samples += batch.n_samples
        n_bytes += len(batch.body())
    took_s = time.process_time() - began_s
    return [
        (f"{what}: read, encode, compress", f"{took_s / n_samples * MILLION:.2f} s of CPU"),
        (f"{what}: on the wire", f"{n_bytes / n_samples:.1f} bytes per sample"),
    ]


def storing(what: str, made: Callable[[], Iterator[WriteBatch]]) -> list[tuple[str, str]]:
    """Return what delivering to VictoriaMetrics takes, and what it keeps on disk."""
    with tempfile.TemporaryDirectory() as folder, victoria(Path(folder)) as url:
        client = WriteClient(Endpoint(f"{url}/api/v1/write", keep_alive=True), Event())
        began_s = time.perf_counter()
        response = client.deliver(made())
        took_s = time.perf_counter() - began_s
        client.close()
        fetch(f"{url}/internal/force_flush")
        fetch(f"{url}/internal/force_merge")
        n_bytes = settled_bytes(Path(folder) / "data" / "data")
    return [
        (f"{what}: delivered", f"{response.sent / took_s:,.0f} samples per second"),
        (f"{what}: on VictoriaMetrics' disk", f"{n_bytes / response.sent:.2f} bytes per sample"),
    ]


def settled_bytes(folder: Path) -> int:
    """Return how much a folder holds when that no longer changes."""
    before = -1
    while (now := sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())) != before:
        before = now
        time.sleep(2.0)
    return now


@contextmanager
def victoria(folder: Path) -> Iterator[str]:
    """Run VictoriaMetrics."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    options = (f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}")
    command = ["victoria-metrics", *options, "-retentionPeriod=100y", "-loggerLevel=ERROR"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not fetch(f"{url}/health") and time.monotonic() < deadline:
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def fetch(url: str) -> bool:
    """Ask for something; whether there was an answer."""
    try:
        with urllib.request.urlopen(url, timeout=60):
            return True
    except OSError:
        return False
