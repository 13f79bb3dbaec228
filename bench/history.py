"""Rollups in the database: write, read and measure one day of the demo fleet."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
from django.conf import settings
from django.db import connection

from bench.table import print_table
from fleet.simulation.demo import FLEET
from telemetry import catalog
from telemetry.simulate.plan import Plan
from telemetry.simulate.shard import PlayedShard, play, start_clock
from telemetry.store import durable
from telemetry.store.history import node_series, run_steps
from telemetry.store.hot import open_store
from telemetry.units import DAY_S

THINNED_S = 10
REPEATS = 7


def measure(env: Mapping[str, str]) -> None:
    """Write a day, read it, and print what it took."""
    end = int(time.time()) // 3600 * 3600
    start, hot = end - DAY_S, open_store(settings.REDIS_URL)
    before_bytes, written_s, n_cores, n_nodes = disk_bytes(env), 0.0, 0, 0
    for each in FLEET:
        spec = msgspec.structs.replace(each.spec, compile_s=0)
        days = played_day(Plan(run=spec, seed=1, epoch_s=start - 600), start, end)
        n_cores += spec.nodes * catalog.instance(spec.instance).n_cores
        n_nodes += spec.nodes
        before_s = time.perf_counter()
        for day in days:
            durable.write_rollups(day.span)
        durable.write_steps(days[0].steps)
        written_s += time.perf_counter() - before_s
    minutes_bytes = disk_bytes(env) - before_bytes
    run = FLEET[0].spec
    ask = partial(node_series, hot, shard=f"{run.name}/0", node=run.node_names[0], start=start)
    series_s = wall_s(lambda: ask(metric="core_utilization_ratio", end=end - 1))
    steps_s = wall_s(lambda: run_steps(hot, run.name, start_s=start, end_s=end))
    began_s = time.process_time()
    durable.merge_old_hours(now_s=end + 4 * DAY_S, until_s=math.inf, clock=time.monotonic)
    merged_s, merged_bytes = time.process_time() - began_s, disk_bytes(env) - before_bytes
    print_table(
        f"24 h of {n_nodes} nodes, {n_cores:,} cores, in {connection.vendor}",
        [
            ("rollups and all steps written", f"{written_s:.2f} s"),
            ("a node's day of every core read", f"{series_s * 1e3:.0f} ms"),
            ("a run's day of steps read", f"{steps_s * 1e3:.0f} ms"),
            (
                "a node's day of minutes and steps",
                f"{minutes_bytes / n_nodes / 1e3:.0f} kB",
            ),
            ("bytes per core-sample on disk", f"{minutes_bytes / (n_cores * DAY_S):.3f}"),
            ("a node's day of ten minutes and steps", f"{merged_bytes / n_nodes / 1e3:.0f} kB"),
            ("CPU to merge a node's day", f"{merged_s / n_nodes * 1e3:.0f} ms"),
        ],
    )


def played_day(plan: Plan, start: int, end: int) -> list[PlayedShard]:
    """Play every shard of a run for a day."""
    days = []
    for shard in plan.shards:
        clock = play(plan, shard, start_clock(plan), start - 1, every_s=60).clock
        days.append(play(plan, shard, clock, end - 1, every_s=THINNED_S))
    return days


def disk_bytes(env: Mapping[str, str]) -> int:
    """Return what the database takes on disk."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return sum(path.stat().st_size for path in Path(env["TRNWATCH_DATA_DIR"]).glob("*.sqlite3*"))


def wall_s(work: Callable[[], object]) -> float:
    """Return the median time of doing some work."""
    took = []
    for _ in range(REPEATS):
        before_s = time.perf_counter()
        work()
        took.append(time.perf_counter() - before_s)
    return statistics.median(took)
