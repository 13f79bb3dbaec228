"""The families of the EFA exporter: as a node's agent read the counters, or as simulated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.exporter import neuron_exporter_names as names
from telemetry.exporter.exposition import ArrayFamily, LabelRows, SeriesArray, format_values
from telemetry.exporter.hardware import HotSnapshot
from telemetry.exporter.neuron_exporter_names import NodeLabels
from telemetry.store.hot import HotStore
from telemetry.store.node_state import RATES, EfaCounts, efa_counts, read_sidecars

COUNTERS = tuple(names.COUNTERS)
MAX_NODES = 64
# Assumed sizes for counters that the simulation does not have.
PACKET_BYTES, WRITE_BYTES = 8192.0, 2.0**20
N_COMMANDS, LIFESPAN_MS = 1024.0, 10.0
PORT = "1"

Parts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Devices:
    """The EFA devices of similar nodes: ``counts`` (n_counters, n_nodes, n_devices)."""

    nodes: tuple[str, ...]
    parts: Parts
    counts: FloatArray


def efa_families(
    hot: HotStore,
    snapshot: HotSnapshot,
    identities: Mapping[str, NodeLabels],
    *,
    is_alone: bool = False,
) -> list[ArrayFamily]:
    """Return the families of the EFA exporter for every node that is up and has EFA.

    ``is_alone``: the page is about one node, so series do not name it.
    """
    devices = [*_simulated(hot, snapshot, identities), *_real(hot, snapshot, identities)]
    specs = (*names.COUNTERS.values(), names.INFO)
    if not is_alone:
        specs = tuple(map(names.of_many, specs))
    return [ArrayFamily(spec, partial(_arrays, i, devices)) for i, spec in enumerate(specs)]


def _arrays(place: int, devices: Sequence[Devices]) -> Iterator[SeriesArray]:
    """Yield one counter of all devices; after the last counter the info series."""
    for each in devices:
        rows = LabelRows(dict.fromkeys(names.OF_NODE, each.nodes))
        if place < len(COUNTERS):
            values, labels, parts = each.counts[place], names.LABELS, each.parts
            yield SeriesArray(rows, labels, parts, format_values(values), np.isfinite(values))
        else:
            devices_once = tuple(dict.fromkeys((device,) for device, _ in each.parts))
            ones = format_values(np.ones((len(rows), len(devices_once))))
            yield SeriesArray(rows, ("device",), devices_once, ones)


def _real(
    hot: HotStore, snapshot: HotSnapshot, identities: Mapping[str, NodeLabels]
) -> Iterator[Devices]:
    alike: dict[Parts, list[tuple[str, FloatArray]]] = {}
    nodes = iter(
        sorted(n for n in snapshot.up if n in identities and not identities[n].is_simulated)
    )
    while some := tuple(islice(nodes, MAX_NODES)):
        for node, ports in read_sidecars(hot, "efa", some).items():
            parts, counts = _read(ports)
            alike.setdefault(parts, []).append((node, counts))
    for parts, members in alike.items():
        for i in range(0, len(members), MAX_NODES):
            names_, counted = zip(*members[i : i + MAX_NODES], strict=True)
            yield Devices(tuple(names_), parts, np.stack(counted, axis=1))


def _read(ports: Sequence[Mapping[str, Any]]) -> tuple[Parts, FloatArray]:
    """Device and port of each counted port, and the counters (n_counters, n_ports)."""
    parts = tuple((port["device"], str(port["port"])) for port in ports)
    rows = [port["counters"] for port in ports]
    counts = [[row.get(name) for row in rows] for name in COUNTERS]
    return parts, np.array(counts, float).reshape(len(COUNTERS), len(parts))


def _simulated(
    hot: HotStore, snapshot: HotSnapshot, identities: Mapping[str, NodeLabels]
) -> Iterator[Devices]:
    """Yield the devices of simulated nodes; their counters are the sums of their rates."""
    shards = {}
    for batch in snapshot.batches:
        for shard, (tick, layout, _) in zip(batch.shards, batch.packed, strict=True):
            # Nodes of a shard are alike.
            known = next((identities[node] for node in layout.nodes if node in identities), None)
            if known and known.is_simulated and known.machine and known.machine.has_efa:
                shards[shard] = tick
    for counts in efa_counts(hot, shards).values():
        up = [
            i for i, node in enumerate(counts.nodes) if node in snapshot.up and node in identities
        ]
        if up:
            nodes = tuple(counts.nodes[i] for i in up)
            n_efa = counts.sums.shape[2]
            yield Devices(nodes, _parts(n_efa), _derived(counts, up))


@cache
def _parts(n_efa: int) -> Parts:
    """Name simulated devices as the driver names real ones, after their PCI bus."""
    return tuple((f"rdmap{16 * (i + 1)}s27", PORT) for i in range(n_efa))


def _derived(counts: EfaCounts, up: Sequence[int]) -> FloatArray:
    """Return every counter of simulated devices: (n_counters, n_nodes, n_efa).

    All payload counts as written by RDMA. What a healthy device never counts is zero; what
    only some drivers have is absent.
    """
    known = dict(zip(RATES, np.floor(counts.sums[:, up]), strict=True))
    sent, got = known["efa_tx_bytes_per_s"], known["efa_rx_bytes_per_s"]
    again = known["efa_retransmits_per_s"]
    impaired = known["efa_impaired_per_s"]
    known_counters: dict[str, FloatArray | float] = {
        "tx_bytes": sent,
        "tx_pkts": known["efa_tx_packets_per_s"],
        "rx_bytes": got,
        "rx_pkts": np.floor(got / PACKET_BYTES),
        "rx_drops": known["efa_drops_per_s"],
        "rdma_write_bytes": sent,
        "rdma_write_wrs": np.ceil(sent / WRITE_BYTES),
        "rdma_write_recv_bytes": got,
        "retrans_bytes": again * PACKET_BYTES,
        "retrans_pkts": again,
        "retrans_timeout_events": impaired,
        "impaired_remote_conn_events": impaired,
        "unresponsive_remote_events": known["efa_unresponsive_per_s"],
        "lifespan": LIFESPAN_MS,
        "submitted_cmds": N_COMMANDS,
        "completed_cmds": N_COMMANDS,
        "keep_alive_rcvd": float(counts.n_ticks),
        **dict.fromkeys(names.OF_SOME_DRIVERS, np.nan),
    }
    return np.stack(
        [np.broadcast_to(known_counters.get(name, 0.0), sent.shape) for name in COUNTERS]
    )
