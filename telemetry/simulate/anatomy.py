"""What a healthy step consists of: seconds of each phase, and what it moves and holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.catalog import Model
from telemetry.simulate.compute import micro_batch_work, rank_hbm_bytes_per_s, seconds
from telemetry.simulate.constants import (
    BACKWARD_RATIO,
    OPTIMIZER_BYTES,
    STATE_BYTES,
    STEP_FABRICS,
    WEIGHT_BYTES,
    ChipConstants,
)
from telemetry.simulate.exchange import (
    Exchange,
    exchange_s,
    gradient_exchange,
    tensor_parallel_s,
)
from telemetry.simulate.layout import Layout, lay_out
from telemetry.simulate.plan import Job

INPUT_S = 2e-3
CHECKPOINT_BYTES_PER_S = 2e9


@dataclass(frozen=True)
class StepPlan:
    """A healthy step: seconds of each phase on a healthy worker, and what it moves.

    ``work_s`` is the ``compute_s`` of a StepBatch. ``allreduce_*`` are the whole gradient
    exchange, hidden part included: ``local`` inside nodes, ``latency`` and ``bandwidth``
    between them. ``overlap_window_s`` is the computing that can hide it. ``hbm_bytes`` are
    per device and step, both ways.
    """

    layout: Layout
    exchange: Exchange
    compute_s: float
    bubble_s: float
    tp_collective_s: float
    optimizer_s: float
    overlap_window_s: float
    hbm_bytes: float
    input_s: float = INPUT_S

    @property
    def work_s(self) -> float:
        """A worker's own work: computing, bubble, tensor-parallel collectives, optimizer."""
        return self.compute_s + self.bubble_s + self.tp_collective_s + self.optimizer_s

    @property
    def step_s(self) -> float:
        """Duration of the step."""
        return self.work_s + self.exposed_allreduce_s + self.input_s

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds of each phase of the step; they add up to it."""
        return {
            "compute": self.compute_s,
            "bubble": self.bubble_s,
            "tensor parallel": self.tp_collective_s,
            "all-reduce": self.exposed_allreduce_s,
            "optimizer": self.optimizer_s,
            "input": self.input_s,
        }

    @property
    def allreduce_share_ratio(self) -> float:
        """Share of the step that the exposed gradient exchange takes."""
        return self.exposed_allreduce_s / self.step_s

    @cached_property
    def exposed_allreduce_s(self) -> float:
        """Part of the gradient exchange that nothing hides."""
        return float(exposed_allreduce_s(self))

    @property
    def hidden_allreduce_s(self) -> float:
        """Part of the gradient exchange that goes beside computing."""
        return self.exchange.total_s - self.exposed_allreduce_s

    @property
    def allreduce_local_s(self) -> float:
        """Part of the gradient exchange inside nodes."""
        return self.exchange.local_s

    @property
    def allreduce_latency_s(self) -> float:
        """Part of the gradient exchange that grows with the network's latency."""
        return self.exchange.latency_s

    @property
    def allreduce_bandwidth_s(self) -> float:
        """Part of the gradient exchange that shrinks with the network's bandwidth."""
        return self.exchange.bandwidth_s

    @property
    def unhidden_ratio(self) -> float:
        """Share of the gradient exchange that no overlap hides."""
        return STEP_FABRICS[self.layout.instance.chip.name].unhidden_ratio

    @property
    def n_messages(self) -> int:
        """Messages of the gradient exchange that each rank takes part in."""
        return self.exchange.n_messages

    @property
    def n_hops(self) -> int:
        """Hops between nodes, of all messages one after another."""
        return self.exchange.n_hops

    @property
    def allreduce_bytes(self) -> float:
        """Bytes of gradients and weights that one rank exchanges per step."""
        return self.exchange.bytes_per_rank

    @property
    def efa_bytes(self) -> float:
        """Bytes that one node sends to others per step."""
        return self.exchange.efa_bytes

    @property
    def efa_device_bytes(self) -> float:
        """Bytes that one EFA device sends per step; all carry the same. 0 without EFA."""
        return self.efa_bytes / self.layout.instance.n_efa if self.layout.instance.has_efa else 0.0

    @property
    def tokens(self) -> int:
        """Tokens trained in a step."""
        return self.layout.job.global_batch * self.layout.job.seq_len

    @property
    def flops(self) -> float:
        """FLOPs that the tokens of a step need, whatever is computed twice."""
        return self.layout.model.flops_per_token(self.layout.job.seq_len) * self.tokens

    @property
    def params(self) -> float:
        """Parameters of the model."""
        return self.layout.model.params

    @property
    def device_memory_bytes(self) -> float:
        """HBM that the job holds on each device."""
        held = self.layout.state_bytes + self.layout.activation_bytes
        return held * self.layout.instance.chip.cores_logical

    @property
    def fits(self) -> bool:
        """Whether the job fits into the memory of its devices."""
        return self.device_memory_bytes <= self.layout.instance.chip.hbm_bytes

    @property
    def checkpoint_bytes(self) -> float:
        """Bytes of a checkpoint: weights, and what the optimizer keeps."""
        return self.params * (WEIGHT_BYTES + STATE_BYTES)

    @property
    def checkpoint_s(self) -> float:
        """Seconds of a checkpoint, each node writing its part."""
        return self.checkpoint_bytes / self.layout.job.nodes / CHECKPOINT_BYTES_PER_S


