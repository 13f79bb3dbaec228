"""Ingest of remote write and OTLP: requests are queued by node, a task assembles scrapes.

Prometheus spreads one scrape over requests that reach several web processes. Each puts its samples
into a list of the node in Redis; one task reads the lists, so that nothing is counted twice.
"""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from django.db import OperationalError
from redis.exceptions import RedisError

from fleet.ingest.named_runs import assign_run, update_runs
from fleet.ingest.nodes import SIZE, IngestBatch, store_batches
from fleet.ingest.rows import NAME, NAME_RULE, store_labels, store_row
from fleet.models import Node
from telemetry.blocks import METRICS, Block, FloatArray
from telemetry.ingest.exporters import NamedBy, NodeName
from telemetry.ingest.lines import Refusal, RefusedError
from telemetry.ingest.neuron_monitor import Reading
from telemetry.ingest.node_series import NodeSeries
from telemetry.ingest.prometheus import MS, Sample, WrittenSamples
from telemetry.ingest.timing import shard_of
from telemetry.store.hot import HotStore, StoreUnavailable
from telemetry.store.reading import SCRAPES, Scrapes
from telemetry.store.refused import note_refused
from telemetry.units import DAY_S

# Redis: nodes with samples to assemble; by node, its queue and what is known of its series; by the
# number or address of a machine, its name.
NODES = "ingest:prometheus:nodes"
QUEUE = "ingest:prometheus:queue:"
NAMED = "ingest:prometheus:name:"
STATE = "ingest:prometheus:state2:"
LOCK = "ingest:prometheus:lock"
LOCK_S = 60
# The sender waits with further samples until the task has caught up.
MAX_QUEUED = 2_000
KEEP_S = DAY_S
SEVERAL = 2
# Read together: so many nodes, and requests of each.
NODES_AT_ONCE, REQUESTS_AT_ONCE = 64, 16
# A node leaves the set once it has nothing more to read.
FORGET_IF_READ = (
    "if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('SREM', KEYS[2], ARGV[1]) end"
)

# Exporters of the host say nothing about what its accelerators do.
OF_ACCELERATORS = {name for name, metric in METRICS.items() if metric.part in ("core", "device")}


log = logging.getLogger(__name__)


class QueuedSamples(msgspec.Struct, array_like=True):
    arrived_s: float
    identity: dict[str, str]
    runs: dict[str, int]
    samples: list[Sample]
    labels: dict[str, str] = {}


_QUEUED = msgspec.msgpack.Decoder(QueuedSamples)
_STATE = msgspec.msgpack.Decoder(NodeSeries)
_SIZE = msgspec.msgpack.Decoder(tuple[int, int, int])


class KnownName(msgspec.Struct, array_like=True):
    """The name of a node; the number of its machine and Kubernetes' name, where known."""

    name: str
    instance_id: str = ""
    kubernetes: str = ""


_KNOWN_NAME = msgspec.msgpack.Decoder(KnownName)


class QueueFullError(Exception):
    """Samples arrive faster than they are assembled; nothing of the request was stored."""


def name_nodes(hot: HotStore, written: WrittenSamples) -> None:
    """Give each node of a request the name by which it is known.

    Exporters of one machine name it in several ways: by its number, by an address that a new pod
    changes, by a label. What one series says of number and address together holds for the others,
    and a node keeps the name under which it appeared. A label of the user's stays.
    """
    names = list(written.names.values())
    keys = [f"{NAMED}{key}" for each in names for key in (*each[1:3], each.name)]
    stored = [
        _KNOWN_NAME.decode(text) if text else None
        for text in hot.execute_all(("GET", key) for key in keys)
    ]
    n_named = Counter(each.instance_id for each in names if each.by)
    commands: list[tuple[object, ...]] = []
    for each, by_number, by_address, by_name in zip(
        names, stored[::3], stored[1::3], stored[2::3], strict=True
    ):
        # A collector that adds its own number to what it scrapes elsewhere tells nothing by it.
        is_own = bool(each.instance_id) and n_named[each.instance_id] < SEVERAL
        name = each.name
        if each.by == NamedBy.NONE:
            name = _known_name(each, by_number, by_address)
        elif each.by < NamedBy.LABEL:
            name = _same_machine(each, by_number if is_own else None, by_name)
        of_number = by_number.kubernetes if by_number and by_number.name == name else ""
        kubernetes = each.name if each.by == NamedBy.KUBERNETES else of_number
        known = msgspec.msgpack.encode(KnownName(name, each.instance_id, kubernetes))
        aliases = {each.instance_id, each.name} if each.instance_id else set()
        # The address of a pod may belong to another node later, so the newest one holds.
        if each.address and (each.instance_id or each.by or by_address is None):
            aliases.add(each.address)
        commands += [("SET", NAMED + alias, known, "EX", KEEP_S) for alias in sorted(aliases)]
        written.rename(each.name, name)
    hot.execute_all(commands)


