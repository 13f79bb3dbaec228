"""Server time of every page, with 100 nodes and the history of 100 runs."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
from django.conf import settings
from django.test import Client

from bench.table import print_table
from fleet.models import Alert, Run
from fleet.simulation.demo import DemoRun, create_run
from fleet.simulation.demo_history import simulate_history
from telemetry.simulate.plan import RunSpec
from telemetry.store.hot import open_store

SPEC = RunSpec(
    name="busy",
    model="llama2-13b",
    instance="trn2.48xlarge",
    nodes=25,
    tp=8,
    seq_len=4096,
    global_batch=400,
    compile_s=0,
)
N_RUNS, N_FINISHED, N_ALERTS = 4, 100, 200
PAST = timedelta(hours=2)
REPEATS = 40
PATHS = (
    "/",
    "/nodes/",
    "/nodes/busy-0-03/",
    "/runs/",
    "/runs/busy-0/",
    "/alerts/",
    "/nodes/busy-0-03/charts/core-heat?window=15m",
    "/runs/busy-0/charts/phases?window=1h",
)


def measure(_: Mapping[str, str]) -> None:
    """Fill an installation, request each page several times, and print the times."""
    settings.ANONYMOUS_READING = True
    fill(now=datetime.now(UTC).replace(microsecond=0))
    client = Client(headers={"host": "127.0.0.1"})
    rows = []
    for path in PATHS:
        status = client.get(path).status_code
        took_s = np.array([_seconds(client, path) for _ in range(REPEATS)])
        p50_s, p95_s = np.percentile(took_s, [50, 95])
        figures = f"p50 {p50_s * 1e3:4.0f} ms, p95 {p95_s * 1e3:4.0f} ms"
        rows.append((path, figures if status == 200 else f"answered {status}"))
    n_nodes = N_RUNS * SPEC.nodes
    print_table(f"Pages, {n_nodes} nodes, {N_FINISHED} runs of the past, one at a time", rows)


def _seconds(client: Client, path: str) -> float:
    began = time.perf_counter()
    client.get(path)
    return time.perf_counter() - began


def fill(*, now: datetime) -> None:
    """Make runs that train, runs that are over, and alerts of both."""
    hot = open_store(settings.REDIS_URL)
    for i in range(N_RUNS):
        spec = msgspec.structs.replace(SPEC, name=f"busy-{i}")
        run = create_run(DemoRun(spec, "LLM", "", "us-east-2b"), started_at=now - PAST)
        simulate_history(hot, run, [], now=now)
    for i in range(N_FINISHED):
        spec = msgspec.structs.replace(SPEC, name=f"over-{i}", nodes=1)
        past = create_run(DemoRun(spec, "LLM", "", "us-east-2b"), started_at=now - PAST)
        past.nodes.all().delete()
        past.finished_at, past.phase = now - timedelta(hours=1), Run.Phase.FINISHED
        past.save()
    Alert.objects.bulk_create(
        Alert(
            rule="allreduce_share",
            cause="slow_core",
            severity=Alert.Severity.PAGE,
            subject=f"run:busy-{i % N_RUNS}",
            run=Run.objects.get(name=f"busy-{i % N_RUNS}"),
            score=1.3,
            onset_at=now - PAST,
            fired_at=now - PAST,
            last_seen_at=now - PAST,
            resolved_at=now - timedelta(hours=1),
        )
        for i in range(N_ALERTS)
    )
