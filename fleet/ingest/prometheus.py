"""Ingest of remote write and OTLP: requests are queued by node, a task assembles scrapes.

Prometheus spreads one scrape over requests that reach several web processes. Each puts its samples
into a list of the node in Redis; one task reads the lists, so that nothing is counted twice.
"""

import logging
import math
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import msgspec
from django.db import OperationalError
from django.db.models import Count, Q
from redis.exceptions import RedisError

from fleet.ingest.nodes import (
    NAME,
    NAME_RULE,
    IngestBatch,
    store_batches,
    store_labels,
    store_row,
)
from fleet.ingest.runs import refresh_run
from fleet.models import Node, Run
from telemetry.blocks import METRICS, Block
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.neuron_monitor import Reading
from telemetry.ingest.prometheus import NodeSeries, Sample, WrittenSamples
from telemetry.ingest.step_reports import RunLine
from telemetry.ingest.timing import shard_of
from telemetry.store.hot import HotStore

# Redis: nodes with samples to assemble; by node, its queue and what is known of its series.
NODES = "ingest:prometheus:nodes"
QUEUE = "ingest:prometheus:queue:"
STATE = "ingest:prometheus:state:"
LOCK = "ingest:prometheus:lock"
LOCK_S = 60
# The sender waits with further samples until the task has caught up.
MAX_QUEUED = 2_000
KEEP_S = 24 * 3600
AT_ONCE = 200


# Runs known by labels alone.
SESSION = "labels"
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


class QueueFullError(Exception):
    """Samples arrive faster than they are assembled; nothing of the request was stored."""


def queue(hot: HotStore, written: WrittenSamples, *, arrived_s: float) -> None:
    """Queue the samples of one request; raises QueueFullError where they must wait.

    Samples of a node whose name is not valid are rejected.
    """
    nodes = [node for node in written.by_node if NAME.fullmatch(node)]
    for node in written.by_node.keys() - set(nodes):
        written.n_rejected += len(written.by_node[node])
        reason = f"{node[:40]!r} is not a valid name for a node: {NAME_RULE}"
        written.reason = written.reason or reason
    lengths = hot.execute_all(("LLEN", QUEUE + node) for node in nodes)
    if any(length >= MAX_QUEUED for length in lengths):
        raise QueueFullError
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
        for node in nodes:
            try:
                stored[node] = _assemble(hot, node, now_s=now_s)
            except (RedisError, OperationalError):
                # Nothing was removed: the next call reads the same samples.
                raise
            except Exception:
                # A node with unusable samples must not hold up the others.
                log.exception("The samples of node %s cannot be read; they are dropped", node)
                hot.execute("DEL", QUEUE + node, STATE + node)
                hot.count("ingest_errors")
        heard = [node for node, n_scrapes in stored.items() if n_scrapes]
        if heard:
            update_runs(heard, now=datetime.fromtimestamp(now_s, UTC))
        return sum(stored.values())
    finally:
        hot.execute("DEL", LOCK)


def _assemble(hot: HotStore, node: str, *, now_s: float) -> int:
    """Store the complete scrapes of one node; what is read from its queue is removed last."""
    stored, queued = hot.execute_all(
        [("GET", STATE + node), ("LRANGE", QUEUE + node, 0, AT_ONCE - 1)]
    )
    state = _STATE.decode(stored) if stored else NodeSeries()
    batch = IngestBatch(node=node)
    for one in map(_QUEUED.decode, queued):
        state.identity |= one.identity
        state.label(one.labels, arrived_s=one.arrived_s)
        for run, n in one.runs.items():
            state.runs[run] = state.runs.get(run, 0) + n
        batch.n_repeated += state.add(one.samples, arrived_s=one.arrived_s)[1]
    for reading, end_s in state.readings(now_s=now_s):
        batch.n_accepted += 1
        batch.period_s = reading.period_s
        last = math.floor(end_s)
        first = min(last, math.floor(end_s - reading.period_s) + 1)
        batch.blocks += [
            Block(shard_of(node), tick, (node,), reading.values) for tick in range(first, last + 1)
        ]
        try:
            store_row(node, reading.identity, reading.shape, reading.n_efa)
            labels = {name: value for name, (value, _) in state.labels.items()}
            if labels:
                store_labels(node, labels)
            if reading.values.keys() & OF_ACCELERATORS:
                now = datetime.fromtimestamp(now_s, UTC)
                assign_run(node, state.runs, reading, labels, now=now)
                state.runs = {}
        except RefusedError as error:
            batch.refuse(error.at(1))
            batch.blocks = []
    if batch.n_accepted:
        store_batches(hot, [batch])
    # If the process ends before this, the same samples are read again, to the same effect.
    commands: list[tuple[object, ...]] = [
        ("SET", STATE + node, msgspec.msgpack.encode(state), "EX", KEEP_S),
        ("LTRIM", QUEUE + node, len(queued), -1),
    ]
    is_done = not queued and not any(each.waiting for each in state.exporters.values())
    if is_done:
        commands += [("SREM", NODES, node), ("LLEN", QUEUE + node)]
    # Samples that arrived meanwhile put the node back.
    if hot.execute_all(commands)[-1] and is_done:
        hot.execute("SADD", NODES, node)
    return batch.n_accepted


def assign_run(
    node: str,
    runs: Mapping[str, int],
    reading: Reading,
    labels: Mapping[str, str],
    *,
    now: datetime,
) -> None:
    """Let a node train the run that most of its series name; a node without any is idle.

    Raises RefusedError if the run is simulated or imported, or there are too many.
    """
    row = Node.objects.select_related("run").get(name=node)
    before = row.run if row.run and row.run.finished_at is None else None
    # What a training job reports itself outweighs labels.
    if before is not None and before.session != SESSION:
        return
    name = max(runs, key=lambda run: (runs[run], run)) if runs else ""
    if name == (before.name if before else ""):
        return
    run = None
    if name:
        kind = reading.identity.instance_type or None
        of_run = {"namespace": labels["namespace"]} if "namespace" in labels else None
        line = RunLine(run=name, session=SESSION, instance_type=kind, labels=of_run)
        run = refresh_run(line, now=now)
        if run.session == SESSION and run.phase != Run.Phase.TRAINING:
            run.phase, run.phase_since, run.finished_at = Run.Phase.TRAINING, now, None
            run.save(update_fields=["phase", "phase_since", "finished_at"])
    Node.objects.filter(pk=row.pk).update(run=run)


def update_runs(heard: Collection[str], *, now: datetime) -> None:
    """Update the runs that labels alone name: those of the nodes just heard, and ended ones."""
    active = Run.objects.filter(session=SESSION, finished_at=None)
    in_use = Count("nodes", filter=Q(nodes__retired_at=None))
    n_nodes = dict(active.annotate(n=in_use).values_list("pk", "n"))
    over = [pk for pk, n in n_nodes.items() if not n]
    if over:
        Run.objects.filter(pk__in=over).update(
            finished_at=now, phase=Run.Phase.FINISHED, phase_since=now
        )
    for pk in active.filter(nodes__name__in=heard).values_list("pk", flat=True).distinct():
        Run.objects.filter(pk=pk).update(heard_at=now, paid_until=now, n_nodes=n_nodes[pk])
