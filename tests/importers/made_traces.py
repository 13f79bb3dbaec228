"""Traces with a known answer: a pipelined job, operation by operation."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from importers.traces.trace import CODE, Trace

FORWARD_S, BACKWARD_S = 0.2, 0.4
P2P_S, GATHER_S, REDUCE_S, EMBED_S, NORM_S = 0.001, 0.05, 0.1, 0.02, 0.003
OPTIMIZER_S, CLIP_S = 0.02, 0.005

COLUMNS = Trace.__slots__[:10]
Factor = Callable[[int, int, int, int], float]


def as_usual(step: int, dp: int, stage: int, micro: int) -> float:
    return 1.0


@dataclass
class Job:
    """A job, and what slows it: factors by (step, replica, stage, micro-batch)."""

    dp: int = 4
    pp: int = 4
    chunks: int = 1
    micro: int = 8
    steps: int = 3
    tp: int = 1
    work: Factor = as_usual
    forward: Factor = as_usual
    reduce: Factor = as_usual
    p2p: Factor = as_usual
    noise: float = 0.0
    seed: int = 0
    rows: list[tuple[float, ...]] = field(default_factory=list)

    def trace(self) -> Trace:
        """Play every step, and return what a profiler would have recorded."""
        rng = np.random.default_rng(self.seed)
        for step in range(self.steps):
            Step(self, step, rng).play()
        columns = np.array(self.rows).T
        whole = [column.astype(int) for column in columns[:8]]
        return Trace(**dict(zip(COLUMNS, [*whole, *columns[8:]], strict=True)))


def order_of(job: Job, stage: int) -> list[tuple[str, int, int]]:
    """Return one worker's schedule: (pass, chunk, micro-batch), one forward, one backward."""
    n = job.micro * job.chunks
    if job.chunks == 1:
        warm = min(n, job.pp - stage - 1)
        part = [(0, k) for k in range(n)]
        forward, backward = part, part
    else:
        warm = min(n, (job.pp - stage - 1) * 2 + (job.chunks - 1) * job.pp)
        turn = job.pp * job.chunks
        forward = [(k // job.pp % job.chunks, k // turn * job.pp + k % job.pp) for k in range(n)]
        backward = [(job.chunks - 1 - chunk, micro) for chunk, micro in forward]
    order = [("forward", *part) for part in forward[:warm]]
    for k in range(n - warm):
        order += [("forward", *forward[warm + k]), ("backward", *backward[k])]
    return order + [("backward", *part) for part in backward[n - warm :]]


class Step:
    """One step of all replicas."""

    def __init__(self, job: Job, step: int, rng: np.random.Generator) -> None:
        self.job, self.step, self.rng = job, step, rng
        self.n_parts = job.pp * job.chunks
        self.seen: dict[tuple[int, int, str], int] = {}

    def play(self) -> None:
        """Gather, run the pipelines, reduce, optimize."""
        job = self.job
        free = {}
        for stage in range(job.pp):
            for dp in range(job.dp):
                self.add(dp, stage, "params-all-gather", 0.0, GATHER_S)
                free[dp, stage] = GATHER_S
        for dp in range(job.dp):
            self.pipeline(dp, free)
        self.finish(free)

    def pipeline(self, dp: int, free: dict[tuple[int, int], float]) -> None:
        """Play one replica's pipeline, one computation at a time, as soon as it can."""
        job = self.job
        orders = {stage: order_of(job, stage) for stage in range(job.pp)}
        ended: dict[tuple[str, int, int], float] = {}
        last = {(stage, way): 0.0 for stage in range(job.pp) for way in ("forward", "backward")}
        while any(orders.values()):
            for stage, order in orders.items():
                if order and self.is_ready(order[0], stage, ended):
                    self.compute(dp, stage, order.pop(0), ended, last, free)

    def before(self, way: str, part: int) -> int:
        return part - 1 if way == "forward" else part + 1

    def is_ready(
        self, item: tuple[str, int, int], stage: int, ended: dict[tuple[str, int, int], float]
    ) -> bool:
        way, chunk, micro = item
        part = chunk * self.job.pp + stage
        source = self.before(way, part)
        if not 0 <= source < self.n_parts:
            return way == "forward" or ("forward", part, micro) in ended
        return (way, source, micro) in ended

    def compute(
        self,
        dp: int,
        stage: int,
        item: tuple[str, int, int],
        ended: dict[tuple[str, int, int], float],
        last: dict[tuple[int, str], float],
        free: dict[tuple[int, int], float],
    ) -> None:
        """Receive what is needed, compute, and send it on."""
        job = self.job
        way, chunk, micro = item
        part = chunk * job.pp + stage
        source = self.before(way, part)
        start_s = free[dp, stage]
        if 0 <= source < self.n_parts:
            sent_s = ended[way, source, micro]
            posted_s = last[stage, way]
            arrived_s = max(sent_s, posted_s) + P2P_S * job.p2p(self.step, dp, stage, micro)
            self.add(dp, source % job.pp, f"{way}-send", sent_s, arrived_s - sent_s)
            self.add(dp, stage, f"{way}-recv", posted_s, arrived_s - posted_s)
            start_s = max(start_s, arrived_s)
        usual_s = FORWARD_S if way == "forward" else BACKWARD_S
        factor = job.work(self.step, dp, stage, micro)
        if way == "forward":
            factor *= job.forward(self.step, dp, stage, micro)
        noise = 1 + job.noise * float(self.rng.standard_normal())
        took_s = usual_s * factor * max(noise, 0.1)
        self.add(dp, stage, f"{way}-compute", start_s, took_s, chunk=chunk, micro=micro)
        ended[way, part, micro] = last[stage, way] = free[dp, stage] = start_s + took_s

    def finish(self, free: dict[tuple[int, int], float]) -> None:
        """Reduce gradients over replicas, agree on their norm, optimize."""
        job, ends = self.job, (0, self.job.pp - 1)
        for worker, free_s in list(free.items()):
            self.add(*worker, "layernorm-grads-all-reduce", free_s, NORM_S)
            free[worker] = free_s + NORM_S
        for dp in range(job.dp):
            together = {(dp, stage) for stage in ends}
            self.together(together, "embedding-grads-all-reduce", EMBED_S, free)
        for stage in range(job.pp):
            took_s = REDUCE_S * job.reduce(self.step, 0, stage, 0)
            together = {(dp, stage) for dp in range(job.dp)}
            self.together(together, "grads-reduce-scatter", took_s, free)
        self.together(set(free), "optimizer-clip-main-grad", CLIP_S, free)
        for worker, free_s in free.items():
            self.add(*worker, "optimizer", free_s, OPTIMIZER_S)

    def together(
        self,
        workers: set[tuple[int, int]],
        kind: str,
        took_s: float,
        free: dict[tuple[int, int], float],
    ) -> None:
        """Let workers meet in a collective, which begins when the last has come."""
        end_s = max(free[worker] for worker in workers) + took_s
        for worker in sorted(workers):
            self.add(*worker, kind, free[worker], end_s - free[worker])
            free[worker] = end_s

    def add(
        self,
        dp: int,
        stage: int,
        kind: str,
        start_s: float,
        duration_s: float,
        *,
        chunk: int = 0,
        micro: int = -1,
    ) -> None:
        """Record an operation, once per tensor-parallel rank."""
        seq = self.seen.get((dp, stage, kind), 0)
        self.seen[dp, stage, kind] = seq + 1
        rank = (stage * self.job.dp + dp) * self.job.tp
        for shard in range(self.job.tp):
            self.job.rows.append(
                (
                    *(CODE[kind], self.step, dp, stage, rank + shard),
                    *(seq, chunk, micro, start_s, duration_s),
                )
            )
