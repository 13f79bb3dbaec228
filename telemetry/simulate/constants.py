"""Constants of the step model, one set per chip; docs/physics.md has the sources."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

US = 1e-6

# Counted, not fitted. Bytes of HBM traffic for each parameter: adding a gradient to its
# float32 sum; one Adam step (moments and master weight in and out, gradient in, weight out).
ACCUMULATE_BYTES = 8
OPTIMIZER_BYTES = 30
# Bytes held for each parameter: weight, gradient, and what Adam keeps (master, two moments).
WEIGHT_BYTES, GRADIENT_BYTES, STATE_BYTES = 2, 4, 12
# Bytes that a layer keeps for the backward pass, per token and hidden unit: those that only
# sequence parallelism splits, and those that tensor parallelism splits. From table and equation
# 2 of V. A. Korthikanti et al., arXiv:2205.05198: inputs of the two norms (4), of the attention
# and feed-forward blocks (4) and two masks (2); queries, keys, values, attention's output, the
# feed-forward block before and after its activation (24). "selective" drops what elementwise
# operations and attention can make again, "full" keeps the layer's input.
KEPT_BYTES: Mapping[str, tuple[int, int]] = {
    "none": (10, 24),
    "selective": (4, 16),
    "full": (2, 0),
}
# Attention scores, softmax and mask per token, head and token seen, where attention is not one
# kernel: same source.
SCORE_BYTES = 5
# Logits and their gradient, 16 bit.
LOGIT_BYTES = 4
# Share of an encoder's tokens that are masked, and so meet the vocabulary.
MASKED_RATIO = 0.15
# A forward pass is 1 and a backward pass 2 of the matrix products; flash attention computes
# its scores once more: 2 + 5 products instead of 2 + 4.
FORWARD_RATIO, BACKWARD_RATIO = 1 / 3, 2 / 3
FLASH_RATIO, FLASH_FORWARD_RATIO = 7 / 6, 2 / 7


@dataclass(frozen=True, slots=True)
class ChipConstants:
    """How much of a chip training software gets.

    ``matmul_ratio``, ``attention`` and ``matmul_size`` are fitted, the rest is counted.
    """

    # By precision: FLOPs of large matrix products over peak, what they wait for HBM not counted.
    matmul_ratio: Mapping[str, float]
    # The same for the products of attention, over ``matmul_ratio`` in 16 bit, in which they always
    # run. Exponentials stand between the two products.
    attention: float
    hbm_ratio: float  # HBM bandwidth that streaming gets, over peak.
    # Whether the memory traffic of matrix products overlaps them, half of the tensor-parallel
    # collectives too, and bytes inside a node with those between nodes: hardware and libraries of
    # GPUs do that.
    overlaps: bool
    # Pieces that a pipeline stage is cut into, interleaved (D. Narayanan et al.,
    # arXiv:2104.04473): the bubble shrinks as much.
    stage_chunks: int
    micro_tokens: int  # Tokens that a micro-batch aims at, where sequences are shorter.
    # Times that a layer's hidden state goes to or from HBM, forwards and backwards, besides the
    # matrix products: norms, residuals, activation function, rotary, casts. Counted: about 26
    # forwards, twice as many backwards.
    passes: float = 80.0
    # Tokens per sequence from which attention is one kernel that never keeps its scores: on
    # Trainium from 8,192, as in the recipes of NeuronX Distributed.
    fuses_from: int = 0
    # Whether matrix products of fp32 jobs run at the speed of bf16: what neuronx-cc does unless
    # told otherwise (``--auto-cast matmult``).
    casts: bool = False
    # Rows, inner dimension or columns of a product below which it loses half its speed.
    matmul_size: float = 0.0

    @property
    def attention_ratio(self) -> float:
        """FLOPs of the attention products over the 16-bit peak."""
        return self.attention * self.matmul_ratio["bf16"]


@dataclass(frozen=True, slots=True)
class StepFabric:
    """How the collectives inside a compiled step go."""

    # Bus bandwidth of a ring inside a node, over the chip's published link bandwidth.
    link_ratio: float
    network_ratio: float  # Bytes that leave a node per second, over the line rate.
    # hop_s, network_hop_s: One step of a ring, inside a node and between nodes.
    hop_s: float
    network_hop_s: float
    unhidden_ratio: float  # Share of the gradient exchange that no overlap hides.
    gradient_bytes: int  # Bytes per gradient on the wire.
    # Whether many nodes are crossed by recursive halving, in ``2 log2`` hops; else a ring.
    halves: bool
    # Share of tensor-parallel and stage-to-stage transfers that no product overlaps.
    shown_ratio: float


_TRAINIUM1 = ChipConstants(
    {"bf16": 0.77, "fp16": 0.77, "fp8": 0.77, "fp32": 0.77},
    attention=0.165,
    hbm_ratio=0.6,
    overlaps=False,
    fuses_from=8192,
    casts=True,
    stage_chunks=1,
    micro_tokens=2048,
)
_HOPPER = ChipConstants(
    {"bf16": 0.62, "fp16": 0.62, "fp8": 0.61, "fp32": 0.62},
    attention=0.30,
    hbm_ratio=0.8,
    overlaps=True,
    stage_chunks=4,
    micro_tokens=16384,
    matmul_size=250.0,
)
_AMPERE = replace(_HOPPER, matmul_ratio={"bf16": 0.71, "fp16": 0.71, "fp32": 0.71}, attention=0.58)
CHIPS: Mapping[str, ChipConstants] = {
    "Trainium1": _TRAINIUM1,
    "Trainium2": replace(
        _TRAINIUM1, matmul_ratio={"bf16": 0.48, "fp16": 0.48, "fp8": 0.47, "fp32": 0.48}
    ),
    "A100-40GB": _AMPERE,
    "A100-80GB": _AMPERE,
    "H100": _HOPPER,
    "H200": _HOPPER,
}
# Precisions whose matmul_ratio rests on no published figure of that chip: taken in proportion to
# another chip's.
ASSUMED = frozenset({("Trainium1", "fp8"), ("Trainium2", "fp8"), ("Trainium2", "fp32")})
# How far published figures that were not fitted are from what the model says, by chip: half of
# them by less than the first ratio, 9 of 10 by less than the second. docs/physics.md has them.
# Trainium2 has one such figure, so it takes Trainium1's.
_TRAINIUM_SPREAD, _A100_SPREAD, _H100_SPREAD = (0.09, 0.49), (0.11, 0.19), (0.07, 0.20)
SPREADS: Mapping[str, tuple[float, float]] = {
    "Trainium1": _TRAINIUM_SPREAD,
    "Trainium2": _TRAINIUM_SPREAD,
    "A100-40GB": _A100_SPREAD,
    "A100-80GB": _A100_SPREAD,
    "H100": _H100_SPREAD,
    "H200": _H100_SPREAD,
}

_NEURONLINK2 = StepFabric(
    link_ratio=0.28,
    network_ratio=0.50,
    hop_s=2 * US,
    network_hop_s=15 * US,
    unhidden_ratio=0.8,
    gradient_bytes=4,
    halves=True,
    shown_ratio=1.0,
)
_A100 = StepFabric(
    link_ratio=0.40,
    network_ratio=0.90,
    hop_s=3 * US,
    network_hop_s=75 * US,
    unhidden_ratio=0.2,
    gradient_bytes=2,
    halves=False,
    shown_ratio=0.5,
)
_H100 = replace(_A100, link_ratio=0.54, network_ratio=0.68)
STEP_FABRICS: Mapping[str, StepFabric] = {
    "Trainium1": _NEURONLINK2,
    "Trainium2": replace(_NEURONLINK2, network_ratio=0.70, hop_s=1.5 * US),
    "A100-40GB": _A100,
    "A100-80GB": _A100,
    "H100": _H100,
    "H200": replace(_H100, network_hop_s=35 * US),
}
