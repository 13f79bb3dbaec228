"""What the simulator plays: a run, its faults and its benign events, as plain data."""

from typing import Annotated, Literal

import msgspec

from telemetry.simulate.inputs import LIVE, Inputs

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
# Nodes per shard: what is stored, and read, together. Each shard costs about 0.3 ms a second, so a
# large run has few of them; each page of a node reads its whole shard, so none is larger than the
# most. Runs of up to MOST_SHARDS * LEAST_SHARD_NODES nodes have the least.
LEAST_SHARD_NODES, MOST_SHARD_NODES, MOST_SHARDS = 32, 256, 8


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model, its instances and its layout; enough to predict a step.

    What is None is chosen as the usual recipe would: ``layout.py``. ``recompute`` says what of a
    layer the backward pass runs again: nothing, attention and all that is elementwise, or
    everything. ``cp`` splits each sequence, ``vp`` each pipeline stage.
    """

    model: str
    instance: str
    nodes: Count
    tp: Count = 1
    pp: Count = 1
    seq_len: Count
    global_batch: Count
    precision: str = "bf16"
    cp: Count = 1
    vp: Count | None = None
    micro_batch: Count | None = None
    sequence_parallel: bool | None = None
    recompute: Recompute | None = None

    @property
    def recipe(self) -> dict[str, int | bool | str]:
        """What the job says of its layout beyond tp and pp."""
        named = ("vp", "micro_batch", "sequence_parallel", "recompute")
        given = {"cp": self.cp if self.cp > 1 else None}
        given |= {name: getattr(self, name) for name in named}
        return {name: each for name, each in given.items() if each is not None}


class RunSpec(Job, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One simulated run; its nodes are named ``<name>-00``, ``<name>-01`` and so on.

    ``compile_s`` None takes the model's default; 0 starts from a warm cache.
    ``checkpoint_every_s`` and ``evaluate_every_s`` None means never; ``max_steps`` None
    trains on and on. ``restarts`` False: a crash ends the run. ``nodes_per_rack`` puts that many
    nodes into each rack in order of rank; racks of one number are the same for all runs.
    ``tier`` is the input tier of a run of the live fleet; empty: everything is observed.
    ``optimizer`` and ``tokens_per_epoch`` are what the run says of itself; they change nothing
    that is played.
    """

    name: str
    compile_s: Seconds | None = None
    checkpoint_every_s: Positive | None = None
    evaluate_every_s: Positive | None = None
    max_steps: Count | None = None
    restarts: bool = True
    optimizer: str = ""
    tokens_per_epoch: Count | None = None
    nodes_per_rack: Count | None = None
    tier: str = ""

    @property
    def node_names(self) -> tuple[str, ...]:
        """In order of rank."""
        return tuple(map(self.node_name, range(self.nodes)))

    def node_name(self, rank: int) -> str:
        return f"{self.name}-{rank:02d}"

    def rack_of(self, rank: int) -> int | None:
        """Rack of a node; None if the run does not name racks."""
        return None if self.nodes_per_rack is None else rank // self.nodes_per_rack


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is wrong: the truth that detection must find without looking here.

    Seconds count from the run's epoch. One ``node``, several ``nodes``, the whole ``run`` or all
    nodes of a ``rack`` are hit; ``device`` is an EFA device, an accelerator or a core, by kind.
    ``magnitude`` is a ratio, seconds or a factor, by kind: docs/faults.md. It grows linearly for
    ``ramp_s``. An intermittent fault is on for ``on_s`` in every ``period_s``.
    """

    kind: str
    node: str | None = None
    nodes: tuple[str, ...] | None = None
    run: str | None = None
    rack: int | None = None
    device: int | None = None
    start_s: float
    duration_s: Positive
    magnitude: float = 1.0
    ramp_s: Seconds = 0.0
    on_s: Positive | None = None
    period_s: Positive | None = None

    def ranks_in(self, run: RunSpec) -> tuple[int, ...]:
        """Ranks of the nodes of a run that the fault hits; empty if it is another run's."""
        ranks = range(run.nodes)
        if self.rack is not None:
            is_hit = self.run in {None, run.name}
            return tuple(i for i in ranks if is_hit and run.rack_of(i) == self.rack)
        named = set(self.nodes or ()) | ({self.node} if self.node else set())
        if named:
            return tuple(i for i, name in enumerate(run.node_names) if name in named)
        return tuple(ranks) if self.run == run.name else ()


class Benign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An event that looks like a fault but is not one."""

    kind: str
    run: str
    node: str | None = None
    start_s: float
    duration_s: Positive | None = None
    magnitude: float | None = None


class Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How steps vary beyond what healthy machines always do.

    ``measured``: as steps of public runs do; each run draws its own parameters
    (``telemetry.simulate.step_noise``). ``recorded``: a file of step times is the run's pace, and
    only workers vary as measured. Both replace the scatter of healthy machines, and their nodes.
    ``step_cv`` is the coefficient of variation of the step time. ``tail``: all workers' steps
    scatter by a normal or a lognormal law, or now and then one worker stalls. ``run_to_run_cv``
    is that of the pace of whole runs: AWS's own figures of one configuration, of several releases
    of software, differ by 4 to 12 %. ``node_cv`` is that of the lasting pace of nodes, beyond
    what healthy nodes always differ by.
    ``environment``: rare harmless events happen (``telemetry.simulate.background``), and the
    factor on their rates and sizes; 0: none. ``background`` is an older name of 1.
    """

    measured: bool = True
    recorded: str = ""
    step_cv: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    tail: Literal["normal", "lognormal", "stalls"] = "normal"
    run_to_run_cv: Annotated[float, msgspec.Meta(ge=0, le=0.5)] = 0.0
    node_cv: Annotated[float, msgspec.Meta(ge=0, le=0.1)] = 0.0
    environment: Annotated[float, msgspec.Meta(ge=0, le=3)] = 0.0
    background: bool = False

    @property
    def harmless(self) -> float:
        """Factor on rates and sizes of harmless events; 0: none happen."""
        return self.environment or float(self.background)

    @property
    def is_measured(self) -> bool:
        return self.measured or bool(self.recorded)

    @property
    def is_steady(self) -> bool:
        """Whether steps hardly vary, and nothing but faults makes them longer."""
        return not (self.is_measured or self.harmless)


def shard_nodes_for(n_nodes: int) -> int:
    """Return how many nodes a shard of a new run holds.

    >>> [shard_nodes_for(n) for n in (4, 256, 257, 1_000, 4_000, 31_250)]
    [32, 32, 64, 128, 256, 256]
    """
    size = LEAST_SHARD_NODES
    while size < MOST_SHARD_NODES and size * MOST_SHARDS < n_nodes:
        size *= 2
    return size


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run with all that will happen to it: what a tick is a pure function of.

    ``epoch_s`` is the Unix second from which the scenario's seconds count. ``inputs`` are what
    of it is observed.
    """

    run: RunSpec
    seed: int
    epoch_s: int
    faults: tuple[Fault, ...] = ()
    benign: tuple[Benign, ...] = ()
    shard_size: Count = LEAST_SHARD_NODES
    inputs: Inputs = LIVE
    noise: Noise = Noise()

    @property
    def shards(self) -> tuple[str, ...]:
        n_shards = -(-self.run.nodes // self.shard_size)
        return tuple(f"{self.run.name}/{i}" for i in range(n_shards))
