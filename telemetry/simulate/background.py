"""Rare harmless events of healthy fleets: what happens without a fault, and must raise no alert.

`[noise] environment = 1.0` plays them; environment.toml lists them. Each event is found by a hash
of its node and its step, second or time slot, so it does not depend on how an interval is cut or
on shards. The random draws are none of those that a run has without them.
"""

import math
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.simulate.noise import Floats, Hashes, mixed, rare, uniform_of
from telemetry.simulate.plan import Plan
from telemetry.simulate.script import Script, run_key, script_of
from telemetry.units import DAY_S, HOUR_S

FILE = Path(__file__).with_name("environment.toml")
# Within it a burst of retransmitted packets begins; no node has two.
BURST_SLOT_S = 60.0


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens: ``rate`` counts per ``per``, a size lies from ``low`` to ``high``."""

    what: str
    rate: float
    source: str
    per: str
    unit: str = ""
    low: float = 0.0
    mean: float = 0.0
    high: float = math.inf
    lasts_s: tuple[float, float] = (0.0, 0.0)

    def scaled(self, factor: float) -> "Event":
        sizes = {name: factor * getattr(self, name) for name in ("rate", "low", "mean", "high")}
        return msgspec.structs.replace(self, **sizes)

    def drawn(self, share: FloatArray) -> FloatArray:
        """Return sizes that are spread evenly, by uniform numbers: same shape."""
        return self.low + (self.high - self.low) * share

    def lasting_s(self, share: FloatArray) -> FloatArray:
        least, most = self.lasts_s
        return least + (most - least) * share


@lru_cache
def environment(factor: float) -> Mapping[str, Event]:
    """Return all events, with rates and sizes times a factor."""
    table = msgspec.convert(tomllib.loads(FILE.read_text(encoding="utf-8")), dict[str, Event])
    return {name: event.scaled(factor) for name, event in table.items()}


def _events(script: Script) -> Mapping[str, Event]:
    return environment(script.plan.noise.harmless)


# More nodes than a run has: one number for each row and node.
_NODES = 2**20


def _cells(key: np.uint64, rows: IntArray, nodes: IntArray) -> Hashes:
    return mixed(key, rows[:, None] * _NODES + nodes)


def _draw(hashes: Hashes, number: int) -> FloatArray:
    """Return a further uniform number of each event."""
    return uniform_of(mixed(np.uint64(number), hashes))


def delays_s(script: Script, name: str, step: IntArray) -> FloatArray:
    """Return what the event adds to each step, mostly 0 seconds: (n_steps, n_workers).

    ``loader``: the wait for data beyond the usual; ``collection``: how long garbage collection
    stops a worker after computing. A delay is the least one and an exponential time.
    """
    event = _events(script)[name]
    hashes = _cells(script.key(f"background {name}"), step, np.arange(script.run.nodes))
    delay_s, where = np.zeros(hashes.shape), rare(hashes, event.rate)
    delay_s[where] = event.low - event.mean * np.log1p(-_draw(hashes[where], 1))
    return np.minimum(delay_s, event.high)


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
        longer = np.float32(1 + _events(script)["far"].high)
        for i in np.flatnonzero(is_far(script)[ranks]):
            values["efa_latency_s"][:, i] *= longer
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
    event = _events(script)["traffic"]
    line_rate = script.instance.network_bytes_per_s / script.instance.n_efa
    hashes = _cells(script.key("background probe"), _numbers(ticks), ranks)
    needed = (uniform_of(hashes) * (line_rate / event.rate)).astype(np.float32)[..., None]
    longer = (1 + event.drawn(_draw(hashes, 1))).astype(np.float32)[..., None]
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
    one_in = max(1, round(1 / _events(script)["far"].rate))
    rack = np.arange(script.run.nodes) // (script.run.nodes_per_rack or 1)
    chosen = mixed(script.key("background far"), rack // one_in) % np.uint64(one_in)
    return np.asarray(rack % one_in == chosen.astype(np.int64))


def _slots(since_s: FloatArray, slot_s: float, longest_s: float) -> IntArray:
    """Return the time slots in which an event that can be seen at these seconds may begin."""
    first, last = (math.floor(s / slot_s) for s in (float(since_s[0]) - longest_s, since_s[-1]))
    return np.arange(first, last + 1)


def _retransmit(
    script: Script, values: dict[str, Floats], since_s: FloatArray, ranks: IntArray
) -> None:
    """Let half of a node's devices retransmit a small share of their packets for some seconds."""
    event, n = _events(script)["burst"], script.instance.n_efa
    slots = _slots(since_s, BURST_SLOT_S, event.lasts_s[1])
    hashes = _cells(script.key("background burst"), slots, ranks)
    slot, node = np.nonzero(rare(hashes, event.rate * BURST_SLOT_S / HOUR_S))
    hashes = hashes[slot, node]
    start_s = (slots[slot] + _draw(hashes, 1)) * BURST_SLOT_S
    end_s = start_s + event.lasting_s(_draw(hashes, 2))
    ratio = event.low * (event.high / event.low) ** _draw(hashes, 3)
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
    event, key = _events(script)["cron"], script.key("background cron")
    every_s = HOUR_S / event.rate
    since_s = since_s[:, None] - every_s * uniform_of(mixed(key, ranks))
    number = np.floor(since_s / every_s)
    where = np.nonzero(since_s - number * every_s < event.lasts_s[1])
    job = mixed(key ^ np.uint64(1), number[where].astype(np.int64) * _NODES + ranks[where[1]])
    vcpu[where] = np.minimum(vcpu[where] + event.drawn(uniform_of(job)), 1)


