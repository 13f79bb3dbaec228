"""Compilations of a simulated run: graphs, cache keys, nodes, durations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, Literal

import numpy as np

from telemetry import catalog
from telemetry.compiles import HIT, MISS, Compile
from telemetry.simulate.plan import Job, RunSpec
from telemetry.simulate.timeline import BOOT_S

# A 6.7B model compiles 26 graphs (AWS Neuron SDK tutorial on GPT3-6.7B); a smaller one fewer.
LARGE_PARAMS, GRAPHS_OF_LARGE, GRAPHS_OF_SMALL = 6e9, 26, 8
# One graph, the step's own, takes most of the time; the others ever less.
DECAY: Final = 1.4
FLAGS = "-O1 --model-type=transformer"
COMPILER, NEWER_COMPILER = "2.21.18209.0", "2.21.33363.0"
SHARED, LOCAL = "/fsx/neuron-compile-cache", "/var/tmp/neuron-compile-cache"  # noqa: S108
# Fleets of so many nodes, and every trn2.48xlarge, have a cache on shared storage.
SHARED_FROM_NODES = 8
# Nodes that find a graph in a shared cache are alike: a run keeps the requests of its first ones.
MOST_ASKING = 64
Accident = Literal["flags", "compiler", "lost"]
ACCIDENTS: Final[tuple[Accident, ...]] = ("flags", "compiler", "lost")


@dataclass(frozen=True, slots=True)
class Toolchain:
    compiler: str = COMPILER
    flags: str = FLAGS
    cache: str = SHARED

    @property
    def is_shared(self) -> bool:
        return self.cache != LOCAL


def toolchain_of(job: Job) -> Toolchain:
    is_shared = job.nodes >= SHARED_FROM_NODES or job.instance.startswith("trn2.48")
    target = "trn2" if job.instance.startswith("trn2") else "trn1"
    flags = f"--target={target} {FLAGS}"
    return Toolchain(flags=flags, cache=SHARED if is_shared or job.nodes == 1 else LOCAL)


def compiles_at_all(job: Job) -> bool:
    """Whether the instance uses neuronx-cc; GPUs do not."""
    return catalog.training_instance(job.instance).chip.vendor == "AWS"


def graphs_of(job: Job) -> Sequence[str]:
    """Hashes of the graphs of a job, that of the step first. Equal layouts have equal graphs."""
    is_large = catalog.model(job.model).params >= LARGE_PARAMS
    n_graphs = GRAPHS_OF_LARGE if is_large else GRAPHS_OF_SMALL
    layout = f"{job.model} {job.tp} {job.pp} {job.seq_len} {job.global_batch} {job.nodes}"
    layout += "".join(f" {name} {each}" for name, each in job.recipe.items())
    return [_digits(f"{layout} {job.precision} {i}") for i in range(n_graphs)]


def _digits(text: str) -> str:
    number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
    return f"{number:020d}"


def module_of(graph: str, tools: Toolchain) -> str:
    return f"MODULE_{graph}+{blake2b(tools.flags.encode(), digest_size=4).hexdigest()}"


def n_first_compiles(job: Job) -> int:
    """Return how many requests ``first_compiles`` lists."""
    return len(graphs_of(job)) * _n_asking(job)


def _n_asking(job: Job) -> int:
    return min(job.nodes, MOST_ASKING)


def first_compiles(spec: RunSpec, tools: Toolchain, *, epoch_s: float) -> Sequence[Compile]:
    """Cache requests of the nodes of a run before it trains.

    Parameters
    ----------
    epoch_s : Unix second at which the run begins

    Notes
    -----
    Graphs are compiled one after another, the i-th taking a share that falls as
    ``(i + 1) ** -1.4``, and all together ``compile_s``. With a shared cache the first node
    compiles and the others find; without one each compiles for itself. A run that compiles for
    no time finds all in the cache. Of a large run the first nodes alone are listed: each of the
    others finds what they find.
    """
    length_s = spec.compile_s
    if length_s is None:
        length_s = catalog.model(spec.model).default_compile_s
    graphs = graphs_of(spec)
    weights = (np.arange(len(graphs)) + 1.0) ** -DECAY
    lengths_s = length_s * weights / weights.sum()
    begins_s = epoch_s - 1.0 + BOOT_S + np.concatenate([[0.0], np.cumsum(lengths_s)[:-1]])
    return [
        event
        for graph, begin_s, took_s in zip(graphs, begins_s, lengths_s, strict=True)
        for event in _asked(spec, graph, tools, at_s=float(begin_s), seconds=float(took_s))
    ]


def recompiled(
    spec: RunSpec,
    tools: Toolchain,
    *,
    at_s: float,
    seconds: float,
    start: str = "",
    is_planned: bool = False,
) -> Sequence[Compile]:
    """Cache requests when the graph of the step is compiled again."""
    graph = graphs_of(spec)[0]
    return [
        replace(event, is_planned=is_planned)
        for event in _asked(spec, graph, tools, at_s=at_s, seconds=seconds, start=start)
    ]


def _asked(
    spec: RunSpec, graph: str, tools: Toolchain, *, at_s: float, seconds: float, start: str = ""
) -> Iterator[Compile]:
    """Yield the requests of nodes: one compiles, or all do; others find the result."""
    for rank in range(_n_asking(spec)):
        node = spec.node_name(rank)
        compiles = seconds > 0 and (rank == 0 or not tools.is_shared)
        event = Compile(
            module=module_of(graph, tools),
            outcome=MISS if compiles else HIT,
            at_s=at_s if compiles else at_s + seconds,
            rank=rank,
            process=f"{node}:{start}" if start else node,
            compiler=tools.compiler,
            flags=tools.flags if compiles else "",
            cache=tools.cache,
        )
        yield replace(event, seconds=seconds) if compiles else event


def changed(tools: Toolchain, accident: Accident) -> Toolchain:
    """Return the toolchain after an accident: other flags, another compiler, or the same."""
    if accident == "flags":
        is_usual = "-O1" in tools.flags.split()
        before, after = ("-O1", "-O2") if is_usual else ("-O2", "-O1")
        return replace(tools, flags=tools.flags.replace(before, after))
    if accident == "compiler":
        is_usual = tools.compiler == COMPILER
        return replace(tools, compiler=NEWER_COMPILER if is_usual else COMPILER)
    return tools
