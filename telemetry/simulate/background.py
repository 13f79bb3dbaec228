"""Rare harmless events of healthy fleets: what happens without a fault, and must raise no alert.

`[noise] background = true` plays them. Each event is found by a hash of its node and its step,
second or time slot, so it does not depend on how an interval is cut or on shards. The random
draws are none of those that a run has without them.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.simulate.noise import Floats, Hashes, mixed, rare, uniform_of
from telemetry.simulate.plan import Plan
from telemetry.simulate.script import Script, run_key, script_of
from telemetry.units import DAY_S, HOUR_S

# All sizes and rates are assumed; the comments say what is known. docs/physics.md has the table.

# Loaders of training data read shards from object stores: most steps find their batch ready,
# few wait for a second and more. Rate and size are assumed.
LOADER_CHANCE, LOADER_MEAN_S, LOADER_MOST_S = 1 / 4000, 0.8, 6.0
# Python's collector stops a process for 0.1 s and more (arXiv:2505.05713, of large trainings,
# names it as a cause of stragglers). Rate and size are assumed.
COLLECTION_CHANCE, COLLECTION_LEAST_S, COLLECTION_MEAN_S = 1 / 1000, 0.1, 0.3
# SRD retransmits on another path, so congestion costs packets and no time. Assumed.
BURST_EVERY_S, BURST_S, BURST_RATIO = 4 * HOUR_S, (5.0, 30.0), (2e-4, 3e-3)
BURST_SLOT_S = 60.0
# A probe is a mean of 100 round trips, about 2 ms: it meets traffic or it does not. How much
# longer it takes then is assumed.
PROBE_MOST_LONGER = 1.0
# Two more layers of switches: 22 µs where 16 µs are usual. How many racks lie there is assumed.
FAR_ONE_IN, FAR_FACTOR = 8, 1.38
# An agent that crashes is started again after 1 s (deploy/agent), and its first report follows. A
# rollout of a new version replaces files in between; before it, agents say that they end. Assumed.
CRASHES_PER_DAY, CRASH_S, ROLLOUT_CHANCE, ROLLOUT_S = 1.0, (2.0, 8.0), 1 / 4, (8.0, 25.0)
# Of reports to a service over HTTP; scrapes fail by timeouts. Assumed.
LATE_CHANCE, LATE_MOST_S, MISSED_SCRAPE_CHANCE, LOST_STEP_CHANCE = 1 / 1000, 7, 1 / 1000, 0.002
# Log rotation, shipping and scans of a host start by cron. Assumed.
CRON_EVERY_S, CRON_S, CRON_RATIO = 1800.0, 20.0, (0.1, 0.3)

# More nodes than a run has: one number for each row and node.
_NODES = 2**20


def _cells(key: np.uint64, rows: IntArray, nodes: IntArray) -> Hashes:
    return mixed(key, rows[:, None] * _NODES + nodes)


def _draw(hashes: Hashes, number: int) -> FloatArray:
    """Return a further uniform number of each event."""
    return uniform_of(mixed(np.uint64(number), hashes))


def _between(low_high: tuple[float, float], share: FloatArray) -> FloatArray:
    low, high = low_high
    return low + (high - low) * share


def input_waits_s(script: Script, step: IntArray) -> FloatArray:
    """Seconds that loaders wait for data beyond the usual: (n_steps, n_workers)."""
    waits_s = _rare_s(script, "loader", step, chance=LOADER_CHANCE, mean_s=LOADER_MEAN_S)
    return np.minimum(waits_s, LOADER_MOST_S)


def collections_s(script: Script, step: IntArray) -> FloatArray:
    """Seconds that garbage collection stops workers after computing: (n_steps, n_workers)."""
    return _rare_s(
        script,
        "collection",
        step,
        chance=COLLECTION_CHANCE,
        mean_s=COLLECTION_MEAN_S,
        least_s=COLLECTION_LEAST_S,
    )


def _rare_s(
    script: Script, name: str, step: IntArray, *, chance: float, mean_s: float, least_s: float = 0
) -> FloatArray:
    """Return a delay that is ``least_s`` and an exponential time, rarely, and mostly 0."""
    hashes = _cells(script.key(f"background {name}"), step, np.arange(script.run.nodes))
    delay_s, where = np.zeros(hashes.shape), rare(hashes, chance)
    delay_s[where] = least_s - mean_s * np.log1p(-_draw(hashes[where], 1))
    return delay_s


def add_background(
    script: Script, values: dict[str, Floats], ticks: IntArray | FloatArray, nodes: slice
) -> None:
    """Add what hardware shows of harmless events, in place.

    Parameters
    ----------
    values : (n_ticks, n_nodes, n_parts) each
    ticks : (n_ticks,) Unix seconds
    nodes : which of the run's nodes the values are of
    """
    if not len(ticks):
        return
    since_s, ranks = ticks - script.epoch_s, np.arange(nodes.start, nodes.stop)
    if "efa_latency_s" in values:
        # A probe each second that feels no traffic is part of what only a simulator observes.
        if not script.plan.inputs.is_full:
            _meet_traffic(script, values, ticks, ranks)
        for i in np.flatnonzero(is_far(script)[ranks]):
            values["efa_latency_s"][:, i] *= np.float32(FAR_FACTOR)
        _retransmit(script, values, since_s, ranks)
    _run_cron(script, values["vcpu_usage_ratio"][..., 0], since_s, ranks)
    is_restarting = _restarting(script, since_s, ranks)
    if is_restarting.any():
        for value in values.values():
            value[is_restarting] = np.nan


def _meet_traffic(
    script: Script, values: dict[str, Floats], ticks: IntArray | FloatArray, ranks: IntArray
) -> None:
    """Lengthen the probes that meet a busy link, with the chance that it is busy."""
    line_rate = script.instance.network_bytes_per_s / script.instance.n_efa
    hashes = _cells(script.key("background probe"), _numbers(ticks), ranks)
    needed = (uniform_of(hashes) * line_rate).astype(np.float32)[..., None]
    longer = (1 + PROBE_MOST_LONGER * _draw(hashes, 1)).astype(np.float32)[..., None]
    latency, sent = values["efa_latency_s"], values["efa_tx_bytes_per_s"]
    np.multiply(latency, longer, out=latency, where=needed < sent)


def _numbers(ticks: IntArray | FloatArray) -> IntArray:
    """Return milliseconds: ticks may be shorter than a second."""
    return np.asarray(np.rint(np.asarray(ticks) * 1000), np.int64)


@lru_cache(maxsize=16)
def is_far(script: Script) -> NDArray[np.bool_]:
    """Whether each node's probes cross more switches than others', for good: (n_nodes,).

    One rack in each eight in order is so, or one node where the run names no racks.
    """
    rack = np.arange(script.run.nodes) // (script.run.nodes_per_rack or 1)
    chosen = mixed(script.key("background far"), rack // FAR_ONE_IN) % np.uint64(FAR_ONE_IN)
    return np.asarray(rack % FAR_ONE_IN == chosen.astype(np.int64))


def _slots(since_s: FloatArray, slot_s: float, longest_s: float) -> IntArray:
    """Return the time slots in which an event that can be seen at these seconds may begin."""
    first, last = (math.floor(s / slot_s) for s in (float(since_s[0]) - longest_s, since_s[-1]))
    return np.arange(first, last + 1)


def _retransmit(
    script: Script, values: dict[str, Floats], since_s: FloatArray, ranks: IntArray
) -> None:
    """Let half of a node's devices retransmit a small share of their packets for some seconds."""
    slots, n = _slots(since_s, BURST_SLOT_S, BURST_S[1]), script.instance.n_efa
    hashes = _cells(script.key("background burst"), slots, ranks)
    slot, node = np.nonzero(rare(hashes, BURST_SLOT_S / BURST_EVERY_S))
    hashes = hashes[slot, node]
    start_s = (slots[slot] + _draw(hashes, 1)) * BURST_SLOT_S
    end_s = start_s + _between(BURST_S, _draw(hashes, 2))
    low, high = np.log(BURST_RATIO)
    ratio = np.exp(_between((low, high), _draw(hashes, 3)))
    half = (_draw(hashes, 4) < 1 / 2).astype(int)
    packets, again = values["efa_tx_packets_per_s"], values["efa_retransmits_per_s"]
    for i in range(len(hashes)):
        when = slice(*np.searchsorted(since_s, [start_s[i], end_s[i]]).tolist())
        if when.start == when.stop:
            continue
        devices = slice(half[i] * n // 2, max(1, (half[i] + 1) * n // 2))
        rows, parts = _numbers(since_s[when]), np.arange(n)[devices]
        # Packets are whole.
        rest = uniform_of(_cells(hashes[i], rows, parts))
        lost = packets[when, node[i], devices] * ratio[i]
        again[when, node[i], devices] += np.floor(lost + rest).astype(np.float32)


def _run_cron(script: Script, vcpu: Floats, since_s: FloatArray, ranks: IntArray) -> None:
    """Add a job of the host, at each node's own time: vcpu (n_ticks, n_nodes), in place."""
    key = script.key("background cron")
    phase_s = CRON_EVERY_S * uniform_of(mixed(key, ranks))
    since_s = since_s[:, None] - phase_s
    number = np.floor(since_s / CRON_EVERY_S)
    where = np.nonzero(since_s - number * CRON_EVERY_S < CRON_S)
    job = mixed(key ^ np.uint64(1), number[where].astype(np.int64) * _NODES + ranks[where[1]])
    vcpu[where] = np.minimum(vcpu[where] + _between(CRON_RATIO, uniform_of(job)), 1)


def _restarts(
    script: Script, since_s: FloatArray, ranks: IntArray, longest_s: float
) -> tuple[FloatArray, FloatArray, IntArray, NDArray[np.bool_]]:
    """Return when agents stop and start again, of which node, and whether by a rollout."""
    slots = _slots(since_s, HOUR_S, longest_s)
    is_rollout = rare(mixed(script.key("background rollout"), slots), ROLLOUT_CHANCE)
    hashes = _cells(script.key("background restart"), slots, ranks)
    slot, node = np.nonzero(rare(hashes, CRASHES_PER_DAY * HOUR_S / DAY_S) | is_rollout[:, None])
    hashes, by_rollout = hashes[slot, node], is_rollout[slot]
    start_s = (slots[slot] + _draw(hashes, 1)) * HOUR_S
    share = _draw(hashes, 2)
    lasts_s = np.where(by_rollout, _between(ROLLOUT_S, share), _between(CRASH_S, share))
    return start_s, start_s + lasts_s, node, by_rollout


def _restarting(script: Script, since_s: FloatArray, ranks: IntArray) -> NDArray[np.bool_]:
    """Whether a node's agent is being restarted: (n_ticks, n_nodes)."""
    start_s, end_s, node, _ = _restarts(script, since_s, ranks, ROLLOUT_S[1])
    restarting = np.zeros((len(since_s), len(ranks)), bool)
    first, last = np.searchsorted(since_s, start_s), np.searchsorted(since_s, end_s)
    for i in np.flatnonzero(first < last):
        restarting[first[i] : last[i], node[i]] = True
    return restarting


def stopped(plan: Plan, now_s: float, *, within_s: float) -> tuple[str, ...]:
    """Return the nodes whose agents said in the last seconds that they end, for a rollout."""
    if not plan.noise.background or not plan.inputs.agent or plan.inputs.is_scraped:
        return ()
    script = script_of(plan)
    since_s, ranks = np.array([now_s - script.epoch_s]), np.arange(plan.run.nodes)
    start_s, _, node, by_rollout = _restarts(script, since_s, ranks, within_s)
    lately = by_rollout & (start_s <= since_s) & (start_s > since_s - within_s)
    return tuple(plan.run.node_names[i] for i in node[lately].tolist())


def reports_key(plan: Plan) -> np.uint64 | None:
    """Key by which reports of a run are late, missing or lost; None where none are.

    Where everything is observed, reports are ideal.
    """
    is_ideal = plan.inputs.is_full or not plan.noise.background
    return None if is_ideal else run_key(plan, "background reports")


def held_up(key: np.uint64, newest: IntArray, now: int, every_s: int) -> IntArray:
    """Return the newest second of each node that has arrived if few reports are late: (n_nodes,).

    Parameters
    ----------
    newest : (n_nodes,) what would have arrived by now

    Notes
    -----
    An agent sends one report after the other, so newer ones wait for a late one.
    """
    ended = newest - every_s * np.arange(LATE_MOST_S // every_s + 1)[:, None]
    hashes = mixed(key, ended * _NODES + np.arange(len(newest)))
    is_late = rare(hashes, LATE_CHANCE)
    if not is_late.any():
        return newest
    is_late &= ended + LATE_MOST_S * _draw(hashes, 1) > now
    return np.asarray(np.where(is_late, ended - every_s, newest).min(axis=0))


def missed_scrapes(
    key: np.uint64, ticks: IntArray, phases: IntArray, every_s: int
) -> NDArray[np.bool_]:
    """Whether the scrape that covers a second failed: (n_ticks, n_nodes)."""
    ends = ticks[:, None] + (phases - ticks[:, None]) % every_s
    hashes = mixed(key ^ np.uint64(1), ends * _NODES + np.arange(len(phases)))
    return rare(hashes, MISSED_SCRAPE_CHANCE)


def lost_steps(key: np.uint64, step: IntArray, n_workers: int) -> NDArray[np.bool_]:
    """Whether a worker's report of a step is lost: (n_steps, n_workers)."""
    return rare(_cells(key ^ np.uint64(2), step, np.arange(n_workers)), LOST_STEP_CHANCE)
