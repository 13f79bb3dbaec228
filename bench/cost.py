"""CPU of each stage of one second, against a loop of known work in the same run.

The ratio to the committed figures hardly depends on the machine, nor on what else it does.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from django.conf import settings
from django.core.management import call_command

from bench.fleet import create_fleet, specs_of
from bench.table import print_table
from fleet.alerts import evaluate, snapshots
from fleet.alerts.evaluate import watch
from fleet.pages.topics import TOPICS, live_topic
from fleet.simulation.runs import follow_runs
from telemetry import tasks
from telemetry.store.commits import AHEAD_S
from telemetry.store.hot import HotStore, open_store
from telemetry.store.reading import Reader

SIZES = (64, 1_000, 4_000)
# What is older than this is not read each second; and blocks of 5 s, hardware read each 3 s.
AGE_S, WARM_S, MEASURED_S = 75, 15, 15
# A new run waits and warms up for so long.
BEGIN_S = 20
COMMITTED = Path(__file__).with_suffix(".json")
MINUTE_S = 60
# A stage is what its functions take, without what functions of other stages in them take.
STAGES: Mapping[str, tuple[tuple[Any, str], ...]] = {
    "commit": ((tasks, "store_ticks"),),
    "read": (
        *((Reader, name) for name in ("window", "moments", "held_at", "step_states")),
        *((Reader, name) for name in ("recent_steps", "steps", "last_seen", "quiet_s")),
        (snapshots, "moments_in"),
    ),
    "detect": ((evaluate, "find_in_runs"),),
}
# What is promised together (DESIGN): the watch, and what follows from it.
WATCH, REST = ("read", "detect", "evaluate"), ("roll_up", "page", "redis")


class Stages:
    """CPU seconds by stage; time within an inner stage is not the outer one's."""

    def __init__(self, clock_s: Callable[[], float] = time.process_time) -> None:
        self._clock_s = clock_s
        self.spent_s: dict[str, float] = {}
        self._open: list[str] = []
        self._since_s = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._count()
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def _count(self) -> None:
        now_s = self._clock_s()
        if self._open:
            name = self._open[-1]
            self.spent_s[name] = self.spent_s.get(name, 0.0) + now_s - self._since_s
        self._since_s = now_s

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time the functions of all stages within the context."""
        before = [
            (owner, name, getattr(owner, name), stage)
            for stage, places in STAGES.items()
            for owner, name in places
        ]
        for owner, name, function, stage in before:
            setattr(owner, name, self._wrapped(stage, function))
        try:
            yield
        finally:
            for owner, name, function, _ in before:
                setattr(owner, name, function)

    def _wrapped(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            with self.stage(stage):
                return function(*arguments, **options)

        return timed


def measure(_: Mapping[str, str]) -> dict[str, Any]:
    """Play, store, evaluate, roll up and show one run of each size; print the CPU of each."""
    committed = json.loads(COMMITTED.read_text()) if COMMITTED.exists() else {}
    sizes, units = {}, {}
    for nodes in SIZES:
        call_command("flush", verbosity=0, interactive=False)
        ms, unit_ms = cost_of(nodes)
        sizes[nodes] = ms | {"watch": total(ms, WATCH), "rest": total(ms, REST)}
        units[nodes] = unit_ms
    ratios = {
        nodes: {
            stage: round(ms / units[nodes] / known, 2)
            for stage, ms in stages.items()
            if (known := committed.get(str(nodes), {}).get(stage))
        }
        for nodes, stages in sizes.items()
    }
    for nodes, stages in sizes.items():
        rows = [
            (stage, f"{ms:8.2f} ms a second, {ratios[nodes].get(stage, '?')} x")
            for stage, ms in stages.items()
        ]
        print_table(f"{nodes:,} nodes in one run, calibration {units[nodes]:.1f} ms", rows)
    return {
        "ms_per_s": {n: {s: round(ms, 3) for s, ms in its.items()} for n, its in sizes.items()},
        "calibration_ms": {nodes: round(ms, 2) for nodes, ms in units.items()},
        "in_calibrations": {
            n: {s: round(ms / units[n], 4) for s, ms in its.items()} for n, its in sizes.items()
        },
        "ratio_to_committed": ratios,
    }


def total(ms: Mapping[str, float], stages: tuple[str, ...]) -> float:
    return sum(ms[stage] for stage in stages)


def cost_of(nodes: int) -> tuple[dict[str, float], float]:
    """Return the ms that each stage takes in a second, and those of the calibration loop."""
    hot = open_store(settings.REDIS_URL)
    hot.execute("FLUSHDB")
    evaluate.WATCHES.clear()
    create_fleet(hot, specs_of(nodes, 1), age_s=AGE_S)
    second, stages, unit_s = max(hot.newest().values()), Stages(), 0.0
    topic = live_topic(TOPICS, "overview", {})
    redis = psutil.Process(int(hot.execute("INFO", "server")["process_id"]))
    for turn in range(WARM_S + MEASURED_S):
        if turn == WARM_S:
            stages, before, unit_s = Stages(), redis.cpu_times(), 0.0
        second += 1
        with stages.timed():
            with stages.stage("play"):
                play(hot, second)
            with stages.stage("evaluate"):
                now = datetime.fromtimestamp(second, UTC)
                follow_runs(hot, now=now)
                watch(hot, now=now)
            with stages.stage("page"):
                topic.render()
        began_s = time.process_time()
        calibrate()
        unit_s += time.process_time() - began_s
    used = redis.cpu_times()
    stages.spent_s["redis"] = used.user + used.system - before.user - before.system
    ms = {name: 1e3 * s / MEASURED_S for name, s in sorted(stages.spent_s.items())}
    # A minute's, in each of its seconds.
    with stages.stage("roll_up"):
        tasks.roll_up()
    return ms | {"roll_up": 1e3 * stages.spent_s["roll_up"] / MINUTE_S}, 1e3 * unit_s / MEASURED_S


def play(hot: HotStore, second: int) -> None:
    for batch in tasks.batches_due(hot):
        tasks.simulate_shards(batch, second)


def begin(hot: HotStore, began: datetime) -> None:
    """Play the first seconds of new runs, until they train: a run waits for its nodes at first."""
    play(hot, int(began.timestamp()) + BEGIN_S)


def jump(hot: HotStore, second: int) -> None:
    """Play all nodes at a second, and nothing between it and the one before."""
    catch_up_s, tasks.CATCH_UP_S = tasks.CATCH_UP_S, 0
    try:
        play(hot, second)
    finally:
        tasks.CATCH_UP_S = catch_up_s


def jump_ahead(hot: HotStore) -> None:
    """Let all nodes report as far ahead as is stored: they are up for two minutes."""
    jump(hot, int(time.time()) + AHEAD_S - 5)


def calibrate() -> None:
    """Do a known amount of what the stages do: Python objects, arrays, and bytes."""
    names = {f"node-{i}": i for i in range(20_000)}
    assert sum(names[f"node-{i}"] for i in range(20_000)) > 0
    values = np.arange(400_000, dtype="f4").reshape(4_000, 100)
    for _ in range(6):
        values = np.sort(np.sqrt(values * values + 1.0), axis=1)
    assert zlib.crc32(values.tobytes()) >= 0
