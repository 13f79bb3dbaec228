"""Answers of simulated nodes to requests of samples, as their agents would give them."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
import numpy as np

from fleet.ingest.samples import UNDER_WAY, record_answer
from fleet.models import Node, SampleRequest
from telemetry.agent.sampling import BYTES, CORES, FULL, SampleTable, encode_sample
from telemetry.simulate.noise import Floats
from telemetry.simulate.plan import Plan
from telemetry.simulate.shard import RunClock, play_finely
from telemetry.store.hot import HotStore

# By request: the clock of its shard when the agent began.
BEGAN = "sample:began:{number}"
# A reading is late by up to some milliseconds; now and then one is left out.
LATE_MS, MISSED_RATIO = 2.0, 0.01
# The EFA devices and neuron-monitor as a real agent reads them.
ASSUMED = "simulated: assumes that neuron-monitor accepts this period"


def answer_samples(hot: HotStore, *, now: datetime) -> None:
    """Let the agents of simulated nodes begin samples, and answer those that are over."""
    waiting = SampleRequest.objects.waiting(now).filter(node__source=Node.Source.SIMULATED)
    for row in waiting.select_related("node__run"):
        clock = hot.clock(row.node.shard)
        plan = hot.plan(row.node.run.name) if row.node.run else None
        if clock is None or plan is None or row.state(now) not in UNDER_WAY:
            continue
        # The agent of a node that does not report neither asks nor answers.
        newest_s = hot.newest().get(row.node.shard, 0)
        is_silent = hot.last_seen().get(row.node.name, 0) < newest_s
        decoded = msgspec.json.decode(plan, type=Plan)
        answer = _answer(hot, row, decoded, clock, is_silent=is_silent)
        if answer is not None:
            record_answer(row.node.name, answer).update_request(hot, now=now)


def _answer(
    hot: HotStore, row: SampleRequest, plan: Plan, clock: bytes, *, is_silent: bool
) -> Mapping[str, Any] | None:
    """Return what the node's agent sends now; None for nothing."""
    key = BEGAN.format(number=row.pk)
    if is_silent:
        return None
    if row.started_at is None:
        hot.execute("SET", key, clock, "EX", int(SampleRequest.WAIT.total_seconds()))
        return {"id": row.pk, "state": "sampling"}
    stored: bytes | None = hot.execute("GET", key)
    if stored is None:
        return {"id": row.pk, "reason": "the simulation was restarted while it sampled"}
    began = msgspec.json.decode(stored, type=RunClock)
    if msgspec.json.decode(clock, type=RunClock).tick < began.tick + SampleRequest.LENGTH_S:
        return None
    return simulated_answer(row.pk, plan, row.node.rank, began)


def simulated_answer(number: int, plan: Plan, rank: int, began: RunClock) -> dict[str, Any]:
    """Return the sample that an agent of a simulated node sends."""
    every_s = SampleRequest.EVERY_S
    n_ticks = round(SampleRequest.LENGTH_S / every_s)
    values = play_finely(plan, rank, began, n_ticks=n_ticks, tick_s=every_s)
    rng = np.random.Generator(np.random.Philox(key=[plan.seed + rank, began.tick]))
    late_ms = np.abs(rng.standard_normal(n_ticks)) * LATE_MS
    is_read = (rng.random(n_ticks) >= MISSED_RATIO) & np.isfinite(
        values["core_utilization_ratio"]
    ).any(axis=1)
    cores = SampleTable("monitor", CORES)
    cores.note = ASSUMED
    halves = values["core_utilization_ratio"] * FULL
    efa = {name: _counted(values, f"efa_{name}_bytes_per_s", every_s) for name in ("tx", "rx")}
    tables = {name: SampleTable(f"efa_{name}", BYTES) for name in efa}
    for i in np.flatnonzero(is_read):
        ms = round(1000 * every_s * (i + 1) + late_ms[i])
        cores.add(ms, _row(halves[i]))
        for name, counted in efa.items():
            before = np.flatnonzero(is_read[:i])
            # A counter holds what a missed reading would have shown.
            since = counted[before[-1]] if len(before) else np.zeros(counted.shape[1])
            tables[name].add(ms, _row(counted[i] - since))
    return encode_sample(
        number, began.tick, every_s, SampleRequest.LENGTH_S, [cores, *tables.values()]
    )


def _counted(values: Mapping[str, Floats], name: str, every_s: float) -> Floats:
    """Return the bytes counted up to the end of each tick: (n_ticks, n_efa)."""
    rate = values.get(name, np.zeros((len(values["core_utilization_ratio"]), 0)))
    return np.cumsum(np.nan_to_num(rate).astype(float) * every_s, axis=0)


def _row(values: Floats) -> dict[str, int | None]:
    return {
        str(part): round(float(value)) if math.isfinite(value) else None
        for part, value in enumerate(values)
    }
