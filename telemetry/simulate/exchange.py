"""Collectives inside a step: tensor-parallel ones, and the gradient exchange."""

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.simulate.constants import STEP_FABRICS, WEIGHT_BYTES, StepFabric
from telemetry.simulate.layout import Layout

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
        """Duration with nothing beside it."""
        return float(
            exchange_s(self.local_s, self.latency_s, self.bandwidth_s, overlaps=self.overlaps)
        )


def exchange_s(
    local_s: Seconds, latency_s: Seconds, bandwidth_s: Seconds, *, overlaps: bool
) -> Seconds:
    """Return the duration of an exchange from its parts; GPUs move inside and outside at once."""
    moved = np.maximum(local_s, bandwidth_s) if overlaps else np.add(local_s, bandwidth_s)
    return np.asarray(latency_s + moved)


def _fabric(layout: Layout) -> StepFabric:
    return STEP_FABRICS[layout.instance.chip.name]


def link_bytes_per_s(layout: Layout) -> float:
    """Return the bus bandwidth that one rank's ring gets inside a node."""
    return _fabric(layout).link_ratio * layout.instance.link_bytes_per_s


def tensor_parallel_s(layout: Layout) -> float:
    """Return what the tensor-parallel all-reduces of one micro-batch take, seconds.

    Notes
    -----
    Each layer all-reduces the hidden state twice forwards and twice backwards (M. Shoeybi et
    al., arXiv:1909.08053); a ring moves ``2 (tp - 1) / tp`` of it in ``2 (tp - 1)`` hops.
    Where a chip overlaps, half of that goes beside the products it is for.
    """
    tp, fabric = layout.job.tp, _fabric(layout)
    if tp == 1:
        return 0.0
    state = 2 * layout.micro_tokens * layout.model.hidden
    wire = 2 * (tp - 1) / tp * state / link_bytes_per_s(layout)
    passes = 4 + 2 * layout.recompute_ratio
    shown = 0.5 if layout.constants.overlaps else 1.0
    return shown * passes * layout.layers * (wire + 2 * (tp - 1) * fabric.hop_s)


def gradient_exchange(layout: Layout) -> Exchange:
    """Return the exchange of gradients between the replicas, once per step.

    Notes
    -----
    Reduce-scatter, then all-gather, each in two levels: inside the node, then between nodes,
    where every rank carries its share, so that all ranks use the network at once. Fully
    sharded, the weights are gathered twice and the gradients scattered once, layer by layer,
    for each micro-batch.
    """
    if layout.dp == 1:
        return Exchange()
    fabric, local, nodes = _fabric(layout), layout.dp_local, layout.dp_nodes
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
