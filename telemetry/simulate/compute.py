"""What one rank computes for one micro-batch: FLOPs against the peak, bytes against HBM."""

from dataclasses import dataclass

from telemetry.catalog import Model
from telemetry.simulate.constants import FLASH_RATIO, MASKED_RATIO
from telemetry.simulate.layout import Layout

ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs of matrix products and of attention, and bytes to and from HBM."""

    matmul_flops: float = 0.0
    attention_flops: float = 0.0
    hbm_bytes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.matmul_flops + other.matmul_flops,
            self.attention_flops + other.attention_flops,
            self.hbm_bytes + other.hbm_bytes,
        )

    def __mul__(self, factor: float) -> "Work":
        return Work(
            factor * self.matmul_flops, factor * self.attention_flops, factor * self.hbm_bytes
        )


def product(rows: float, inner: float, columns: float) -> Work:
    """Return the work of one matrix product, forwards and backwards.

    Parameters
    ----------
    rows, inner, columns : (rows, inner) times (inner, columns)

    Returns
    -------
    work
        Forwards once and backwards twice (for the input's gradient and the weight's), each
        reading two matrices and writing one, 16 bit, nothing kept on the chip in between.
    """
    moved = rows * inner + inner * columns + rows * columns
    return Work(6 * rows * inner * columns, 0.0, 3 * ELEMENT_BYTES * moved)


def is_gated(model: Model) -> bool:
    """Whether the feed-forward block has a gate (SwiGLU): three matrices, not two.

    The parameter count tells: the shape that comes nearer to it is taken.
    """
    embeddings = 1.5 * model.head_params
    two, three = (
        model.layers * _layer_params(model, matrices) + embeddings for matrices in (2, 3)
    )
    return abs(three - model.params) < abs(two - model.params)


def _layer_params(model: Model, matrices: int) -> float:
    attention = 2 * model.hidden**2 * (1 + model.kv_heads / model.heads)
    return attention + matrices * model.hidden * model.ffn


def layer_work(layout: Layout) -> Work:
    """Return what one layer takes on one rank for one micro-batch, forwards and backwards.

    Notes
    -----
    Tensor parallelism cuts the weight matrices but not the hidden state that goes through
    them, so the bytes per FLOP grow with it. Sequence parallelism cuts the rest.
    """
    model, tp, tokens = layout.model, layout.job.tp, layout.micro_tokens
    hidden, head = model.hidden, model.hidden / model.heads
    kv_width = 2 * head * -(-model.kv_heads // tp)
    widening = 2 if is_gated(model) else 1
    dense = (
        product(tokens, hidden, hidden / tp + kv_width)
        + product(tokens, hidden / tp, hidden)
        + product(tokens, hidden, widening * model.ffn / tp)
        + product(tokens, model.ffn / tp, hidden)
    )
    seen = layout.job.seq_len * (0.5 if model.is_causal else 1.0)
    scores = Work(0.0, FLASH_RATIO * 12 * tokens * seen * hidden / tp / min(1.0, head / 128))
    state = ELEMENT_BYTES * tokens * hidden / tp
    return dense + scores + Work(hbm_bytes=layout.constants.passes * state)


def head_work(layout: Layout) -> Work:
    """Return what the output projection takes on one rank of the last stage."""
    model = layout.model
    share = {"decoder": 1.0, "encoder": MASKED_RATIO, "vision": 1 / layout.job.seq_len}[model.kind]
    return product(share * layout.micro_tokens, model.hidden, model.vocab / layout.job.tp)


def micro_batch_work(layout: Layout) -> Work:
    """Return what the busiest rank does for one micro-batch: the last pipeline stage.

    Where one sequence's activations don't fit, the layers run forwards twice: 4/3.
    """
    again = 4 / 3 if layout.recomputes else 1.0
    return layer_work(layout) * (again * layout.layers) + head_work(layout)


def seconds(layout: Layout, work: Work) -> float:
    """Return how long one rank takes for some work.

    Products and memory traffic are taken to follow each other; what overlaps is part of
    the chip's constants.
    """
    chip, constants = layout.instance.chip, layout.constants
    precision = layout.job.precision
    matmul = chip.peak_flops[precision] / chip.cores_logical * constants.matmul_ratio[precision]
    attention_peak = chip.peak_flops["fp32" if precision == "fp32" else "bf16"]
    attention = attention_peak / chip.cores_logical * constants.attention_ratio
    hbm = chip.hbm_bytes_per_s / chip.cores_logical * constants.hbm_ratio
    return work.matmul_flops / matmul + work.attention_flops / attention + work.hbm_bytes / hbm