def _same_machine(named: NodeName, by_number: KnownName | None, by_name: KnownName | None) -> str:
    """Return the name of a node that its host or Kubernetes names.

    Two sources may name one machine differently: its number tells, unless Kubernetes has two.
    """
    if by_name is not None and (
        by_name.instance_id == named.instance_id or "" in (by_name.instance_id, named.instance_id)
    ):
        return by_name.name
    if by_number is None:
        return named.name
    is_another = named.by == NamedBy.KUBERNETES and by_number.kubernetes not in ("", named.name)
    return named.name if is_another else by_number.name


def _known_name(named: NodeName, by_number: KnownName | None, by_address: KnownName | None) -> str:
    """Return the name of a node that no user named."""
    if not named.instance_id:
        return by_address.name if by_address else named.name
    if by_number:
        return by_number.name
    same = Node.objects.unretired().filter(
        instance_id=named.instance_id, name__in=(named.address, named.instance_id)
    )
    if (row := same.order_by("-pk").first()) is not None:
        return row.name
    # A series without a number came first, from the same address.
    return by_address.name if by_address and not by_address.instance_id else named.name


def queue(hot: HotStore, written: WrittenSamples, *, arrived_s: float) -> None:
    """Queue the samples of one request; raises QueueFullError where they must wait.

    Samples of a node whose name is not valid, or of an impossible time, are rejected.
    """
    name_nodes(hot, written)
    rejected = written.reject_times(now_s=arrived_s)
    nodes = [node for node in written.by_node if NAME.fullmatch(node)]
    for node in written.by_node.keys() - set(nodes):
        reason = f"{node[:40]!r} is not a valid name for a node: {NAME_RULE}"
        written.reject(len(written.by_node[node]), reason)
    lengths = hot.execute_all(("LLEN", QUEUE + node) for node in nodes)
    if any(length >= MAX_QUEUED for length in lengths):
        raise QueueFullError
    note_refused(hot, "node", rejected, now_s=arrived_s)
    commands: list[tuple[object, ...]] = []
    for node in nodes:
        queued = QueuedSamples(
            arrived_s,
            written.identities[node],
            written.runs[node],
            written.by_node[node],
            written.labels.get(node, {}),
        )
        commands.append(("RPUSH", QUEUE + node, msgspec.msgpack.encode(queued)))
        commands.append(("EXPIRE", QUEUE + node, KEEP_S))
    if nodes:
        commands.append(("SADD", NODES, *nodes))
    counts = {
        "ingest_samples": sum(len(written.by_node[node]) for node in nodes),
        "ingest_series_ignored": written.n_ignored,
        "ingest_lines_refused": written.n_rejected,
    }
    for name, count in counts.items():
        commands.append(("HINCRBYFLOAT", "service:counters", name, count))
    hot.execute_all(commands)


def assemble(hot: HotStore, *, now_s: float) -> int:
    """Store the complete scrapes of all nodes; return how many. One process at a time."""
    if not hot.execute("SET", LOCK, "1", "NX", "EX", LOCK_S):
        return 0
    try:
        nodes = sorted(node.decode() for node in hot.execute("SMEMBERS", NODES))
        stored: dict[str, int] = {}
        errors: list[StoreUnavailable] = []
        # Where one of several stores is missing, the samples of its nodes wait.
        for _, some in hot.divide(nodes, shard_of):
            try:
                for start in range(0, len(some), NODES_AT_ONCE):
                    at_once = some[start : start + NODES_AT_ONCE]
                    stored |= _assemble_readable(hot, at_once, now_s=now_s)
            except StoreUnavailable as error:
                errors.append(error)
        if stored:
            update_runs(stored, now=datetime.fromtimestamp(now_s, UTC))
        if errors:
            raise errors[0]
        return sum(stored.values())
    finally:
        hot.execute("DEL", LOCK)


def _assemble_readable(hot: HotStore, nodes: Sequence[str], *, now_s: float) -> dict[str, int]:
    """Assemble nodes together; if that fails one by one, without those that fail again."""
    try:
        return _assemble(hot, nodes, now_s=now_s)
    except (RedisError, OperationalError):
        # Nothing was removed: the next call reads the same samples.
        raise
    except Exception:
        if len(nodes) > 1:
            each = [_assemble_readable(hot, [node], now_s=now_s) for node in nodes]
            return {node: n for stored in each for node, n in stored.items()}
        # A node with unusable samples must not hold up the others.
        log.exception("The samples of node %s cannot be read; they are dropped", nodes[0])
        hot.execute("DEL", QUEUE + nodes[0], STATE + nodes[0])
        hot.count("ingest_errors")
        return {}


