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
# Bytes that a layer keeps for the backward pass, per token and hidden unit, with the
# attention scores recomputed (V. A. Korthikanti et al., arXiv:2205.05198, equation 2).
ACTIVATION_BYTES = 34
# Share of an encoder's tokens that are masked, and so meet the vocabulary.
MASKED_RATIO = 0.15
# A forward pass is 1 and a backward pass 2 of the matrix products; flash attention computes
# its scores once more: 2 + 5 products instead of 2 + 4.
BACKWARD_RATIO = 2 / 3
FLASH_RATIO = 7 / 6
# Attention runs in 16 bit always, at this share of what other products get: exponentials
# stand between its two products.
ATTENTION_RATIO = 0.75


@dataclass(frozen=True, slots=True)
class ChipConstants:
    """How much of a chip training software gets; ``matmul_ratio`` alone is fitted.

    Parameters
    ----------
    matmul_ratio : by precision
        FLOPs of matrix products over peak, what they wait for HBM not counted.
    hbm_ratio
        HBM bandwidth that streaming gets, over peak.
    overlaps
        Whether the memory traffic of matrix products overlaps them, half of the
        tensor-parallel collectives too, and bytes inside a node with those between nodes:
        hardware and libraries of GPUs do that.
    stage_chunks
        Pieces that a pipeline stage is cut into, interleaved (D. Narayanan et al.,
        arXiv:2104.04473): the bubble shrinks as much.
    micro_tokens
        Tokens that a micro-batch aims at, where sequences are shorter.
    passes
        Times that a layer's hidden state goes to or from HBM, forwards and backwards,
        besides the matrix products: norms, residuals, activation function, rotary, casts.
        Counted: about 26 forwards, twice as many backwards.
    """

    matmul_ratio: Mapping[str, float]
    hbm_ratio: float
    overlaps: bool
    stage_chunks: int
    micro_tokens: int
    passes: float = 80.0

    @property
    def attention_ratio(self) -> float:
        """FLOPs of the attention products over the 16-bit peak."""
        return ATTENTION_RATIO * self.matmul_ratio["bf16"]


@dataclass(frozen=True, slots=True)
class StepFabric:
    """How the collectives inside a compiled step go.

    Parameters
    ----------
    link_ratio
        Bus bandwidth of a ring inside a node, over the chip's published link bandwidth.
    network_ratio
        Bytes that leave a node per second, over the line rate.
    hop_s, network_hop_s
        One step of a ring, inside a node and between nodes.
    unhidden_ratio
        Share of the gradient exchange that no overlap hides.
    gradient_bytes
        Bytes per gradient on the wire.
    halves
        Whether many nodes are crossed by recursive halving, in ``2 log2`` hops; else a ring.
    """

    link_ratio: float
    network_ratio: float
    hop_s: float
    network_hop_s: float
    unhidden_ratio: float
    gradient_bytes: int
    halves: bool


_TRAINIUM1 = ChipConstants(
    {"bf16": 0.60, "fp16": 0.60, "fp8": 0.60, "fp32": 0.60},
    hbm_ratio=0.6,
    overlaps=False,
    stage_chunks=1,
    micro_tokens=2048,
)
_HOPPER = ChipConstants(
    {"bf16": 0.505, "fp16": 0.505, "fp8": 0.43, "fp32": 0.505},
    hbm_ratio=0.8,
    overlaps=True,
    stage_chunks=4,
    micro_tokens=16384,
)
_AMPERE = replace(_HOPPER, matmul_ratio={"bf16": 0.60, "fp16": 0.60, "fp32": 0.60})
CHIPS: Mapping[str, ChipConstants] = {
    "Trainium1": _TRAINIUM1,
    "Trainium2": replace(
        _TRAINIUM1, matmul_ratio={"bf16": 0.305, "fp16": 0.305, "fp8": 0.26, "fp32": 0.305}
    ),
    "A100-40GB": _AMPERE,
    "A100-80GB": _AMPERE,
    "H100": _HOPPER,
    "H200": _HOPPER,
}
# Precisions whose matmul_ratio rests on no published figure of that chip: taken in proportion to
# another chip's.
ASSUMED = frozenset({("Trainium1", "fp8"), ("Trainium2", "fp8")})

_NEURONLINK2 = StepFabric(
    link_ratio=0.28,
    network_ratio=0.50,
    hop_s=2 * US,
    network_hop_s=15 * US,
    unhidden_ratio=0.8,
    gradient_bytes=4,
    halves=True,
)
_A100 = StepFabric(
    link_ratio=0.40,
    network_ratio=0.90,
    hop_s=3 * US,
    network_hop_s=75 * US,
    unhidden_ratio=0.2,
    gradient_bytes=2,
    halves=False,
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
