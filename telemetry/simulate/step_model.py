"""The step model: throughput, MFU, all-reduce share and cost of a job."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.catalog import Model
from telemetry.simulate.communication import (
    Exchange,
    context_parallel_s,
    exchange_s,
    gradient_exchange,
    pipeline_s,
    tensor_parallel_s,
)
from telemetry.simulate.constants import (
    ACCUMULATE_BYTES,
    ASSUMED,
    BACKWARD_RATIO,
    FLASH_FORWARD_RATIO,
    FLASH_RATIO,
    FORWARD_RATIO,
    KEPT_BYTES,
    OPTIMIZER_BYTES,
    SPREADS,
    STATE_BYTES,
    STEP_FABRICS,
    WEIGHT_BYTES,
    ChipConstants,
)
from telemetry.simulate.layout import Layout, lay_out
from telemetry.simulate.plan import Job
from telemetry.units import TOKENS_PER_MTOK

ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class ComputeWork:
    """FLOPs of matrix products and attention; HBM bytes of the products and of all else."""

    matmul_flops: float = 0.0
    attention_flops: float = 0.0
    matmul_bytes: float = 0.0
    stream_bytes: float = 0.0

    @property
    def hbm_bytes(self) -> float:
        return self.matmul_bytes + self.stream_bytes

    def __add__(self, other: "ComputeWork") -> "ComputeWork":
        return ComputeWork(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, factor: float) -> "ComputeWork":
        return ComputeWork(*(factor * getattr(self, f.name) for f in fields(self)))


def product(rows: float, inner: float, columns: float, *, size: float = 0.0) -> ComputeWork:
    """Return the work of one matrix product, forwards and backwards.

    Parameters
    ----------
    rows, inner, columns : a matrix of (rows, inner) times one of (inner, columns)
    size : rows, inner dimension or columns at which half the speed is lost

    Returns
    -------
    work
        Forwards once and backwards twice (for the input's gradient and the weight's), each
        reading two matrices and writing one, 16 bit, nothing kept on the chip in between.
        The FLOPs of a small product count for more: its tiles fill the chip less well.
    """
    moved = rows * inner + inner * columns + rows * columns
    stretch = 1 + size * (1 / rows + 1 / inner + 1 / columns)
    return ComputeWork(
        matmul_flops=6 * rows * inner * columns * stretch, matmul_bytes=3 * ELEMENT_BYTES * moved
    )


def is_gated(model: Model) -> bool:
    """Whether the feed-forward block is gated (SwiGLU): three matrices instead of two.

    The shape closer to the parameter count is taken.
    """
    embeddings = 1.5 * model.head_params
    attention = 2 * model.hidden**2 * (1 + model.kv_heads / model.heads)
    two, three = (
        model.layers * (attention + matrices * model.hidden * model.ffn) + embeddings
        for matrices in (2, 3)
    )
    return abs(three - model.params) < abs(two - model.params)


def layer_work(layout: Layout) -> ComputeWork:
    """Work of one layer on one rank for one micro-batch, forward, backward and run again.

    Tensor parallelism cuts the weight matrices but not the hidden state that goes through
    them, so the bytes per FLOP grow with it. Of the rest it cuts what is inside the two blocks;
    norms and residuals only with sequence parallelism. Full recomputation runs the forward pass
    again: a third of the products more.
    """
    model, tp, tokens = layout.model, layout.job.tp, layout.micro_tokens
    constants = layout.constants
    hidden, head = model.hidden, model.hidden / model.heads
    kv_width = 2 * head * -(-model.kv_heads // tp)
    widening = 2 if is_gated(model) else 1
    size = constants.matmul_size
    dense = (
        product(tokens, hidden, hidden / tp + kv_width, size=size)
        + product(tokens, hidden / tp, hidden, size=size)
        + product(tokens, hidden, widening * model.ffn / tp, size=size)
        + product(tokens, model.ffn / tp, hidden, size=size)
    )
    seen = layout.job.seq_len * (0.5 if model.is_causal else 1.0)
    narrow = min(1.0, head / 128)
    scores = 12 * tokens * seen * hidden / tp / narrow
    whole = KEPT_BYTES["none"][0] / sum(KEPT_BYTES["none"])
    share = (1 - whole) / tp + whole / (tp if layout.sequence_parallel else 1)
    moved = constants.passes * share * hidden
    rest = ComputeWork(
        attention_flops=FLASH_RATIO * scores, stream_bytes=ELEMENT_BYTES * tokens * moved
    )
    if layout.recompute == "full":
        dense *= 1 + FORWARD_RATIO
    if layout.recompute != "none":
        rest += ComputeWork(
            attention_flops=FLASH_FORWARD_RATIO * rest.attention_flops,
            stream_bytes=FORWARD_RATIO * rest.stream_bytes,
        )
    return dense + rest


def head_work(layout: Layout) -> ComputeWork:
    """Work of the output projection on one rank of the last stage."""
    tokens = layout.head_ratio * layout.micro_tokens
    columns = layout.model.vocab / layout.job.tp
    return product(tokens, layout.model.hidden, columns, size=layout.constants.matmul_size)


def micro_batch_work(layout: Layout) -> ComputeWork:
    """Work of the busiest rank for one micro-batch: the last pipeline stage."""
    gathered = layout.micro_batches > 1
    accumulate = ComputeWork(matmul_bytes=gathered * ACCUMULATE_BYTES * layout.params)
    return layer_work(layout) * layout.layers + head_work(layout) + accumulate


def seconds(layout: Layout, work: ComputeWork) -> float:
    """Duration of work on one rank.

    A GPU overlaps memory traffic of a product with computing; on Trainium the two are added.
    Attention and the rest always follow.
    """
    precision, constants = layout.job.precision, layout.constants
    wide = 2 if precision == "fp32" else 1
    hbm = rank_hbm_bytes_per_s(layout) / wide
    flops = rank_flops_per_s(layout, precision) * constants.matmul_ratio[precision]
    parts = (work.matmul_flops / flops, work.matmul_bytes / hbm)
    products = max(parts) if constants.overlaps else sum(parts)
    return products + attention_s(layout, work) + work.stream_bytes / hbm


def attention_s(layout: Layout, work: ComputeWork) -> float:
    """Duration of the attention products, which run in 16 bit also in FP8 training."""
    precision = "fp32" if layout.job.precision == "fp32" else "bf16"
    return work.attention_flops / (
        rank_flops_per_s(layout, precision) * layout.constants.attention_ratio
    )


def rank_flops_per_s(layout: Layout, precision: str) -> float:
    """Peak of one rank."""
    chip = layout.instance.chip
    run_in = "bf16" if precision == "fp32" and layout.constants.casts else precision
    return chip.peak_flops[run_in] / chip.cores_logical


def rank_hbm_bytes_per_s(layout: Layout) -> float:
    chip = layout.instance.chip
    return chip.hbm_bytes_per_s / chip.cores_logical * layout.constants.hbm_ratio


INPUT_S = 2e-3
CHECKPOINT_BYTES_PER_S = 2e9
# Assumed: compiled graphs go to the chips in so many seconds. The first steps take so many times
# as long as settled ones: buffers are allocated, connections opened, the input pipeline filled.
GRAPH_LOAD_S = 10.0
FIRST_STEPS = (2.0, 1.25, 1.1)


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
        return self.work_s + self.exposed_allreduce_s + self.input_s

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds of each phase of the step; their sum is the step."""
        return {
            "compute": self.compute_s,
            "bubble": self.bubble_s,
            "model parallel": self.tp_collective_s,
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
        """Part of the gradient exchange that does not overlap computing."""
        return float(exposed_allreduce_s(self))

    @property
    def hidden_allreduce_s(self) -> float:
        """Part of the gradient exchange that overlaps computing."""
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
        """Sequential hops between nodes of all messages."""
        return self.exchange.n_hops

    @property
    def efa_bytes(self) -> float:
        """Bytes that one node sends to others per step."""
        return self.exchange.efa_bytes

    @property
    def efa_device_bytes(self) -> float:
        """Bytes that one EFA device sends per step, equal for all; 0 without EFA."""
        return self.efa_bytes / self.layout.instance.n_efa if self.layout.instance.has_efa else 0.0

    @property
    def tokens(self) -> int:
        return self.layout.job.global_batch * self.layout.job.seq_len

    @property
    def flops(self) -> float:
        """FLOPs of the tokens of a step, without recomputation."""
        return self.layout.model.flops_per_token(self.layout.job.seq_len) * self.tokens

    @property
    def executed_flops(self) -> float:
        """FLOPs of a step with what runs again: all forward products, or those of attention."""
        model, recompute = self.layout.model, self.layout.recompute
        again = {
            "none": 0.0,
            "selective": self.flops - 6 * model.params * self.tokens,
            "full": self.flops,
        }[recompute]
        return self.flops + FORWARD_RATIO * again

    @property
    def params(self) -> float:
        return self.layout.model.params

    @property
    def device_memory_bytes(self) -> float:
        """HBM that the job holds on each device."""
        held = self.layout.state_bytes + self.layout.activation_bytes
        return held * self.layout.instance.chip.cores_logical

    @property
    def fits(self) -> bool:
        """Whether the job fits into device memory."""
        return self.device_memory_bytes <= self.layout.instance.chip.hbm_bytes

    @property
    def checkpoint_bytes(self) -> float:
        """Bytes of a checkpoint: weights, and what the optimizer keeps."""
        return self.params * (WEIGHT_BYTES + STATE_BYTES)

    @property
    def checkpoint_s(self) -> float:
        """Seconds of a checkpoint, each node writing its part."""
        return self.checkpoint_bytes / self.layout.job.nodes / CHECKPOINT_BYTES_PER_S

    @property
    def load_s(self) -> float:
        """Seconds from a warm compile cache to the first step: graphs, then a checkpoint."""
        compiles = self.layout.instance.chip.vendor == "AWS"
        return GRAPH_LOAD_S * compiles + self.checkpoint_s

    @property
    def first_step_s(self) -> float:
        return FIRST_STEPS[0] * self.step_s

    @property
    def warm_up_s(self) -> float:
        """What the first steps take longer than settled ones, together."""
        return sum(factor - 1 for factor in FIRST_STEPS) * self.step_s


def step_plan(
    job: Job, model: Model | None = None, *, constants: ChipConstants | None = None
) -> StepPlan:
    """Predict a healthy step; FieldError names the invalid field.

    ``model`` and ``constants`` replace those of the catalogue and of the chip.
    """
    layout = lay_out(job, model, constants=constants)
    n = layout.micro_batches
    work = micro_batch_work(layout)
    tp_s = tensor_parallel_s(layout) + pipeline_s(layout)
    tp_s += context_parallel_s(layout, attention_s(layout, work))
    busy_s = seconds(layout, work)
    optimized = OPTIMIZER_BYTES * layout.params / layout.replicas
    return StepPlan(
        layout=layout,
        exchange=gradient_exchange(layout),
        compute_s=n * busy_s,
        bubble_s=(job.pp - 1) / layout.vp * (busy_s + tp_s),
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
    """Exposed gradient exchange with slower links or computing.

    Parameters
    ----------
    plan : the healthy step
    latency_factor, bandwidth_factor : any shapes that broadcast
        How many times longer a hop takes, and a byte, between nodes: the slowest link of the
        group, for it paces the ring for all.
    local_factor : the same for a byte inside the node
    compute_factor : how many times longer the backward pass takes that hides the exchange

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


S_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a settled step of a job does, and what the figures rest on.

    ``mfu_ratio`` counts attention in full, as published figures do; ``mfu_causal_ratio`` counts
    what a causal mask leaves of it. ``usd_per_mtok`` is None without a published price.
    Of the published runs that were not fitted, half differ by less than ``median_error_ratio``
    and 9 of 10 by less than ``spread_ratio``. ``basis`` is "published" where constants are
    fitted to published runs of the chip and precision, else "assumed".
    """

    step_s: float
    seq_per_s: float
    tokens_per_s: float
    mfu_ratio: float
    allreduce_share_ratio: float
    usd_per_mtok: float | None
    mfu_causal_ratio: float
    median_error_ratio: float
    spread_ratio: float
    basis: str


def estimate(job: Job, model: Model | None = None) -> Estimate:
    """Predict throughput, MFU, all-reduce share and cost of a job.

    >>> job = Job(model="llama2-7b", instance="trn1.32xlarge", nodes=16, tp=8,
    ...           seq_len=4096, global_batch=1024)
    >>> round(estimate(job).mfu_ratio, 2)
    0.33
    """
    return estimate_of(step_plan(job, model))


def estimate_of(plan: StepPlan) -> Estimate:
    job, instance, model = plan.layout.job, plan.layout.instance, plan.layout.model
    tokens_per_s = plan.tokens / plan.step_s
    usd_per_mtok = None
    if instance.prices:
        usd_per_s = job.nodes * instance.price.usd_per_hour / S_PER_HOUR
        usd_per_mtok = usd_per_s / tokens_per_s * TOKENS_PER_MTOK
    peak = job.nodes * instance.peak_flops(job.precision)
    causal = model.flops_per_token(job.seq_len, causal=True)
    chip = instance.chip.name
    return Estimate(
        step_s=plan.step_s,
        seq_per_s=job.global_batch / plan.step_s,
        tokens_per_s=tokens_per_s,
        mfu_ratio=plan.flops / plan.step_s / peak,
        allreduce_share_ratio=plan.allreduce_share_ratio,
        usd_per_mtok=usd_per_mtok,
        mfu_causal_ratio=causal * tokens_per_s / peak,
        median_error_ratio=SPREADS[chip][0],
        spread_ratio=SPREADS[chip][1],
        basis="assumed" if (chip, job.precision) in ASSUMED else "published",
    )