def _assemble(hot: HotStore, nodes: Sequence[str], *, now_s: float) -> dict[str, int]:
    """Store the complete scrapes of nodes; return how many, for nodes with any.

    What is read from the queues is removed last: if the process ends before, the same samples are
    read again, to the same effect.
    """
    replies = hot.execute_all(
        command
        for node in nodes
        for command in (
            ("GET", STATE + node),
            ("LRANGE", QUEUE + node, 0, REQUESTS_AT_ONCE - 1),
            ("GET", SIZE + node),
        )
    )
    states: dict[str, NodeSeries] = {}
    batches: dict[str, IngestBatch] = {}
    readings: dict[str, list[tuple[Reading, float]]] = {}
    changed: set[str] = set()
    commands: list[tuple[object, ...]] = [("EXPIRE", LOCK, LOCK_S)]
    sizes: dict[str, tuple[int, int, int]] = {}
    for node, packed, queued, size in zip(
        nodes, replies[::3], replies[1::3], replies[2::3], strict=True
    ):
        state = states[node] = _STATE.decode(packed) if packed else NodeSeries()
        if size:
            sizes[node] = _SIZE.decode(size)
        state.said = sizes[node][:2] if size else None
        batch = IngestBatch(node=node)
        for one in map(_QUEUED.decode, queued):
            state.identity |= one.identity
            state.label(one.labels, arrived_s=one.arrived_s)
            for run, n in one.runs.items():
                state.runs[run] = state.runs.get(run, 0) + n
            if one.runs and one.samples:
                state.named_s = max(state.named_s, one.samples[-1].at_ms / MS)
            batch.n_repeated += state.add(one.samples, arrived_s=one.arrived_s)[1]
        n_waiting = state.n_waiting
        if complete := list(state.readings(now_s=now_s)):
            readings[node], batches[node] = complete, batch
        if queued or state.n_waiting < n_waiting:
            changed.add(node)
        if queued:
            commands.append(("LTRIM", QUEUE + node, len(queued), -1))
        if not state.n_waiting:
            commands.append(("EVAL", FORGET_IF_READ, 2, QUEUE + node, NODES, node))
    rows = Node.objects.select_related("run").filter(name__in=list(readings))
    by_name = {row.name: row for row in rows}
    for node, complete in readings.items():
        n_efa = sizes[node][2] if node in sizes else 0
        _fill(batches[node], complete, states[node], by_name.get(node), n_efa, now_s=now_s)
    if batches:
        store_batches(hot, list(batches.values()))
        refused = [(n, b.n_refused, b.refused[0].problem) for n, b in batches.items() if b.refused]
        note_refused(hot, "node", refused, now_s=now_s)
    scraped = {
        node: Scrapes(shard_of(node), *states[node].scraped())
        for node, batch in batches.items()
        if batch.blocks
    }
    commands += [
        ("HSET", SCRAPES, node, msgspec.msgpack.encode(each)) for node, each in scraped.items()
    ]
    known = [(STATE + node, msgspec.msgpack.encode(states[node])) for node in changed]
    hot.execute_all([*(("SET", *each, "EX", KEEP_S) for each in known), *commands])
    return {node: batch.n_accepted for node, batch in batches.items()}


def _fill(
    batch: IngestBatch,
    readings: Sequence[tuple[Reading, float]],
    state: NodeSeries,
    row: Node | None,
    n_efa: int,
    *,
    now_s: float,
) -> None:
    """Add the seconds of a node's readings to its batch; update its row, labels and run.

    ``n_efa`` are its EFA devices as its agent says, 0 where it says none.
    """
    # Scrapes of several exporters cover the same seconds; the first value of a metric holds.
    by_tick: dict[int, Mapping[str, FloatArray]] = {}
    for reading, end_s in readings:
        last = math.floor(end_s)
        first = min(last, math.floor(end_s - reading.period_s) + 1)
        for tick in range(first, last + 1):
            earlier = by_tick.get(tick)
            by_tick[tick] = {**reading.values, **earlier} if earlier else reading.values
        for reason in reading.rejected:
            batch.refuse(Refusal(1, "", reason))
    batch.n_accepted, batch.period_s = len(readings), reading.period_s
    labels = {name: value for name, (value, _) in state.labels.items()}
    try:
        n_efa = n_efa or reading.n_efa
        row = store_row(batch.node, reading.identity, reading.shape, n_efa, row=row)
        if labels:
            store_labels(batch.node, labels, row=row)
        n_scrapes = sum(bool(each.values.keys() & OF_ACCELERATORS) for each, _ in readings)
        if n_scrapes:
            state.n_unnamed = 0 if state.runs else state.n_unnamed + n_scrapes
            if state.runs or state.names_no_run(now_s=readings[-1][1]):
                now = datetime.fromtimestamp(now_s, UTC)
                assign_run(row, state.runs, labels, now=now)
            state.runs = {}
    except RefusedError as error:
        batch.refuse(error.at(1))
    else:
        shard = shard_of(batch.node)
        batch.blocks = [Block(shard, t, (batch.node,), by_tick[t]) for t in sorted(by_tick)]
