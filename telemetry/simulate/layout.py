"""Layout of a job: ranks, micro-batches, sharding, and memory."""

from dataclasses import dataclass
from functools import cached_property

from telemetry.catalog import Instance, Model, training_instance
from telemetry.catalog import model as model_named
from telemetry.errors import FieldError
from telemetry.simulate.constants import (
    ACTIVATION_BYTES,
    CHIPS,
    GRADIENT_BYTES,
    STATE_BYTES,
    WEIGHT_BYTES,
    ChipConstants,
)
from telemetry.simulate.plan import Job

# Beyond any fleet there is: what is more than this was mistyped.
MOST = {
    "nodes": 100_000,
    "tp": 1_024,
    "pp": 1_024,
    "seq_len": 100_000_000,
    "global_batch": 1_000_000_000,
}


@dataclass(frozen=True)
class Layout:
    """A job that fits its nodes.

    A rank is a core as the runtime counts it. Ranks of a tensor-parallel group are adjacent in a
    node, then come data-parallel neighbours; pipeline stages are farthest apart.
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
        """Number of replicas: ranks that exchange one gradient."""
        return self.ranks // (self.job.tp * self.job.pp)

    @property
    def dp_local(self) -> int:
        """Replicas inside one node."""
        return min(self.dp, self.instance.n_cores // self.job.tp)

    @property
    def dp_nodes(self) -> int:
        """Nodes that exchange one gradient."""
        return -(-self.dp // self.dp_local)

    @property
    def layers(self) -> int:
        """Layers of the longest pipeline stage."""
        return -(-self.model.layers // self.job.pp)

    @property
    def stage_chunks(self) -> int:
        return max(1, min(self.constants.stage_chunks, self.model.layers // self.job.pp))

    @property
    def params(self) -> float:
        """Parameters of one rank, before sharding over replicas."""
        return self.model.params / (self.job.tp * self.job.pp)

    @property
    def sequences(self) -> int:
        """Sequences of one replica per step."""
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
        if self.dp == 1:
            return False
        alone = self.job.tp == self.job.pp == 1 and self.instance.chip.vendor != "AWS"
        return alone or self._held_bytes(fully_sharded=False) > 0.8 * self.memory_bytes

    def _held_bytes(self, *, fully_sharded: bool) -> float:
        over = self.dp if fully_sharded else 1
        return self.params * ((WEIGHT_BYTES + GRADIENT_BYTES) / over + STATE_BYTES / self.dp)

    @property
    def state_bytes(self) -> float:
        """Weights, gradients and optimizer state of one rank."""
        return self._held_bytes(fully_sharded=self.is_fully_sharded)

    @property
    def sequence_activation_bytes(self) -> float:
        """Activations of one sequence on one rank, without recomputation."""
        held = self.layers * self.job.seq_len * self.model.hidden / self.job.tp
        return ACTIVATION_BYTES * held * min(self.job.pp, self.sequences)

    @cached_property
    def recompute_ratio(self) -> float:
        """Share of layers that must be recomputed for one sequence to fit."""
        lacking = self.state_bytes + self.sequence_activation_bytes - self.usable_bytes
        return min(1.0, max(0.0, lacking / self.sequence_activation_bytes))

    @property
    def usable_bytes(self) -> float:
        """HBM of one rank for weights, states and activations."""
        return 0.9 * self.memory_bytes

    @property
    def activation_bytes(self) -> float:
        """Activations of the micro-batches in flight on one rank."""
        kept = 1 - self.recompute_ratio
        return self.sequence_activation_bytes * kept * self.micro_batch

    @cached_property
    def micro_batch(self) -> int:
        """Sequences computed at once: enough to use the chip, as memory allows."""
        room = self.usable_bytes - self.state_bytes
        fits = max(1, int(room / self.sequence_activation_bytes))
        wanted = max(1, self.constants.micro_tokens // self.job.seq_len) if self.job.pp == 1 else 1
        return max(n for n in _divisors(self.sequences) if n <= min(wanted, fits))

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one replica per step."""
        return self.sequences // self.micro_batch

    @property
    def micro_tokens(self) -> int:
        return self.micro_batch * self.job.seq_len


def lay_out(
    job: Job, model: Model | None = None, *, constants: ChipConstants | None = None
) -> Layout:
    """Place a job on its nodes. FieldError names the field and the fix.

    ``model`` and ``constants`` replace those of the catalogue and of the chip.
    """
    instance = training_instance(job.instance)
    found = model or model_named(job.model)
    for field, most in MOST.items():
        value = getattr(job, field)
        if not 1 <= value <= most:
            raise FieldError(field, f"{value} is out of range; take 1 to {most:,}")
    layout = Layout(job, found, instance, constants or CHIPS[instance.chip.name])
    chip = instance.chip
    if job.precision not in chip.peak_flops:
        raise FieldError(
            "precision",
            f"{job.precision!r} is not known on {chip.name}; "
            f"take one of {', '.join(chip.peak_flops)}",
        )
    n_cores = instance.n_cores
    if n_cores % job.tp:
        raise FieldError(
            "tp",
            f"{job.tp} does not divide the {n_cores} cores of one {instance.name}; "
            f"take one of {', '.join(map(str, _divisors(n_cores)))}",
        )
    if job.pp > found.layers:
        raise FieldError(
            "pp", f"{job.pp} stages for {found.layers} layers; take at most one per layer"
        )
    if layout.ranks % (job.tp * job.pp):
        raise FieldError(
            "pp",
            f"tp {job.tp} x pp {job.pp} = {job.tp * job.pp} does not divide the {layout.ranks} "
            f"cores of {job.nodes} x {instance.name}; change tp, pp or nodes",
        )
    if job.global_batch % layout.dp:
        raise FieldError(
            "global_batch",
            f"{job.global_batch} sequences do not divide by the {layout.dp} replicas "
            f"({layout.ranks} cores / tp {job.tp} / pp {job.pp}); take a multiple of {layout.dp}",
        )
    return layout


def _divisors(n: int) -> list[int]:
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)})