def _restarts(
    script: Script, since_s: FloatArray, ranks: IntArray, longest_s: float
) -> tuple[FloatArray, FloatArray, IntArray, NDArray[np.bool_]]:
    """Return when agents stop and start again, of which node, and whether by a rollout."""
    slots = _slots(since_s, HOUR_S, longest_s)
    crash, rollout = (_events(script)[name] for name in ("crash", "rollout"))
    is_rollout = rare(mixed(script.key("background rollout"), slots), rollout.rate)
    hashes = _cells(script.key("background restart"), slots, ranks)
    slot, node = np.nonzero(rare(hashes, crash.rate * HOUR_S / DAY_S) | is_rollout[:, None])
    hashes, by_rollout = hashes[slot, node], is_rollout[slot]
    start_s = (slots[slot] + _draw(hashes, 1)) * HOUR_S
    share = _draw(hashes, 2)
    lasts_s = np.where(by_rollout, rollout.drawn(share), crash.drawn(share))
    return start_s, start_s + lasts_s, node, by_rollout


def _restarting(script: Script, since_s: FloatArray, ranks: IntArray) -> NDArray[np.bool_]:
    """Whether a node's agent is being restarted: (n_ticks, n_nodes)."""
    start_s, end_s, node, _ = _restarts(script, since_s, ranks, _events(script)["rollout"].high)
    restarting = np.zeros((len(since_s), len(ranks)), bool)
    first, last = np.searchsorted(since_s, start_s), np.searchsorted(since_s, end_s)
    for i in np.flatnonzero(first < last):
        restarting[first[i] : last[i], node[i]] = True
    return restarting


def stopped(plan: Plan, now_s: float, *, within_s: float) -> tuple[str, ...]:
    """Return the nodes whose agents said in the last seconds that they end, for a rollout."""
    if not plan.noise.harmless or not plan.inputs.agent or plan.inputs.is_scraped:
        return ()
    script = script_of(plan)
    since_s, ranks = np.array([now_s - script.epoch_s]), np.arange(plan.run.nodes)
    start_s, _, node, by_rollout = _restarts(script, since_s, ranks, within_s)
    lately = by_rollout & (start_s <= since_s) & (start_s > since_s - within_s)
    return tuple(plan.run.node_names[i] for i in node[lately].tolist())


class Reports(NamedTuple):
    """What becomes of a run's reports: the key of its random numbers, and the events."""

    key: np.uint64
    events: Mapping[str, Event]


def reports_of(plan: Plan) -> Reports | None:
    """Say how reports of a run are late, missing or lost; None where none are.

    Where everything is observed, reports are ideal.
    """
    if plan.inputs.is_full or not plan.noise.harmless:
        return None
    return Reports(run_key(plan, "background reports"), environment(plan.noise.harmless))


def held_up(reports: Reports, newest: IntArray, now: int, every_s: int) -> IntArray:
    """Return the newest second of each node that has arrived if few reports are late: (n_nodes,).

    Parameters
    ----------
    newest : (n_nodes,) what would have arrived by now

    Notes
    -----
    An agent sends one report after the other, so newer ones wait for a late one.
    """
    late = reports.events["late"]
    ended = newest - every_s * np.arange(math.floor(late.high) // every_s + 1)[:, None]
    hashes = mixed(reports.key, ended * _NODES + np.arange(len(newest)))
    is_late = rare(hashes, late.rate)
    if not is_late.any():
        return newest
    is_late &= ended + late.drawn(_draw(hashes, 1)) > now
    return np.asarray(np.where(is_late, ended - every_s, newest).min(axis=0))


def missed_scrapes(
    reports: Reports, ticks: IntArray, phases: IntArray, every_s: int
) -> NDArray[np.bool_]:
    """Whether the scrape that covers a second failed: (n_ticks, n_nodes)."""
    ends = ticks[:, None] + (phases - ticks[:, None]) % every_s
    hashes = mixed(reports.key ^ np.uint64(1), ends * _NODES + np.arange(len(phases)))
    return rare(hashes, reports.events["missed"].rate)


def lost_steps(reports: Reports, step: IntArray, n_workers: int) -> NDArray[np.bool_]:
    """Whether a worker's report of a step is lost: (n_steps, n_workers)."""
    hashes = _cells(reports.key ^ np.uint64(2), step, np.arange(n_workers))
    return rare(hashes, reports.events["lost"].rate)
