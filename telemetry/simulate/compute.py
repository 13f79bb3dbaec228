"""What one rank computes for one micro-batch: FLOPs against the peak, bytes against HBM."""

from dataclasses import dataclass, fields

from telemetry.catalog import Model
from telemetry.simulate.constants import ACCUMULATE_BYTES, FLASH_RATIO, MASKED_RATIO
from telemetry.simulate.layout import Layout

ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs of matrix products and attention; HBM bytes of the products and of all else."""

    matmul_flops: float = 0.0
    attention_flops: float = 0.0
    matmul_bytes: float = 0.0
    stream_bytes: float = 0.0

    @property
    def hbm_bytes(self) -> float:
        """Bytes to and from HBM."""
        return self.matmul_bytes + self.stream_bytes

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, factor: float) -> "Work":
        return Work(*(factor * getattr(self, f.name) for f in fields(self)))


def product(rows: float, inner: float, columns: float) -> Work:
    """Return the work of one matrix product, forwards and backwards.

    Parameters
    ----------
    rows, inner, columns
        A matrix of (rows, inner) times one of (inner, columns).

    Returns
    -------
    work
        Forwards once and backwards twice (for the input's gradient and the weight's), each
        reading two matrices and writing one, 16 bit, nothing kept on the chip in between.
    """
    moved = rows * inner + inner * columns + rows * columns
    return Work(matmul_flops=6 * rows * inner * columns, matmul_bytes=3 * ELEMENT_BYTES * moved)


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
    narrow = min(1.0, head / 128)
    scores = Work(attention_flops=FLASH_RATIO * 12 * tokens * seen * hidden / tp / narrow)
    state = ELEMENT_BYTES * tokens * hidden / tp
    return dense + scores + Work(stream_bytes=layout.constants.passes * state)


def head_work(layout: Layout) -> Work:
    """Return what the output projection takes on one rank of the last stage."""
    model = layout.model
    share = {"decoder": 1.0, "encoder": MASKED_RATIO, "vision": 1 / layout.job.seq_len}[model.kind]
    return product(share * layout.micro_tokens, model.hidden, model.vocab / layout.job.tp)


def micro_batch_work(layout: Layout) -> Work:
    """Return what the busiest rank does for one micro-batch: the last pipeline stage.

    A layer whose activations don't fit runs forwards twice: 4/3 of its work.
    """
    again = 1 + layout.recompute_ratio / 3
    gathered = layout.micro_batches > 1
    accumulate = Work(matmul_bytes=gathered * ACCUMULATE_BYTES * layout.params)
    return layer_work(layout) * (again * layout.layers) + head_work(layout) + accumulate


def seconds(layout: Layout, work: Work) -> float:
    """Return how long one rank takes for some work.

    A GPU moves the matrices of a product while it multiplies; on Trainium the two are
    reckoned one after the other. Attention and the rest always follow.
    """
    chip, constants = layout.instance.chip, layout.constants
    precision = layout.job.precision
    peak = chip.peak_flops[precision] / chip.cores_logical
    peak_16 = chip.peak_flops["fp32" if precision == "fp32" else "bf16"] / chip.cores_logical
    hbm = rank_hbm_bytes_per_s(layout)
    parts = (
        work.matmul_flops / (peak * constants.matmul_ratio[precision]),
        work.matmul_bytes / hbm,
    )
    products = max(parts) if constants.overlaps else sum(parts)
    attention = work.attention_flops / (peak_16 * constants.attention_ratio)
    return products + attention + work.stream_bytes / hbm


def rank_hbm_bytes_per_s(layout: Layout) -> float:
    """Return the HBM bandwidth that one rank gets."""
    chip = layout.instance.chip
    return chip.hbm_bytes_per_s / chip.cores_logical * layout.constants.hbm_ratio
