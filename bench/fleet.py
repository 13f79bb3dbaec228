"""A large fleet at one tick a second: simulated, stored and evaluated by real workers."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil
from django.conf import settings

from bench.installation import ROOT
from bench.table import print_table
from fleet.models import Alert
from fleet.ops.services import WORKERS
from fleet.simulation.demo import DemoRun, create_run
from fleet.simulation.runs import publish_plans
from telemetry import catalog
from telemetry.simulate.plan import RunSpec
from telemetry.store.hot import HotStore, open_store
from telemetry.tasks import plan_in

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
START_WITHIN_S = 90
SETTLE_S = 5
MEASURE_S = 30
SEQUENCES_PER_NODE = 16
CELERY = (sys.executable, "-m", "celery", "--quiet", "--app", "fleet.celery")
SOLO = (
    *("worker", "--pool", "solo", "--loglevel", "ERROR"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
)


def measure(
    env: Mapping[str, str], *, nodes: int = SPEC.nodes, seconds: int = MEASURE_S
) -> dict[str, float]:
    """Let the workers of `make up` run the fleet in real time; print and return the cost."""
    spec = msgspec.structs.replace(SPEC, nodes=nodes, global_batch=SEQUENCES_PER_NODE * nodes)
    create_fleet(spec)
    hot = open_store(settings.REDIS_URL)
    with workers(Path(settings.DATA_DIR), env) as processes:
        until_under_way(hot, spec)
        before_s, before, began = cpu_s(processes), hot.counters(), time.monotonic()
        time.sleep(seconds)
        lasted_s = time.monotonic() - began
        used_s = {name: s - before_s[name] for name, s in cpu_s(processes).items()}
        after, newest, now_s = hot.counters(), hot.newest(), time.time()
    made, late = (after.get(name, 0) - before.get(name, 0) for name in ("ticks", "ticks_late"))
    n_cores = spec.nodes * catalog.instance(spec.instance).n_cores
    print_table(
        f"{spec.nodes:,} x {spec.instance}, {n_cores:,} cores, {lasted_s:.0f} s in real time",
        [
            *cpu_rows(used_s, lasted_s, n_samples=n_cores * made / len(newest)),
            ("shard-ticks stored", f"{made:.0f} of {len(newest) * lasted_s:.0f}"),
            ("of them late", f"{late:.0f}"),
            ("oldest shard behind now", f"{now_s - min(newest.values()):.1f} s"),
            ("Redis", f"{hot.bytes_used() / 1e6:.0f} MB"),
            ("alerts on the healthy fleet", f"{Alert.objects.count()}"),
        ],
    )
    return {
        "nodes": spec.nodes,
        "seconds": lasted_s,
        "cores_used": sum(used_s.values()) / lasted_s,
        "ticks": int(made),
        "ticks_expected": round(len(newest) * lasted_s),
        "ticks_late": int(late),
        "oldest_s": now_s - min(newest.values()),
        "redis_bytes": hot.bytes_used(),
        "alerts": Alert.objects.count(),
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


def until_under_way(hot: HotStore, spec: RunSpec) -> None:
    """Wait until every shard has been ticked, and a little longer."""
    deadline = time.monotonic() + START_WITHIN_S
    n_shards = len(plan_in(hot.plans()[spec.name]).shards)
    while len(hot.newest()) < n_shards:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(hot.newest())} of {n_shards} shards are ticked")
        time.sleep(0.2)
    time.sleep(SETTLE_S)


def create_fleet(spec: RunSpec) -> None:
    """Make the run and its nodes, and hand the plan to the workers."""
    now = datetime.now(UTC).replace(microsecond=0)
    create_run(DemoRun(spec, "LLM", "a large fleet", "us-east-2b"), started_at=now)
    publish_plans(open_store(settings.REDIS_URL), now=now)


@contextmanager
def workers(folder: Path, env: Mapping[str, str]) -> Iterator[dict[str, psutil.Process]]:
    """Run workers and beat for as long as the block lasts; Redis is among them."""
    commands = {
        **{
            name: (*CELERY, *SOLO, "--queues", queues, "--hostname", f"{name}@bench")
            for name, queues in WORKERS.items()
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


def cpu_s(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    """Return the CPU seconds each process has used so far."""
    times = {name: process.cpu_times() for name, process in processes.items()}
    return {name: used.user + used.system for name, used in times.items()}
