"""Layout of a job: ranks, micro-batches, sharding, recomputation, and memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from telemetry.catalog import Instance, Model, training_instance
from telemetry.catalog import model as model_named
from telemetry.errors import FieldError
from telemetry.simulate.constants import (
    CHIPS,
    GRADIENT_BYTES,
    KEPT_BYTES,
    LOGIT_BYTES,
    MASKED_RATIO,
    SCORE_BYTES,
    STATE_BYTES,
    WEIGHT_BYTES,
    ChipConstants,
)
from telemetry.simulate.plan import RECOMPUTE, Job, Recompute

# Beyond any fleet there is: what is more than this was mistyped.
MOST = {
    "nodes": 100_000,
    "tp": 1_024,
    "pp": 1_024,
    "cp": 1_024,
    "vp": 1_024,
    "micro_batch": 1_000_000,
    "seq_len": 100_000_000,
    "global_batch": 1_000_000_000,
}


@dataclass(frozen=True)
class Layout:
    """A job that fits its nodes.

    A rank is a core as the runtime counts it. Ranks of a tensor-parallel group are adjacent in a
    node, then come those of a context-parallel group and data-parallel neighbours; pipeline
    stages are farthest apart.
    """

    job: Job
    model: Model
    instance: Instance
    constants: ChipConstants

    @property
    def ranks(self) -> int:
        return self.job.nodes * self.instance.n_cores

    @property
    def dp(self) -> int:
        """Number of groups of ranks that read different sequences."""
        return self.ranks // (self.job.tp * self.job.cp * self.job.pp)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights and exchange one gradient."""
        return self.dp * self.job.cp

    @property
    def replicas_local(self) -> int:
        """Replicas inside one node."""
        return min(self.replicas, self.instance.n_cores // self.job.tp)

    @property
    def replica_nodes(self) -> int:
        """Nodes that exchange one gradient."""
        return -(-self.replicas // self.replicas_local)

    @property
    def layers(self) -> int:
        """Layers of the longest pipeline stage."""
        return -(-self.model.layers // self.job.pp)

    @cached_property
    def vp(self) -> int:
        """Pieces of a pipeline stage, interleaved."""
        if self.job.vp is not None:
            return self.job.vp
        if self.job.pp == 1:
            return 1
        return max(n for n in divisors(self.layers) if n <= self.constants.stage_chunks)

    @property
    def sequence_parallel(self) -> bool:
        """Whether norms and residuals are split over the tensor-parallel group too."""
        chosen = self.job.sequence_parallel
        return self.job.tp > 1 if chosen is None else chosen

    @property
    def params(self) -> float:
        """Parameters of one rank, before sharding over replicas."""
        return self.model.params / (self.job.tp * self.job.pp)

    @property
    def sequences(self) -> int:
        """Sequences of one data-parallel group per step."""
        return self.job.global_batch // self.dp

    @property
    def memory_bytes(self) -> float:
        """HBM of one rank."""
        return self.instance.hbm_bytes / self.instance.n_cores

    @cached_property
    def is_fully_sharded(self) -> bool:
        """Whether weights and gradients are spread over replicas too (FSDP, ZeRO-3).

        GPUs without tensor or pipeline parallelism train so; others only if they must.
        """
        if self.replicas == 1:
            return False
        alone = self.job.tp == self.job.pp == 1 and self.instance.chip.vendor != "AWS"
        return alone or self._held_bytes(fully_sharded=False) > 0.8 * self.memory_bytes

    def _held_bytes(self, *, fully_sharded: bool) -> float:
        over = self.replicas if fully_sharded else 1
        return self.params * ((WEIGHT_BYTES + GRADIENT_BYTES) / over + STATE_BYTES / self.replicas)

    @property
    def state_bytes(self) -> float:
        """Weights, gradients and optimizer state of one rank."""
        return self._held_bytes(fully_sharded=self.is_fully_sharded)

    @property
    def sequence_tokens(self) -> float:
        """Tokens of one sequence on one rank."""
        return self.job.seq_len / self.job.cp

    def layer_bytes(self, recompute: Recompute) -> float:
        """Activations that one layer keeps of one sequence on one rank for the backward pass.

        V. A. Korthikanti et al., arXiv:2205.05198, section 4: without sequence parallelism
        norms and residuals are kept whole on every rank of a tensor-parallel group.
        """
        tp, model = self.job.tp, self.model
        whole, split = KEPT_BYTES[recompute]
        kept = (whole / (tp if self.sequence_parallel else 1) + split / tp) * model.hidden
        if recompute == "none" and self.job.seq_len < self.constants.fuses_from:
            kept += SCORE_BYTES * model.heads * self.job.seq_len / tp
        return kept * self.sequence_tokens

    def activations(self, recompute: Recompute, micro_batch: int) -> float:
        """Activations of one rank: bytes.

        The first stage holds the micro-batches of all stages behind it, with interleaving
        some more. A layer that runs again holds all of its own while it does; the logits are
        in memory once.
        """
        n = min(self.job.pp, max(1, self.sequences // micro_batch))
        in_flight = n * (1 + (n - 1) / (n * self.vp) if self.vp > 1 else 1.0)
        kept = self.layers * in_flight * self.layer_bytes(recompute)
        working = self.layer_bytes("none") if recompute != "none" else 0.0
        logits = LOGIT_BYTES * self.head_ratio * self.sequence_tokens * self.model.vocab
        return micro_batch * (kept + working + logits / self.job.tp)

    @property
    def head_ratio(self) -> float:
        """Share of tokens that meet the vocabulary."""
        ratios = {"decoder": 1.0, "encoder": MASKED_RATIO, "vision": 1 / self.job.seq_len}
        return ratios[self.model.kind]

    def has_room(self, recompute: Recompute, micro_batch: int) -> bool:
        """Whether weights, states and activations leave a tenth of the memory."""
        return self.state_bytes + self.activations(recompute, micro_batch) <= self.usable_bytes

    @cached_property
    def recompute(self) -> Recompute:
        """As the job says; else the least with which one sequence fits.

        Recipes for decoders on Trainium recompute attention in any case.
        """
        if self.job.recompute is not None:
            return self.job.recompute
        is_usual = self.instance.chip.vendor == "AWS" and self.model.kind == "decoder"
        choices = RECOMPUTE[1:] if is_usual else RECOMPUTE
        micro_batch = self.job.micro_batch or 1
        return next((each for each in choices if self.has_room(each, micro_batch)), "full")

    @property
    def usable_bytes(self) -> float:
        """HBM of one rank for weights, states and activations."""
        return 0.9 * self.memory_bytes

    @property
    def activation_bytes(self) -> float:
        """Activations of the micro-batches in flight on one rank."""
        return self.activations(self.recompute, self.micro_batch)

    @cached_property
    def micro_batch(self) -> int:
        """Sequences computed at once: as the job says, else enough to use the chip, if it fits."""
        if self.job.micro_batch is not None:
            return self.job.micro_batch
        wanted = 1
        if self.job.pp == 1:
            wanted = max(1, int(self.constants.micro_tokens / self.sequence_tokens))
        fitting = [n for n in divisors(self.sequences) if n <= wanted]
        return next((n for n in reversed(fitting) if self.has_room(self.recompute, n)), 1)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one data-parallel group per step."""
        return -(-self.sequences // self.micro_batch)

    @property
    def micro_tokens(self) -> float:
        """Tokens of one micro-batch on one rank."""
        return self.micro_batch * self.sequence_tokens

    @property
    def chosen(self) -> Mapping[str, int | bool | str]:
        """What the job left out, and what was chosen."""
        named = ("vp", "micro_batch", "sequence_parallel", "recompute")
        return {name: getattr(self, name) for name in named if getattr(self.job, name) is None}


def lay_out(
    job: Job, model: Model | None = None, *, constants: ChipConstants | None = None
) -> Layout:
    """Place a job on its nodes. FieldError names the field and the fix.

    ``model`` and ``constants`` replace those of the catalogue and of the chip.
    """
    layout = named(job, model, constants=constants)
    _check_parallelism(layout)
    _check_batch(layout)
    return layout


def named(
    job: Job, model: Model | None = None, *, constants: ChipConstants | None = None
) -> Layout:
    """Look up what a job names. FieldError for unknown names and for numbers out of range."""
    instance = training_instance(job.instance)
    found = model or model_named(job.model)
    for field, most in MOST.items():
        value = getattr(job, field)
        if value is not None and not 1 <= value <= most:
            raise FieldError(field, f"{value} is out of range; take 1 to {most:,}")
    chip = instance.chip
    if job.precision not in chip.peak_flops:
        raise FieldError(
            "precision",
            f"{job.precision!r} is not known on {chip.name}; "
            f"take one of {', '.join(chip.peak_flops)}",
        )
    if job.recompute is not None and job.recompute not in RECOMPUTE:
        raise FieldError(
            "recompute", f"{job.recompute!r} is not known; take one of {', '.join(RECOMPUTE)}"
        )
    return Layout(job, found, instance, constants or CHIPS[chip.name])


def _check_parallelism(layout: Layout) -> None:
    job, instance, model = layout.job, layout.instance, layout.model
    n_cores = instance.n_cores
    if n_cores % job.tp:
        raise FieldError(
            "tp",
            f"{job.tp} does not divide the {n_cores} cores of one {instance.name}; "
            f"take one of {', '.join(map(str, divisors(n_cores)))}",
        )
    if job.pp > model.layers:
        raise FieldError(
            "pp", f"{job.pp} stages for {model.layers} layers; take at most one per layer"
        )
    if layout.ranks % (job.tp * job.pp):
        raise FieldError(
            "pp",
            f"tp {job.tp} x pp {job.pp} = {job.tp * job.pp} does not divide the {layout.ranks} "
            f"cores of {job.nodes} x {instance.name}; change tp, pp or nodes",
        )
    groups = layout.ranks // (job.tp * job.pp)
    if groups % job.cp:
        raise FieldError(
            "cp",
            f"{job.cp} does not divide the {groups} ranks that tp {job.tp} and pp {job.pp} "
            f"leave of {layout.ranks}; take one of {', '.join(map(str, divisors(groups)))}",
        )
    if job.seq_len % job.cp:
        raise FieldError(
            "cp", f"{job.cp} does not divide seq_len {job.seq_len}; take a divisor of it"
        )
    if job.vp is not None and job.vp > 1 and (job.pp == 1 or layout.layers % job.vp):
        able = divisors(layout.layers) if job.pp > 1 else [1]
        raise FieldError(
            "vp",
            f"{job.vp} does not divide the {layout.layers} layers of one of {job.pp} stages; "
            f"take one of {', '.join(map(str, able))}",
        )
    if job.sequence_parallel and job.tp == 1:
        raise FieldError("sequence_parallel", "needs tensor parallelism; take tp above 1")


def _check_batch(layout: Layout) -> None:
    job = layout.job
    if job.global_batch % layout.dp:
        context = f" / cp {job.cp}" if job.cp > 1 else ""
        raise FieldError(
            "global_batch",
            f"{job.global_batch} sequences do not divide by the {layout.dp} replicas "
            f"({layout.ranks} cores / tp {job.tp} / pp {job.pp}{context}); "
            f"take a multiple of {layout.dp}",
        )
    if job.micro_batch is not None and layout.sequences % job.micro_batch:
        raise FieldError(
            "micro_batch",
            f"{job.micro_batch} does not divide the {layout.sequences} sequences of one replica; "
            f"take one of {', '.join(map(str, divisors(layout.sequences)))}",
        )


def divisors(n: int) -> list[int]:
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)})
