"""Scraped pages: CPU against prometheus-client's writer, and memory by size."""

import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.conf import settings
from django.utils import timezone
from prometheus_client import Metric, generate_latest

from bench.table import print_table
from fleet.metrics.collectors import fleet_registry
from fleet.metrics.node_collectors import NeuronCollector
from fleet.models import Node, Run
from fleet.simulation.runs import create_run
from telemetry.exporter.exposition import Collected, write_page
from telemetry.simulate.plan import Plan, RunSpec
from telemetry.simulate.shard import play, start_clock
from telemetry.store.hot import open_store

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
# Nodes that make about 10,000, 100,000 and 1,000,000 series, drop-in names included.
SIZES = (8, 74, 740)
COMPARED = 74
REPEATS = 5
PER = 100_000
MB = 1e6


def measure(_: Mapping[str, str]) -> None:
    """Stream pages of three sizes, each in its own process; compare one with its peer."""
    rows = []
    for n_nodes in SIZES:
        report_once(n_nodes)
        done = streamed()
        per_100k_ms = done["cpu_s"] / done["n_series"] * PER * 1e3
        rows.append(
            (
                f"{done['n_series']:,} series, {done['n_bytes'] / MB:.1f} MB",
                f"{(done['peak'] - done['before']) / MB:.1f} MB more at most, "
                f"{done['peak'] / MB:.0f} MB in all; longest piece "
                f"{done['longest_piece'] / 1e3:.0f} kB; {per_100k_ms:.0f} ms per {PER:,}",
            )
        )
        if n_nodes == COMPARED:
            compare()
    print_table(
        "/metrics and /metrics/neuron as streams, memory of the process that writes it", rows
    )


def streamed() -> dict[str, Any]:
    """Write the page in a fresh process, and return what it needed."""
    command = [sys.executable, "-m", "bench.scrape_memory"]
    done = subprocess.run(command, check=True, capture_output=True, env=dict(os.environ))
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def families() -> list[Metric]:
    """Return every family of both pages, read again."""
    hot, now = open_store(settings.REDIS_URL), timezone.now()
    registry, neuron = fleet_registry(hot, now=now), NeuronCollector(hot, now=now)
    return [*registry.collect(), *neuron.collect()]


def held(found: Iterable[Metric]) -> Collected:
    """Hold the samples of families that have any, so that only the writing is measured."""
    metrics = []
    for family in found:
        metric = Metric(family.name, family.documentation, family.type)
        metric.samples = list(family.samples)
        if metric.samples:
            metrics.append(metric)
    return Collected(metrics)


def compare() -> None:
    """Write the page with both, and print what each took."""
    page, found = write_page(families()), families()
    n_series = sum(not line.startswith(b"#") for line in page.splitlines())
    made = held(found)
    whole_s = cpu_s(lambda: write_page(families())) / n_series * PER
    peer_s = cpu_s(lambda: generate_latest(made)) / n_series * PER
    packed_s = cpu_s(lambda: gzip.compress(page, compresslevel=1)) / n_series * PER
    typed = [family for family in found if family.type != "unknown"]
    same = generate_latest(held(typed)) == write_page(typed)
    print_table(
        f"both pages, {n_series:,} series, {len(page) / MB:.1f} MB; per {PER:,} series",
        [
            ("stores to text", f"{whole_s * 1e3:.0f} ms"),
            ("generate_latest, writing alone", f"{peer_s * 1e3:.0f} ms"),
            ("ours / generate_latest", f"1 / {peer_s / whole_s:.1f}"),
            ("gzip, where the scraper asks for it", f"{packed_s * 1e3:.0f} ms more"),
            ("same bytes, but for counters without _total", "yes" if same else "NO"),
        ],
    )


def report_once(n_nodes: int) -> None:
    """Empty the stores, and let this many training nodes report once, just now."""
    hot, now = open_store(settings.REDIS_URL), int(time.time())
    hot.execute("FLUSHDB")
    Node.objects.all().delete()
    Run.objects.all().delete()
    spec = msgspec.structs.replace(SPEC, nodes=n_nodes, global_batch=16 * n_nodes)
    create_run(spec, started_at=datetime.fromtimestamp(now - 600, UTC), zone="us-east-2b")
    plan = Plan(run=spec, seed=1, epoch_s=now - 600)
    for shard in plan.shards:
        clock = play(plan, shard, start_clock(plan), now - 1, every_s=60).clock
        hot.append(play(plan, shard, clock, now).span.blocks())


def cpu_s(work: Callable[[], object]) -> float:
    """Return the median CPU seconds of a function."""
    took = []
    for _ in range(REPEATS):
        before_s = time.process_time()
        work()
        took.append(time.process_time() - before_s)
    return statistics.median(took)
