"""The shape of a model: what decides how much there is to compute and to exchange."""

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A transformer by its dimensions; ``seq_len`` is the length it was made for.

    ``kind`` decides whether attention is causal. Sources and dates are those of the shape.
    """

    name: str
    kind: Literal["decoder", "encoder", "vision"] = "decoder"
    params: Annotated[float, msgspec.Meta(gt=0)]
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    ffn: Count
    vocab: Count
    seq_len: Count = 2048
    compile_s: Annotated[float, msgspec.Meta(ge=0)] = 1500.0
    source: str
    date: str

    @property
    def default_compile_s(self) -> float:
        """Seconds of a first compile, without a cache."""
        return self.compile_s

    @property
    def head_params(self) -> int:
        """Parameters of the output projection: vocabulary (or classes) by hidden size."""
        return self.vocab * self.hidden

    @property
    def is_causal(self) -> bool:
        """Whether a token attends only to earlier ones."""
        return self.kind == "decoder"

    def flops_per_token(self, seq_len: int) -> float:
        """Return the FLOPs that training on one token takes, nothing computed twice.

        Parameters
        ----------
        seq_len : tokens per sequence
            Attention's share grows with it.

        Returns
        -------
        flops
            ``6 · params + 12 · layers · hidden · seq_len``: two per weight forwards and four
            backwards, and the same for the two attention products, counted in full whether
            or not a causal mask spares half of them.

        References
        ----------
        A. Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways",
        arXiv:2204.02311, appendix B.

        Examples
        --------
        >>> tiny = Model(name="tiny", params=1e6, layers=2, hidden=64, heads=2, kv_heads=2,
        ...              ffn=256, vocab=100, source="none", date="2026")
        >>> tiny.flops_per_token(128)
        6196608.0
        """
        return 6 * self.params + 12 * self.layers * self.hidden * seq_len
