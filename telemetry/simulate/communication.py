"""Collectives within a step: tensor-parallel ones, and the gradient exchange."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import Protocol

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.catalog import Instance
from telemetry.errors import FieldError
from telemetry.simulate.constants import STEP_FABRICS, US, WEIGHT_BYTES, StepFabric
from telemetry.simulate.layout import Layout

KIB, MIB = 1024, 1024**2


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    latency_s: float
    bandwidth_s: float

    @property
    def total_s(self) -> float:
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
        """Whether it is a reduction; those were measured with an older release."""
        return self.op in {"all_reduce", "reduce_scatter"}


class Fabric(Protocol):
    def time(self, traffic: Traffic) -> CollectiveTime: ...


@dataclass(frozen=True, slots=True)
class NeuronLinkV2:
    """Trainium1: NeuronLink-v2 inside, EFA between nodes, as nccom-test measured them."""

    # pair_s, pair_start_s, pair_ratio: The two cores of one chip: no reduction ends sooner; start
    # before the bytes; bus bandwidth over link bandwidth.
    pair_s: float = 58 * US
    pair_start_s: float = 35 * US
    pair_ratio: float = 0.148
    # What each doubling of ranks beyond two adds to the start of a reduction inside a node.
    doubling_s: float = 80.7 * US
    network_start_s: float = 520 * US  # Start between nodes.
    # round_s, piece_bytes, network_piece_bytes: A message is halved into pieces no smaller than
    # this, inside a node and between nodes; each round of halving, and then of doubling, takes so
    # long.
    round_s: float = 65 * US
    piece_bytes: float = 16 * KIB
    network_piece_bytes: float = 64.0
    # gather_s, gather_ratio, network_gather_s: Start and bandwidth of all that doesn't reduce, in
    # newer releases.
    gather_s: float = 7.6 * US
    gather_ratio: float = 0.13
    network_gather_s: float = 101 * US
    exchange_s: float = 900 * US  # Start of an all-to-all between nodes.

    def time(self, traffic: Traffic) -> CollectiveTime:
        fabric = STEP_FABRICS["Trainium1"]
        is_pair = traffic.n_ranks == 2
        if traffic.is_reduction:
            ratio = self.pair_ratio if is_pair else fabric.link_ratio
        else:
            ratio = self.gather_ratio
        local_s = traffic.local_bytes / (ratio * traffic.link_bytes_per_s)
        rate = fabric.network_ratio * traffic.network_bytes_per_s
        moved_s = local_s + traffic.network_bytes / rate
        if not traffic.is_reduction and traffic.n_nodes == 1:
            start_s = self.gather_s
        elif not traffic.is_reduction:
            is_exchange = traffic.op == "all_to_all"
            start_s = self.exchange_s if is_exchange else self.network_gather_s
        elif traffic.n_nodes > 1:
            start_s = self.network_start_s + self._rounds_s(traffic, self.network_piece_bytes)
        elif is_pair:
            start_s = max(self.pair_s - moved_s, self.pair_start_s)
        else:
            start_s = self.pair_s + log2(traffic.n_ranks / 2) * self.doubling_s
            start_s += self._rounds_s(traffic, self.piece_bytes)
        return CollectiveTime(start_s, moved_s)

    def _rounds_s(self, traffic: Traffic, piece_bytes: float) -> float:
        rounds = log2(1 + traffic.n_bytes / piece_bytes)
        return min(rounds, 2 * log2(traffic.n_ranks)) * self.round_s


@dataclass(frozen=True, slots=True)
class NeuronLinkV3:
    """Trainium2: AWS's own cost model, steps times latency plus bytes over bandwidth.

    Mesh below 1 MB, recursive halving and doubling (RDH) up to 56 MB, KangaRing above.
    """

    start_s: float = 8 * US
    mesh_below: float = 1 * MIB
    rdh_below: float = 56 * MIB

    def time(self, traffic: Traffic) -> CollectiveTime:
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
class NcclFabric:
    """GPUs: two protocols, the quick-starting one and the one with full bandwidth.

    Notes
    -----
    Between nodes the full protocol moves bytes inside and outside at the same time.
    """

    chip: str  # Whose step fabric gives the bandwidths of the full protocol.
    # quick_s, quick_ratio: Start of the low-latency protocol; its bus bandwidth over NVLink's.
    quick_s: float = 13 * US
    quick_ratio: float = 0.15
    quick_hop_s: float = 15 * US  # What each doubling of nodes beyond two adds to it.
    # full_s, full_hop_s: Start of the full protocol, and what each doubling of nodes adds.
    full_s: float = 370 * US
    full_hop_s: float = 1830 * US

    def time(self, traffic: Traffic) -> CollectiveTime:
        hops = max(0.0, log2(traffic.n_nodes) - 1)
        quick = CollectiveTime(
            self.quick_s + hops * self.quick_hop_s, self._moved_s(traffic, self.quick_ratio)
        )
        full = CollectiveTime(
            self.full_s + log2(traffic.n_nodes) * self.full_hop_s,
            self._moved_s(traffic, STEP_FABRICS[self.chip].link_ratio),
        )
        return min(quick, full, key=lambda time: time.total_s)

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
    "A100-40GB": NcclFabric("A100-40GB"),
    "A100-80GB": NcclFabric("A100-80GB"),
    "H100": NcclFabric("H100"),
    "H200": NcclFabric("H200"),
}


# How often the message passes each rank's link in a ring of n, times n / (n - 1).
OPS: Mapping[str, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def _passes(op: str, n: int) -> float:
    return OPS[op] * (n - 1) / n


def collective_time_s(
    instance: Instance, *, n_nodes: int, n_ranks: int, n_bytes: int, op: str = "all_reduce"
) -> CollectiveTime:
    """Predict how long one collective takes.

    Parameters
    ----------
    instance : type of every node
        Its chip decides on the fabric, its links on the rates.
    n_nodes, n_ranks : counts
        Ranks are cores as the runtime counts them, spread evenly over the nodes.
    n_bytes : bytes
        The message as the tools print its size: what each rank reduces, gathers in all,
        starts from, or sends in all.
    op : one of OPS

    Returns
    -------
    time : latency and bandwidth parts, seconds

    Notes
    -----
    Two levels: a ring inside each node, then between nodes with all ranks of a node side by
    side. Calibrated on nccom-test for Trainium1, nccl-tests for GPUs, and on AWS's published
    cost model for Trainium2, for which no multi-node run is public.

    References
    ----------
    aws-neuron-sdk, neuron-runtime/about/collectives.rst and nccom-test.rst.

    >>> from telemetry.catalog import instance
    >>> one = collective_time_s(instance("trn1.32xlarge"), n_nodes=2, n_ranks=64, n_bytes=2**30)
    >>> round(one.total_s, 3)
    0.042
    """
    _check(instance, n_nodes, n_ranks, n_bytes, op)
    local = n_ranks // n_nodes
    if op == "all_to_all":
        inside, outside = (local - 1) / n_ranks, local * (n_ranks - local) / n_ranks
    else:
        inside, outside = _passes(op, local), _passes(op, n_nodes)
    traffic = Traffic(
        op=op,
        n_nodes=n_nodes,
        n_ranks=n_ranks,
        n_bytes=n_bytes,
        local_bytes=inside * n_bytes,
        network_bytes=outside * n_bytes,
        link_bytes_per_s=instance.link_bytes_per_s,
        network_bytes_per_s=instance.network_bytes_per_s,
    )
    return FABRICS[instance.chip.name].time(traffic)


def bus_bytes_per_s(time: CollectiveTime, *, n_ranks: int, n_bytes: int, op: str) -> float:
    """Bus bandwidth: bytes per second over each link of a flat ring."""
    return _passes(op, n_ranks) * n_bytes / time.total_s


def _check(instance: Instance, n_nodes: int, n_ranks: int, n_bytes: int, op: str) -> None:
    if op not in OPS:
        raise FieldError("op", f"{op!r} is not known; take one of {', '.join(OPS)}")
    if instance.chip.name not in FABRICS:
        raise FieldError(
            "instance", f"no collective on {instance.chip.name} is published to estimate from"
        )
    if n_nodes < 1:
        raise FieldError("nodes", f"{n_nodes} is too few; take at least 1")
    if n_bytes < 1:
        raise FieldError("bytes", f"{n_bytes} is too few; take at least 1")
    most = n_nodes * instance.n_cores
    if n_ranks < 2 or n_ranks > most:
        raise FieldError(
            "ranks",
            f"{n_ranks} does not go on {n_nodes} x {instance.name}, which has "
            f"{instance.n_cores} cores each; take 2 to {most}",
        )
    if n_ranks % n_nodes:
        raise FieldError(
            "ranks", f"{n_ranks} does not divide by {n_nodes} nodes; take a multiple of {n_nodes}"
        )


Seconds = FloatArray | float


@dataclass(frozen=True, slots=True)
class Exchange:
    """The gradient exchange of one step, as one rank sees it.

    ``local_s`` goes over NeuronLink or NVLink; ``latency_s`` and ``bandwidth_s`` over the
    network, per hop and per byte. ``n_hops`` are the hops of all messages one after another;
    ``efa_bytes`` is what one node sends.
    """

    local_s: float = 0.0
    latency_s: float = 0.0
    bandwidth_s: float = 0.0
    overlaps: bool = False
    n_messages: int = 0
    n_hops: int = 0
    bytes_per_rank: float = 0.0
    efa_bytes: float = 0.0

    @property
    def total_s(self) -> float:
        return float(
            exchange_s(self.local_s, self.latency_s, self.bandwidth_s, overlaps=self.overlaps)
        )


def exchange_s(
    local_s: Seconds, latency_s: Seconds, bandwidth_s: Seconds, *, overlaps: bool
) -> Seconds:
    """Compute the duration of an exchange; GPUs use both fabrics at once."""
    moved = np.maximum(local_s, bandwidth_s) if overlaps else np.add(local_s, bandwidth_s)
    return np.asarray(latency_s + moved)


def _fabric(layout: Layout) -> StepFabric:
    return STEP_FABRICS[layout.instance.chip.name]


def link_bytes_per_s(layout: Layout) -> float:
    """Bus bandwidth of the ring of one rank inside a node."""
    return _fabric(layout).link_ratio * layout.instance.link_bytes_per_s


def _network_bytes_per_s(layout: Layout) -> float:
    """Share of one rank in what leaves its node."""
    rate = layout.instance.network_bytes_per_s * _fabric(layout).network_ratio
    return rate / layout.instance.n_cores


def _state_bytes(layout: Layout) -> float:
    return 2 * layout.micro_tokens * layout.model.hidden


def tensor_parallel_s(layout: Layout) -> float:
    """Compute the tensor-parallel collectives of one micro-batch: seconds.

    Each layer all-reduces the hidden state twice forwards and twice backwards (M. Shoeybi et
    al., arXiv:1909.08053); a ring moves ``2 (tp - 1) / tp`` of it in ``2 (tp - 1)`` hops.
    Sequence parallelism splits each into a reduce-scatter and an all-gather of the same bytes.
    Where a chip overlaps, half of that overlaps the products it is for.
    """
    tp, fabric = layout.job.tp, _fabric(layout)
    if tp == 1:
        return 0.0
    wire = 2 * (tp - 1) / tp * _state_bytes(layout) / link_bytes_per_s(layout)
    passes = 6 if layout.recompute == "full" else 4
    shown = fabric.shown_ratio
    return shown * passes * layout.layers * (wire + 2 * (tp - 1) * fabric.hop_s)


def context_parallel_s(layout: Layout, attention_s: float) -> float:
    """Compute what context parallelism adds to one micro-batch: seconds.

    Parameters
    ----------
    attention_s : attention of the micro-batch, which overlaps the exchange where a chip overlaps

    Notes
    -----
    Keys and values go around the ring once forwards and, with their gradients, twice backwards
    (H. Liu et al., Ring Attention, arXiv:2310.01889).
    """
    job, model, fabric = layout.job, layout.model, _fabric(layout)
    if job.cp == 1:
        return 0.0
    width = 2 * model.hidden / model.heads * -(-model.kv_heads // job.tp)
    sent = 3 * 2 * layout.micro_tokens * width * (job.cp - 1) * layout.layers
    is_local = job.tp * job.cp <= layout.instance.n_cores
    rate = link_bytes_per_s(layout) if is_local else _network_bytes_per_s(layout)
    hop_s = fabric.hop_s if is_local else fabric.network_hop_s
    took_s = sent / rate + 3 * (job.cp - 1) * layout.layers * hop_s
    return max(0.0, took_s - attention_s) if layout.constants.overlaps else took_s


def pipeline_s(layout: Layout) -> float:
    """Compute what stages send each other for one micro-batch: seconds.

    The hidden state forwards and its gradient backwards, once per piece of a stage. Where a chip
    overlaps, half of it does.
    """
    job = layout.job
    if job.pp == 1:
        return 0.0
    is_local = job.nodes < job.pp
    rate = link_bytes_per_s(layout) if is_local else _network_bytes_per_s(layout)
    sent = 2 * _state_bytes(layout) / (job.tp if layout.sequence_parallel else 1)
    return _fabric(layout).shown_ratio * layout.vp * sent / rate


def gradient_exchange(layout: Layout) -> Exchange:
    """Compute the gradient exchange between replicas, once per step.

    Reduce-scatter, then all-gather, each in two levels: inside the node, then between nodes,
    where every rank carries its share, so that all ranks use the network at once. Fully
    sharded, the weights are gathered twice and the gradients scattered once, layer by layer,
    for each micro-batch.
    """
    if layout.replicas == 1:
        return Exchange()
    fabric, local, nodes = _fabric(layout), layout.replicas_local, layout.replica_nodes
    halves = 2 * WEIGHT_BYTES if layout.is_fully_sharded else WEIGHT_BYTES
    times = layout.micro_batches if layout.is_fully_sharded else 1
    moved = times * layout.params * (halves + fabric.gradient_bytes)
    n_messages = times * layout.layers * (3 if layout.is_fully_sharded else 2)
    sent = moved / local * (nodes - 1) / nodes
    network = layout.instance.network_bytes_per_s * fabric.network_ratio
    efa_bytes = sent * layout.instance.n_cores
    hops = min(nodes - 1, 2 * ceil(log2(nodes))) if fabric.halves else nodes - 1
    n_hops = n_messages * hops
    local_hops = n_messages * (local - 1)
    return Exchange(
        local_s=moved * (local - 1) / local / link_bytes_per_s(layout) + local_hops * fabric.hop_s,
        latency_s=n_hops * fabric.network_hop_s,
        bandwidth_s=efa_bytes / network,
        overlaps=layout.constants.overlaps,
        n_messages=n_messages,
        n_hops=n_hops,
        bytes_per_rank=moved,
        efa_bytes=efa_bytes,
    )
