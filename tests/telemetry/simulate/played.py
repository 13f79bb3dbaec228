"""Small simulated runs, and their data before, during and after an event."""

from collections.abc import Sequence

import msgspec
import numpy as np

from telemetry.blocks import FloatArray
from telemetry.simulate.inputs import LIVE
from telemetry.simulate.plan import Benign, Fault, Noise, Plan, RunSpec
from telemetry.simulate.shard import PlayedShard, play, start_clock
from telemetry.steps import StepBatch

EPOCH = 1_800_000_000
START_S, END_S = 120.0, 180.0  # when tests let something happen
# Cores that wait for other nodes fall idle.
IDLE = msgspec.structs.replace(LIVE, busy_while_waiting=False)

VISION = RunSpec(
    name="vit",
    model="vit-huge",
    instance="trn2.48xlarge",
    nodes=4,
    seq_len=256,
    global_batch=4096,
    compile_s=0,
)
PIPELINED = RunSpec(
    name="gpt",
    model="llama2-7b",
    instance="trn1.32xlarge",
    nodes=4,
    tp=8,
    pp=4,
    seq_len=4096,
    global_batch=32,
    compile_s=0,
)
SMALL = RunSpec(
    name="bert",
    model="bert-large",
    instance="trn1.2xlarge",
    nodes=3,
    seq_len=128,
    global_batch=6,
    compile_s=0,
)


def plan_of(
    run: RunSpec = VISION,
    *,
    faults: Sequence[Fault] = (),
    benign: Sequence[Benign] = (),
    seed: int = 7,
    shard_size: int = 32,
) -> Plan:
    return Plan(
        run=run,
        seed=seed,
        epoch_s=EPOCH,
        faults=tuple(faults),
        benign=tuple(benign),
        shard_size=shard_size,
        inputs=IDLE,
        noise=Noise(measured=False),
    )


def played(plan: Plan, seconds: int = 240, *, every_s: int = 1) -> PlayedShard:
    """Play the first shard from the start."""
    return play(plan, plan.shards[0], start_clock(plan), EPOCH + seconds, every_s=every_s)


def with_fault(
    kind: str, magnitude: float = 1.0, *, seconds: int = 240, **more: object
) -> PlayedShard:
    """Play a run whose fault lasts from START_S to END_S; by default it hits the second node."""
    run = more.pop("on", VISION)
    assert isinstance(run, RunSpec)
    where = {"run": run.name} if more.pop("whole_run", False) else {"node": run.node_names[1]}
    times = {"start_s": START_S, "duration_s": END_S - START_S}
    fault = msgspec.convert({"kind": kind, "magnitude": magnitude} | times | where | more, Fault)
    return played(plan_of(run, faults=[fault]), seconds)


def with_event(
    kind: str, *, seconds: int = 240, on: RunSpec = VISION, **more: object
) -> PlayedShard:
    """Play a run with a benign event that begins at START_S."""
    event = msgspec.convert({"kind": kind, "run": on.name, "start_s": START_S} | more, Benign)
    return played(plan_of(on, benign=[event]), seconds)


def values(
    played: PlayedShard, metric: str, start_s: float = START_S, end_s: float = END_S
) -> FloatArray:
    """Return a metric of the ticks after one second, by another: (n_ticks, n_nodes, n_parts)."""
    ticks = played.span.ticks - EPOCH
    return played.span.values[metric][(ticks > start_s) & (ticks <= end_s)]


def steps(played: PlayedShard, start_s: float = START_S, end_s: float = END_S) -> StepBatch:
    """Return the steps that began and ended between two seconds."""
    ended_s = played.steps.ended_at_s - EPOCH
    began_s = ended_s - played.steps.step_s
    rows = np.flatnonzero((began_s >= start_s) & (ended_s <= end_s))
    return played.steps[rows[0] : rows[-1] + 1] if len(rows) else played.steps[:0]


def phase(
    played: PlayedShard, name: str, start_s: float = START_S, end_s: float = END_S
) -> FloatArray:
    """Return the mean seconds each worker spent in a phase per step: (n_workers,)."""
    return np.asarray(np.mean(steps(played, start_s, end_s).phases[name], axis=0))
