"""How an installation grows with its fleet: bytes of each store and page, and CPU."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.test import Client

from bench.cost import begin, calibrate, jump, jump_ahead, play
from bench.fleet import create_runs, specs_of
from bench.history import disk_bytes
from bench.table import print_table
from fleet.alerts import evaluate
from fleet.alerts.evaluate import watch
from fleet.simulation.runs import follow_runs
from telemetry import tasks
from telemetry.store.hot import HotStore, open_store
from telemetry.units import DAY_S, MINUTE_S

# Nodes, and how many seconds of one minute are played: all of it where that is quick.
SIZES = {10: 60, 100: 60, 1_000: 60, 10_000: 8, 31_250: 8}
NODES_PER_RUN, AGE_S, WARM_S = 62.5, 900, 4
TARGETS_READ = 8


def measure(env: Mapping[str, str], *, nodes: int = 31_250) -> dict[str, Any]:
    """Play some seconds of fleets up to a size; print what each takes."""
    settings.ANONYMOUS_READING = True
    sizes = {}
    for n in (n for n in SIZES if n <= nodes):
        sizes[n] = growth_of(env, n, ticks=SIZES[n])
        rows = [(name, f"{figure:,.2f}") for name, figure in sizes[n].items()]
        print_table(f"{n:,} nodes", rows)
    return {"sizes": sizes}


def growth_of(env: Mapping[str, str], nodes: int, *, ticks: int) -> dict[str, float]:
    """Return bytes and CPU of one size; CPU is of a second, in calibration loops."""
    call_command("flush", verbosity=0, interactive=False)
    hot = open_store(settings.REDIS_URL)
    hot.execute("FLUSHDB")
    evaluate.WATCHES.clear()
    runs = max(1, round(nodes / NODES_PER_RUN))
    begin(hot, create_runs(hot, specs_of(nodes, runs), age_s=AGE_S))
    first = int(time.time()) // MINUTE_S * MINUTE_S - 2 * MINUTE_S
    jump(hot, first - 1)
    spent = dict.fromkeys(("play", "watch", "calibration"), 0.0)
    for second in range(first, first + ticks):
        now = datetime.fromtimestamp(second, UTC)
        began_s = time.process_time()
        play(hot, second)
        spent["play"] += time.process_time() - began_s
        # The first looks read the last minutes, and a long run of looks is not needed.
        if second < first + 2 * WARM_S:
            began_s = time.process_time()
            follow_runs(hot, now=now)
            watch(hot, now=now)
            if second >= first + WARM_S:
                spent["watch"] += time.process_time() - began_s
        began_s = time.process_time()
        calibrate()
        spent["calibration"] += time.process_time() - began_s
    minute_keys = [f"hot:{shard}:{first}" for shard in hot.newest()]
    hot_bytes = sum(hot.execute_all(("MEMORY USAGE", key, "SAMPLES", 0) for key in minute_keys))
    unit_s = spent["calibration"] / ticks
    before_bytes = disk_bytes(env)
    began_s = time.process_time()
    tasks.roll_up()
    rolled_up_s = time.process_time() - began_s
    minute_bytes = disk_bytes(env) - before_bytes
    return {
        "runs": float(runs),
        "redis_mb": hot_bytes / ticks * settings.HOT_KEEP_S / 1e6,
        "database_mb_a_day": minute_bytes * DAY_S / MINUTE_S / 1e6,
        **scraped_bytes(hot),
        "play_calibrations": spent["play"] / ticks / unit_s,
        "watch_calibrations": spent["watch"] / WARM_S / unit_s,
        "roll_up_calibrations": rolled_up_s / MINUTE_S / unit_s,
        "calibration_ms": 1e3 * unit_s,
    }


def scraped_bytes(hot: HotStore) -> dict[str, float]:
    """Return what Prometheus reads each time, from a sample of its targets."""
    jump_ahead(hot)
    client = Client(headers={"host": "127.0.0.1"})
    listed = client.get("/sd/prometheus")
    targets = [each["labels"] for each in listed.json()]
    largest = n_series = n_bytes = 0
    step = max(1, len(targets) // 2 // TARGETS_READ)
    # Each part or node is two targets: its own page, and that of AWS's names.
    read = [labels for i in range(0, len(targets), 2 * step) for labels in targets[i : i + 2]]
    for labels in read:
        start = "__param_"
        asked = {k.removeprefix(start): v for k, v in labels.items() if k.startswith(start)}
        page = client.get(labels["__metrics_path__"], asked).getvalue()
        largest, n_bytes = max(largest, len(page)), n_bytes + len(page)
        n_series += sum(not line.startswith(b"#") for line in page.splitlines())
    scale = len(targets) / len(read)
    return {
        "targets": float(len(targets)),
        "targets_list_mb": len(listed.content) / 1e6,
        "largest_target_mb": largest / 1e6,
        "scrape_mb": n_bytes * scale / 1e6,
        "series_million": n_series * scale / 1e6,
    }
