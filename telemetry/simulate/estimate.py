"""What a healthy step consists of, and what a job makes of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.catalog import Model
from telemetry.simulate.compute import micro_batch_work, rank_hbm_bytes_per_s, seconds
from telemetry.simulate.constants import (
    BACKWARD_RATIO,
    OPTIMIZER_BYTES,
    STEP_FABRICS,
    ChipConstants,
)
from telemetry.simulate.exchange import exchange_s, gradient_exchange, tensor_parallel_s
from telemetry.simulate.layout import JobError, Layout, lay_out
from telemetry.simulate.plan import Job

__all__ = [
    "Estimate",
    "JobError",
    "StepPlan",
    "estimate",
    "estimate_of",
    "exposed_allreduce_s",
    "step_plan",
]

INPUT_S = 2e-3
CHECKPOINT_BYTES_PER_S = 2e9


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A healthy step: seconds of each phase on a healthy worker, and what it moves.

    ``compute_s`` of a StepBatch is ``work_s`` here. ``allreduce_*`` are the whole gradient
    exchange, hidden part included: ``local`` inside nodes, ``latency`` and ``bandwidth``
    between them. ``overlap_window_s`` is the backward work that can hide it.
    Bytes of HBM are per device, of EFA per node sent, per step.
    """

    layout: Layout
    compute_s: float
    bubble_s: float
    tp_collective_s: float
    exposed_allreduce_s: float
    hidden_allreduce_s: float
    optimizer_s: float
    input_s: float
    allreduce_local_s: float
    allreduce_latency_s: float
    allreduce_bandwidth_s: float
    overlap_window_s: float
    unhidden_ratio: float
    n_messages: int
    n_hops: int
    tokens: int
    flops: float
    params: float
    allreduce_bytes: float
    efa_bytes: float
    hbm_bytes: float
    device_memory_bytes: float
    checkpoint_bytes: float
    checkpoint_s: float

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
    def efa_device_bytes(self) -> float:
        """Bytes that one EFA device sends per step; all carry the same. 0 without EFA."""
        return self.efa_bytes / self.layout.instance.n_efa if self.layout.instance.has_efa else 0.0

    @property
    def fits(self) -> bool:
        """Whether the job fits into the memory of its devices."""
        return self.device_memory_bytes <= self.layout.instance.chip.hbm_bytes

    @property
    def allreduce_share_ratio(self) -> float:
        """Share of the step that the exposed gradient exchange takes."""
        return self.exposed_allreduce_s / self.step_s

    @property
    def latency_term_s(self) -> float:
        """Part of the gradient exchange that grows with the network's latency."""
        return self.allreduce_latency_s

    @property
    def bandwidth_term_s(self) -> float:
        """Part of the gradient exchange that shrinks with the network's bandwidth."""
        return self.allreduce_bandwidth_s


def step_plan(
    job: Job, model: Model | None = None, *, constants: ChipConstants | None = None
) -> StepPlan:
    """Predict a healthy step; JobError names the field that stands in the way.

    ``model`` and ``constants`` stand in for the catalogue's and the chip's own.
    """
    layout = lay_out(job, model, constants=constants)
    work = micro_batch_work(layout)
    micro_s = seconds(layout, work)
    tp_s = tensor_parallel_s(layout)
    n = layout.micro_batches
    optimized = OPTIMIZER_BYTES * layout.params / layout.dp
    exchange = gradient_exchange(layout)
    unhidden = STEP_FABRICS[layout.instance.chip.name].unhidden_ratio
    window = (micro_s + tp_s) * (n if layout.is_fully_sharded else BACKWARD_RATIO)
    exposed = _exposed(exchange.total_s, window, unhidden)
    state = layout.model.params * 14
    return StepPlan(
        layout=layout,
        compute_s=n * micro_s,
        bubble_s=(layout.job.pp - 1) / layout.stage_chunks * (micro_s + tp_s),
        tp_collective_s=n * tp_s,
        exposed_allreduce_s=float(exposed),
        hidden_allreduce_s=float(exchange.total_s - exposed),
        optimizer_s=optimized / rank_hbm_bytes_per_s(layout),
        input_s=INPUT_S,
        allreduce_local_s=exchange.local_s,
        allreduce_latency_s=exchange.latency_s,
        allreduce_bandwidth_s=exchange.bandwidth_s,
        overlap_window_s=window,
        unhidden_ratio=unhidden,
        n_messages=exchange.n_messages,
        n_hops=exchange.n_hops,
        tokens=job.global_batch * job.seq_len,
        flops=layout.model.flops_per_token(job.seq_len) * job.global_batch * job.seq_len,
        params=layout.model.params,
        allreduce_bytes=exchange.bytes_per_rank,
        efa_bytes=exchange.efa_bytes,
        hbm_bytes=(n * work.hbm_bytes + optimized) * layout.instance.chip.cores_logical,
        device_memory_bytes=(layout.state_bytes + layout.activation_bytes)
        * layout.instance.chip.cores_logical,
        checkpoint_bytes=state,
        checkpoint_s=state / layout.job.nodes / CHECKPOINT_BYTES_PER_S,
    )


def _exposed(total_s: Any, window_s: Any, unhidden_ratio: float) -> Any:
    return np.maximum(total_s - window_s, unhidden_ratio * total_s)


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
    """
    total = exchange_s(
        plan.allreduce_local_s * np.asarray(local_factor),
        plan.allreduce_latency_s * np.asarray(latency_factor),
        plan.allreduce_bandwidth_s * np.asarray(bandwidth_factor),
        overlaps=plan.layout.constants.overlaps,
    )
    window = plan.overlap_window_s * np.asarray(compute_factor)
    return np.asarray(_exposed(total, window, plan.unhidden_ratio), dtype=float)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job makes of its steps; ``usd_per_mtok`` None where no price is published."""

    step_s: float
    seq_per_s: float
    tokens_per_s: float
    mfu_ratio: float
    allreduce_share_ratio: float
    usd_per_mtok: float | None


def estimate(job: Job, model: Model | None = None) -> Estimate:
    """Predict a job's throughput, utilization of peak, all-reduce share and cost."""
    return estimate_of(step_plan(job, model))


def estimate_of(plan: StepPlan) -> Estimate:
    """Return what a job makes of its steps."""
    job, instance = plan.layout.job, plan.layout.instance
    tokens_per_s = plan.tokens / plan.step_s
    usd_per_s = job.nodes * instance.price.usd_per_hour / 3600 if instance.prices else None
    return Estimate(
        step_s=plan.step_s,
        seq_per_s=job.global_batch / plan.step_s,
        tokens_per_s=tokens_per_s,
        mfu_ratio=plan.flops / plan.step_s / (job.nodes * instance.peak_flops(job.precision)),
        allreduce_share_ratio=plan.allreduce_share_ratio,
        usd_per_mtok=None if usd_per_s is None else usd_per_s / tokens_per_s * 1e6,
    )
