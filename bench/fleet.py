"""A large fleet at one tick a second: simulated, stored and evaluated by real workers."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import psutil
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from bench.installation import ROOT
from bench.table import print_table
from fleet.models import Alert
from fleet.ops.services import workers as workers_of
from fleet.ops.sockets import free_port
from fleet.simulation.demo import DemoRun, create_run
from fleet.simulation.runs import publish_plans
from telemetry import catalog
from telemetry.simulate.plan import RunSpec
from telemetry.store.hot import HotStore, open_store
from telemetry.tasks import batches_due, plan_in, simulate_shards

SPEC = RunSpec(
    name="big",
    model="llama2-70b",
    instance="trn2.48xlarge",
    nodes=1000,
    tp=32,
    seq_len=4096,
    global_batch=16000,
    compile_s=0,
)
START_WITHIN_S = 180
SETTLE_S, BEHIND_S = 5, 2.5
MEASURE_S = 30
# Older than all that is read of a run each second: ECC counts of ten minutes.
AGE_S = 660
PAST_AT_ONCE_S = 20
SEQUENCES_PER_NODE = 16
# With so many runs or more, one has LARGE_NODES, and one in so many a single node.
SINGLES, LARGE_NODES = 10, 4_000
CELERY = (sys.executable, "-m", "celery", "--quiet", "--app", "fleet.celery")
SOLO = (
    *("worker", "--pool", "solo", "--loglevel", "ERROR"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
)


def measure(
    env: Mapping[str, str],
    *,
    nodes: int = SPEC.nodes,
    seconds: int = MEASURE_S,
    runs: int = 1,
    age: int = AGE_S,
) -> dict[str, Any]:
    """Let the workers of `make up` run the fleet in real time; print and return the cost."""
    if runs > nodes:
        raise SystemExit(f"bench fleet: --runs: {runs} is more than --nodes {nodes}.")
    hot = open_store(settings.REDIS_URL)
    create_fleet(hot, specs_of(nodes, runs), age_s=age)
    folder = Path(settings.DATA_DIR)
    with workers(folder, env) as processes, overview(folder, env) as (web, tab):
        until_under_way(hot)
        running = processes | web
        before_s, before, began = cpu_s(running), hot.counters(), time.monotonic()
        n_events, n_bytes = tab.n_events, tab.n_bytes
        time.sleep(seconds)
        lasted_s = time.monotonic() - began
        n_events, n_bytes = tab.n_events - n_events, tab.n_bytes - n_bytes
        used_s = {name: s - before_s[name] for name, s in cpu_s(running).items()}
        ended = before_s.keys() - used_s.keys()
        after, newest, now_s = hot.counters(), hot.newest(), time.time()
    made, late = (after.get(name, 0) - before.get(name, 0) for name in ("ticks", "ticks_late"))
    n_cores = nodes * catalog.instance(SPEC.instance).n_cores
    print_table(
        f"{nodes:,} x {SPEC.instance} in {runs} runs, {n_cores:,} cores, {lasted_s:.0f} s",
        [
            *cpu_rows(used_s, lasted_s, n_samples=n_cores * max(1, made) / len(newest)),
            ("shard-ticks stored", f"{made:.0f} of {len(newest) * lasted_s:.0f}"),
            ("of them late", f"{late:.0f}"),
            ("oldest shard behind now", f"{now_s - min(newest.values()):.1f} s"),
            ("Redis", f"{hot.bytes_used() / 1e6:.0f} MB"),
            (
                "an open overview",
                f"{n_events / lasted_s:.1f} events, {n_bytes / lasted_s / 1e3:.1f} kB a second",
            ),
            ("programs that ended meanwhile", ", ".join(sorted(ended)) or "none"),
            ("alerts on the healthy fleet", f"{Alert.objects.count()}"),
        ],
    )
    return {
        "nodes": nodes,
        "runs": runs,
        "seconds": lasted_s,
        "cores_used": sum(used_s.values()) / lasted_s,
        "cores_by_program": {name: round(s / lasted_s, 3) for name, s in used_s.items()},
        "ticks": int(made),
        "ticks_expected": round(len(newest) * lasted_s),
        "ticks_late": int(late),
        "oldest_s": now_s - min(newest.values()),
        "redis_bytes": hot.bytes_used(),
        "overview_events": n_events,
        "overview_bytes_per_s": round(n_bytes / lasted_s),
        "alerts": Alert.objects.count(),
        "ended": sorted(ended),
    }


def cpu_rows(
    used_s: Mapping[str, float], lasted_s: float, *, n_samples: float
) -> list[tuple[str, str]]:
    """Return what each process used, all of them together, and what was left."""
    total_s, n_cpus = sum(used_s.values()), len(psutil.Process().cpu_affinity() or ())
    return [
        *((f"{name}, CPU", f"{s / lasted_s:.2f} of a core") for name, s in used_s.items()),
        ("all together", f"{total_s / lasted_s:.2f} of {n_cpus} cores"),
        ("headroom", f"{n_cpus * lasted_s / total_s:.1f} x"),
        ("CPU per million core-samples", f"{total_s / n_samples * 1e6:.2f} s"),
    ]


def until_under_way(hot: HotStore) -> None:
    """Wait until every shard has been ticked from now on, and a little longer."""
    deadline, since_s = time.monotonic() + START_WITHIN_S, time.time()
    shards = {shard for plan in hot.plans().values() for shard in plan_in(plan).shards}
    while waiting := shards - {name for name, tick in hot.newest().items() if tick >= since_s}:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(waiting)} of {len(shards)} shards are not ticked")
        time.sleep(0.2)
    # The pause between the past and the first tick is made up for first.
    while min(hot.newest().values()) < time.time() - BEHIND_S and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(SETTLE_S)


def specs_of(nodes: int, runs: int) -> list[RunSpec]:
    """Divide nodes over runs: of many, one is large, and some have a single node."""
    singles = runs // SINGLES
    large = min(LARGE_NODES, nodes // 2) if singles else 0
    rest = runs - singles - bool(large)
    left = nodes - singles - large
    sizes = [left // rest + (i < left % rest) for i in range(rest)]
    return [
        msgspec.structs.replace(
            SPEC, name=f"big-{i}", nodes=size, global_batch=SEQUENCES_PER_NODE * size
        )
        for i, size in enumerate([*[large] * bool(large), *sizes, *[1] * singles])
    ]


def create_fleet(hot: HotStore, specs: Sequence[RunSpec], *, age_s: int) -> None:
    """Make the runs and their nodes, hand the plans to the workers, and play the past.

    What evaluates a run reads its last minutes: a young run would cost less.
    """
    began = create_runs(hot, specs, age_s=age_s)
    played_s = int(began.timestamp())
    while (left_s := int(time.time()) - played_s) > PAST_AT_ONCE_S:
        played_s += min(left_s, PAST_AT_ONCE_S)
        for batch in batches_due(hot):
            simulate_shards(batch, played_s)


def create_runs(hot: HotStore, specs: Sequence[RunSpec], *, age_s: int) -> datetime:
    """Make the runs and their nodes, and hand the plans to the workers; return when they began."""
    now = datetime.now(UTC).replace(microsecond=0)
    began = now - timedelta(seconds=age_s)
    for spec in specs:
        create_run(DemoRun(spec, "LLM", "a large fleet", "us-east-2b"), started_at=began)
    publish_plans(hot, now=now)
    return began


@contextmanager
def workers(folder: Path, env: Mapping[str, str]) -> Iterator[dict[str, psutil.Process]]:
    """Run workers and beat for as long as the block lasts; Redis is among them."""
    commands = {
        **{
            name: (*CELERY, *SOLO, "--queues", queues, "--hostname", f"{name}@bench")
            for name, queues in workers_of(settings.WATCHERS).items()
        },
        "beat": (*CELERY, "beat", "--schedule", str(folder / "beat"), "--pidfile", ""),
    }
    with (folder / "celery.log").open("wb") as log:
        running = {
            name: subprocess.Popen(command, cwd=ROOT, env=dict(env), stdout=log, stderr=log)
            for name, command in commands.items()
        }
        redis = next(
            child
            for child in psutil.Process().children()
            if "redis-server" in " ".join(child.cmdline())
        )
        try:
            yield {n: psutil.Process(p.pid) for n, p in running.items()} | {"redis": redis}
        finally:
            for process in running.values():
                process.kill()
                process.wait()


@dataclass
class Tab:
    """What a browser that holds an overview open has received."""

    n_events: int = 0
    n_bytes: int = 0

    def read(self, response: HTTPResponse) -> None:
        with suppress(OSError, ValueError):
            while line := response.readline():
                self.n_events += line.startswith(b"event:")
                self.n_bytes += len(line)


@contextmanager
def overview(
    folder: Path, env: Mapping[str, str]
) -> Iterator[tuple[dict[str, psutil.Process], Tab]]:
    """Run the web servers, and hold an overview open as a person who is signed in."""
    headers = signed_in()
    with web_servers(folder, env) as (port, servers):
        page = fetched(port, "/", headers)
        if page is None or page.status != HTTPStatus.OK:
            raise RuntimeError(f"the overview answers {page and page.status}")
        tab, stream = Tab(), fetched(port, "/live?topic=overview", headers)
        Thread(target=tab.read, args=(stream,), daemon=True).start()
        yield servers, tab


def signed_in() -> dict[str, str]:
    """Return the headers of a person who is signed in."""
    client = Client()
    client.force_login(User.objects.get_or_create(username="bench")[0])
    name = settings.SESSION_COOKIE_NAME
    return {"Cookie": f"{name}={client.cookies[name].value}"}


@contextmanager
def web_servers(
    folder: Path, env: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, psutil.Process]]]:
    """Run the web servers; gives their port and processes, once they serve."""
    port = free_port()
    command = (sys.executable, "-m", "fleet.ops.web_server", "--port", str(port))
    with (folder / "web.log").open("wb") as log:
        parent = subprocess.Popen(command, cwd=ROOT, env=dict(env), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_WITHIN_S
        while fetched(port, "/healthz", {}) is None:
            if time.monotonic() > deadline or parent.poll() is not None:
                raise TimeoutError(f"no page: {(folder / 'web.log').read_text()}")
            time.sleep(0.2)
        servers = [psutil.Process(parent.pid), *psutil.Process(parent.pid).children()]
        yield port, {f"web-{i}": process for i, process in enumerate(servers)}
    finally:
        parent.terminate()
        parent.wait()


def fetched(port: int, path: str, headers: Mapping[str, str]) -> HTTPResponse | None:
    """Ask for a page or stream; None while no server listens."""
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", path, headers=dict(headers))
        return connection.getresponse()
    except ConnectionError:
        return None


def cpu_s(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    """Return the CPU seconds each process has used so far, with children that ended."""
    times = {
        name: process.cpu_times() for name, process in processes.items() if process.is_running()
    }
    return {
        name: used.user + used.system + used.children_user + used.children_system
        for name, used in times.items()
    }
