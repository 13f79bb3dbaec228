"""How long a collective takes on each family of fabrics, measured on its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Protocol

from telemetry.simulate.constants import STEP_FABRICS, US

KIB, MIB = 1024, 1024**2


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Duration of one collective: start-up and hops, then bytes."""

    latency_s: float
    bandwidth_s: float

    @property
    def total_s(self) -> float:
        """Duration of the whole."""
        return self.latency_s + self.bandwidth_s


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a collective must move, and over what.

    ``local_bytes`` goes along each rank's link inside the node, ``network_bytes`` out of
    each node; ``link_bytes_per_s`` and ``network_bytes_per_s`` are the published rates.
    """

    op: str
    n_nodes: int
    n_ranks: int
    n_bytes: float
    local_bytes: float
    network_bytes: float
    link_bytes_per_s: float
    network_bytes_per_s: float

    @property
    def is_reduction(self) -> bool:
        """Whether it reduces: these were measured with an older release than the others."""
        return self.op in {"all_reduce", "reduce_scatter"}


class Fabric(Protocol):
    """A family of fabrics."""

    def time(self, traffic: Traffic) -> CollectiveTime:
        """Return how long a collective takes."""
        ...


@dataclass(frozen=True, slots=True)
class NeuronLinkV2:
    """Trainium1: NeuronLink-v2 inside, EFA between nodes, as nccom-test measured them.

    Parameters
    ----------
    pair_s, pair_start_s, pair_ratio
        The two cores of one chip: no reduction ends sooner; start beside the bytes; bus
        bandwidth over link bandwidth.
    doubling_s
        What each doubling of ranks beyond two adds to the start of a reduction inside a node.
    network_start_s
        Start between nodes.
    round_s, piece_bytes, network_piece_bytes
        A message is halved into pieces no smaller than this, inside a node and between nodes;
        each round of halving, and then of doubling, takes so long.
    gather_s, gather_ratio, network_gather_s
        Start and bandwidth of all that doesn't reduce, in newer releases.
    exchange_s
        Start of an all-to-all between nodes.
    """

    pair_s: float = 58 * US
    pair_start_s: float = 35 * US
    pair_ratio: float = 0.148
    doubling_s: float = 80.7 * US
    network_start_s: float = 520 * US
    round_s: float = 65 * US
    piece_bytes: float = 16 * KIB
    network_piece_bytes: float = 64.0
    gather_s: float = 7.6 * US
    gather_ratio: float = 0.13
    network_gather_s: float = 101 * US
    exchange_s: float = 900 * US

    def time(self, traffic: Traffic) -> CollectiveTime:
        """Return how long a collective takes."""
        moved = self._local_s(traffic) + self._network_s(traffic)
        return CollectiveTime(self._start_s(traffic, moved), moved)

    def _start_s(self, traffic: Traffic, moved_s: float) -> float:
        if not traffic.is_reduction:
            return self._gather_start_s(traffic)
        if traffic.n_nodes > 1:
            return self.network_start_s + self._rounds_s(traffic, self.network_piece_bytes)
        if traffic.n_ranks == 2:
            return max(self.pair_s - moved_s, self.pair_start_s)
        start = self.pair_s + log2(traffic.n_ranks / 2) * self.doubling_s
        return start + self._rounds_s(traffic, self.piece_bytes)

    def _rounds_s(self, traffic: Traffic, piece_bytes: float) -> float:
        rounds = log2(1 + traffic.n_bytes / piece_bytes)
        return min(rounds, 2 * log2(traffic.n_ranks)) * self.round_s

    def _local_s(self, traffic: Traffic) -> float:
        ratio = STEP_FABRICS["Trainium1"].link_ratio
        if not traffic.is_reduction:
            ratio = self.gather_ratio
        elif traffic.n_ranks == 2:
            ratio = self.pair_ratio
        return traffic.local_bytes / (ratio * traffic.link_bytes_per_s)

    def _network_s(self, traffic: Traffic) -> float:
        ratio = STEP_FABRICS["Trainium1"].network_ratio
        return traffic.network_bytes / (ratio * traffic.network_bytes_per_s)

    def _gather_start_s(self, traffic: Traffic) -> float:
        if traffic.n_nodes == 1:
            return self.gather_s
        return self.exchange_s if traffic.op == "all_to_all" else self.network_gather_s


@dataclass(frozen=True, slots=True)
class NeuronLinkV3:
    """Trainium2: AWS's own cost model, steps times latency plus bytes over bandwidth.

    Mesh below 1 MB, recursive halving and doubling (RDH) up to 56 MB, KangaRing above.
    """

    start_s: float = 8 * US
    mesh_below: float = 1 * MIB
    rdh_below: float = 56 * MIB

    def time(self, traffic: Traffic) -> CollectiveTime:
        """Return how long a collective takes."""
        fabric = STEP_FABRICS["Trainium2"]
        phases = 2 if traffic.op == "all_reduce" else 1
        local_ranks = traffic.n_ranks // traffic.n_nodes
        if traffic.n_bytes < self.mesh_below:
            hops = 1.0
        elif traffic.n_bytes < self.rdh_below:
            hops = log2(local_ranks) if local_ranks > 1 else 0.0
        else:
            hops = local_ranks - 1
        latency = hops * fabric.hop_s + log2(traffic.n_nodes) * fabric.network_hop_s
        local = traffic.local_bytes / (fabric.link_ratio * traffic.link_bytes_per_s)
        network = traffic.network_bytes / (fabric.network_ratio * traffic.network_bytes_per_s)
        return CollectiveTime(self.start_s + phases * latency, local + network)


@dataclass(frozen=True, slots=True)
class Nccl:
    """GPUs: two protocols, the quick-starting one and the one with full bandwidth.

    Parameters
    ----------
    chip
        Whose step fabric gives the bandwidths of the full protocol.
    quick_s, quick_ratio
        Start of the low-latency protocol; its bus bandwidth over NVLink's.
    quick_hop_s
        What each doubling of nodes beyond two adds to it.
    full_s, full_hop_s
        Start of the full protocol, and what each doubling of nodes adds.

    Notes
    -----
    Between nodes the full protocol moves bytes inside and outside at the same time.
    """

    chip: str
    quick_s: float = 13 * US
    quick_ratio: float = 0.15
    quick_hop_s: float = 15 * US
    full_s: float = 370 * US
    full_hop_s: float = 1830 * US

    def time(self, traffic: Traffic) -> CollectiveTime:
        """Return how long a collective takes: the quicker of the two protocols."""
        return min(self._quick(traffic), self._full(traffic), key=lambda time: time.total_s)

    def _quick(self, traffic: Traffic) -> CollectiveTime:
        hops = max(0.0, log2(traffic.n_nodes) - 1)
        return CollectiveTime(
            self.quick_s + hops * self.quick_hop_s, self._moved_s(traffic, self.quick_ratio)
        )

    def _full(self, traffic: Traffic) -> CollectiveTime:
        start = self.full_s + log2(traffic.n_nodes) * self.full_hop_s
        return CollectiveTime(start, self._moved_s(traffic, STEP_FABRICS[self.chip].link_ratio))

    def _moved_s(self, traffic: Traffic, link_ratio: float) -> float:
        ratio = STEP_FABRICS[self.chip].network_ratio
        return max(
            traffic.local_bytes / (link_ratio * traffic.link_bytes_per_s),
            traffic.network_bytes / (ratio * traffic.network_bytes_per_s),
        )


FABRICS: Mapping[str, Fabric] = {
    "Trainium1": NeuronLinkV2(),
    "Inferentia2": NeuronLinkV2(),
    "Trainium2": NeuronLinkV3(),
    "A100-40GB": Nccl("A100-40GB"),
    "H100": Nccl("H100"),
    "H200": Nccl("H200"),
}
