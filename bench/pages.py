"""Server time and bytes of pages that list nodes, runs and alerts, at a size of the fleet."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
from django.conf import settings
from django.test import Client

from bench.cost import begin, calibrate, jump, play
from bench.fleet import SPEC, create_runs, specs_of
from bench.table import print_table
from fleet.models import Alert, Node, Run
from fleet.simulation.demo import DemoRun, create_run
from fleet.simulation.runs import follow_runs
from telemetry.store.hot import HotStore, open_store

N_FINISHED, N_ALERTS, MOST_OPEN = 100, 200, 40
PAST = timedelta(hours=2)
REPEATS = 40
# So many seconds of all nodes together are played before, as far as the hot tier keeps them.
NODE_SECONDS, LEAST_AGE_S, MOST_AGE_S = 600_000, 25, 900
PATHS = {
    "overview": "/",
    "nodes": "/nodes/",
    "node page 2": "/nodes/?page=2",
    "nodes up": "/nodes/?state=up",
    "node": "/nodes/{node}/",
    "node heat map": "/nodes/{node}/charts/core-heat?window=15m",
    "runs": "/runs/",
    "run": "/runs/{run}/",
    "run phases": "/runs/{run}/charts/phases?window=1h",
    "alerts": "/alerts/",
    "search": "/search?q={node}",
    "service discovery": "/sd/prometheus",
}


def measure(_: Mapping[str, str], *, nodes: int = 100, runs: int = 4) -> dict[str, Any]:
    """Fill an installation, request each page several times, and print times and bytes."""
    settings.ANONYMOUS_READING = True
    hot = open_store(settings.REDIS_URL)
    fill(hot, nodes=nodes, runs=runs)
    node, run = first_of(nodes)
    paths = {name: path.format(node=node, run=run) for name, path in PATHS.items()}
    client = Client(headers={"host": "127.0.0.1"})
    pages, unit_s = {}, []
    for name, path in paths.items():
        # No page may be of nodes that are silent because nothing plays them meanwhile.
        keep_live(hot)
        pages[name] = timed(client, path)
        began_s = time.process_time()
        calibrate()
        unit_s.append(time.process_time() - began_s)
    unit_ms = 1e3 * float(np.median(unit_s))
    rows = [
        (
            f"{name}, {paths[name]}",
            f"p50 {each['p50_ms']:5.0f} ms, p95 {each['p95_ms']:5.0f} ms, "
            f"{each['bytes'] / 1e3:7.1f} kB",
        )
        for name, each in pages.items()
    ]
    title = f"Pages, {nodes:,} nodes in {runs} runs, {N_FINISHED} runs of the past"
    print_table(f"{title}, one at a time; calibration {unit_ms:.1f} ms", rows)
    for each in pages.values():
        each["in_calibrations"] = round(each["p50_ms"] / unit_ms, 3)
    return {"nodes": nodes, "runs": runs, "calibration_ms": round(unit_ms, 2), "pages": pages}


def timed(client: Client, path: str) -> dict[str, float]:
    """Return the CPU time of a page and its size; the first request fills caches."""
    response = client.get(path)
    if response.status_code != 200:
        raise RuntimeError(f"{path} answers {response.status_code}")
    took_ms = []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        client.get(path)
        took_ms.append(1e3 * (time.perf_counter() - began_s))
    p50_ms, p95_ms = np.percentile(took_ms, [50, 95]).tolist()
    return {"p50_ms": round(p50_ms, 1), "p95_ms": round(p95_ms, 1), "bytes": len(response.content)}


def first_of(nodes: int) -> tuple[str, str]:
    """Return the name of a node of the largest run, and that run's."""
    run = Run.objects.active().order_by("-n_nodes").first()
    node = run and run.nodes.order_by("rank").first()
    if run is None or node is None:
        raise LookupError(f"there is no run of {nodes} nodes")
    return node.name, run.name


def keep_live(hot: HotStore) -> None:
    """Play all nodes up to now, and say that trnwatch watches."""
    play(hot, int(time.time()))
    now_s = time.time()
    hot.note({}, {"watched_at_s": now_s, "listening_since_s": now_s - PAST.total_seconds()})


def fill(hot: HotStore, *, nodes: int, runs: int, age_s: int = 0) -> None:
    """Make runs that train, runs that are over, and alerts of both, open and resolved.

    Runs of a given age have no past but their first seconds.
    """
    if age_s:
        begin(hot, create_runs(hot, specs_of(nodes, runs), age_s=age_s))
        jump(hot, int(time.time()))
    else:
        age_s = min(MOST_AGE_S, max(LEAST_AGE_S, NODE_SECONDS // nodes))
        began = create_runs(hot, specs_of(nodes, runs), age_s=age_s)
        play(hot, int(began.timestamp()) + age_s)
    now = datetime.now(UTC).replace(microsecond=0)
    follow_runs(hot, now=now)
    for i in range(N_FINISHED):
        spec = msgspec.structs.replace(SPEC, name=f"over-{i}", nodes=1)
        past = create_run(DemoRun(spec, "LLM", "", "us-east-2b"), started_at=now - PAST)
        past.nodes.all().delete()
        past.finished_at, past.phase = now - timedelta(hours=1), Run.Phase.FINISHED
        past.save()
    active = list(Run.objects.active())
    accused = list(Node.objects.order_by("rank", "name")[: min(MOST_OPEN, nodes)])
    resolved = [alert_of(active[i % len(active)], now=now) for i in range(N_ALERTS)]
    for alert in resolved:
        alert.resolved_at = now - timedelta(hours=1)
    still_open = [alert_of(node.run or active[0], node, now=now) for node in accused]
    Alert.objects.bulk_create([*resolved, *still_open], ignore_conflicts=True)


def alert_of(run: Run, node: Node | None = None, *, now: datetime) -> Alert:
    began = now - (PAST if node is None else timedelta(minutes=5))
    return Alert(
        rule="allreduce_share" if node is None else "step_slow",
        cause="slow_core",
        severity=Alert.Severity.PAGE,
        subject=f"run:{run.name}" if node is None else f"node:{node.name}",
        run=run,
        node=node,
        score=1.3,
        onset_at=began,
        fired_at=began,
        last_seen_at=now,
    )