def step_plan(
    job: Job, model: Model | None = None, *, constants: ChipConstants | None = None
) -> StepPlan:
    """Predict a healthy step; JobError names the field that stands in the way.

    ``model`` and ``constants`` stand in for the catalogue's and the chip's own.
    """
    layout = lay_out(job, model, constants=constants)
    n = layout.micro_batches
    work, tp_s = micro_batch_work(layout), tensor_parallel_s(layout)
    busy_s = seconds(layout, work)
    optimized = OPTIMIZER_BYTES * layout.params / layout.dp
    return StepPlan(
        layout=layout,
        exchange=gradient_exchange(layout),
        compute_s=n * busy_s,
        bubble_s=(job.pp - 1) / layout.stage_chunks * (busy_s + tp_s),
        tp_collective_s=n * tp_s,
        optimizer_s=optimized / rank_hbm_bytes_per_s(layout),
        overlap_window_s=(busy_s + tp_s) * (n if layout.is_fully_sharded else BACKWARD_RATIO),
        hbm_bytes=(n * work.hbm_bytes + optimized) * layout.instance.chip.cores_logical,
    )


def exposed_allreduce_s(
    plan: StepPlan,
    *,
    latency_factor: FloatArray | float = 1.0,
    bandwidth_factor: FloatArray | float = 1.0,
    local_factor: FloatArray | float = 1.0,
    compute_factor: FloatArray | float = 1.0,
) -> FloatArray:
    """Return the exposed gradient exchange when a link, or the computing, is slower.

    Parameters
    ----------
    plan
        The healthy step.
    latency_factor, bandwidth_factor : any shapes that broadcast
        How many times longer a hop takes, and a byte, between nodes: the slowest link of the
        group, for it paces the ring for all.
    local_factor
        The same for a byte inside the node.
    compute_factor
        How many times longer the backward pass takes that hides the exchange.

    Returns
    -------
    seconds : of the factors' common shape
        ``max(exchange - window, unhidden_ratio * exchange)``.
    """
    total_s = exchange_s(
        plan.allreduce_local_s * np.asarray(local_factor),
        plan.allreduce_latency_s * np.asarray(latency_factor),
        plan.allreduce_bandwidth_s * np.asarray(bandwidth_factor),
        overlaps=plan.exchange.overlaps,
    )
    window_s = plan.overlap_window_s * np.asarray(compute_factor)
    return np.asarray(np.maximum(total_s - window_s, plan.unhidden_ratio * total_s), dtype=float)
