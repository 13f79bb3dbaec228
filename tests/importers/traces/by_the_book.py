"""The what-if analysis spelled out: one operation at a time, by name, without numpy's help."""

from collections import defaultdict
from collections.abc import Callable, Collection
from functools import cache
from math import ceil
from statistics import fmean, median

from importers.traces.trace import KINDS, Trace

# (step, replica, stage, kind, number)
Op = tuple[int, int, int, str, int]
Took = dict[Op, float]
DP_WIDE = ("params-all-gather", "grads-reduce-scatter")
TAIL = (
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "optimizer-clip-main-grad",
    "optimizer",
)


def having(place: int, value: int) -> Callable[[Op], bool]:
    """Choose the operations of one replica (1) or stage (2)."""
    return lambda op: op[place] == value


class Book:
    """One trace of a pipeline without interleaving."""

    def __init__(self, trace: Trace) -> None:
        names = list(KINDS)
        self.start: Took = {}
        self.end: Took = {}
        columns = zip(
            trace.kind.tolist(),
            trace.step.tolist(),
            trace.dp.tolist(),
            trace.stage.tolist(),
            trace.seq.tolist(),
            trace.start_s.tolist(),
            trace.duration_s.tolist(),
            strict=True,
        )
        for kind, step, dp, stage, seq, start_s, took_s in columns:
            op = (step, dp, stage, names[kind], seq)
            self.start[op] = min(start_s, self.start.get(op, start_s))
            self.end[op] = max(start_s + took_s, self.end.get(op, 0.0))
        self.steps = sorted({op[0] for op in self.start})
        self.n_dp = 1 + max(op[1] for op in self.start)
        self.n_stages = 1 + max(op[2] for op in self.start)
        self.computed: dict[tuple[int, int, int], list[Op]] = defaultdict(list)
        for op in sorted(self.start, key=lambda op: (self.start[op], op)):
            if op[3].endswith("-compute"):
                self.computed[op[:3]].append(op)

    def members(self, op: Op) -> list[Op]:
        """Who must be there before this operation moves a byte."""
        step, dp, stage, kind, seq = op
        towards = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
        if kind in towards:
            other = kind.replace("send", "x").replace("recv", "send").replace("x", "recv")
            return [op, (step, dp, stage + towards[kind], other, seq)]
        if kind in DP_WIDE:
            return [(step, replica, stage, kind, seq) for replica in range(self.n_dp)]
        if kind == "embedding-grads-all-reduce":
            return [(step, dp, each, kind, seq) for each in {0, self.n_stages - 1}]
        if kind == "optimizer-clip-main-grad":
            stages = range(self.n_stages)
            return [(step, d, s, kind, seq) for d in range(self.n_dp) for s in stages]
        return [op]

    def before(self, op: Op) -> list[Op]:
        """What must be over before this operation begins."""
        step, dp, stage, kind, seq = op
        order = self.computed[step, dp, stage]
        way = kind.split("-", 1)[0]
        needs: list[Op] = []
        if kind.endswith("-compute"):
            place = order.index(op)
            needs += order[max(0, place - 1) : place]
            needs += [(step, dp, stage, f"{way}-recv", seq)]
            if kind == "forward-compute" and seq == 0:
                needs += [(step, dp, stage, "params-all-gather", 0)]
        elif kind.endswith("-send"):
            needs += [(step, dp, stage, f"{way}-compute", seq), (*op[:4], seq - 1)]
        elif kind.endswith("-recv"):
            needs += [(step, dp, stage, f"{way}-compute", seq - 1), (*op[:4], seq - 1)]
            first = next(i for i, each in enumerate(order) if each[3] == "backward-compute")
            if kind == "backward-recv" and seq == 0 and first >= 2:
                needs += [order[first - 2]]
        elif kind in TAIL:
            chain = [(step, dp, stage, each, 0) for each in TAIL]
            present = [each for each in chain if each in self.start]
            place = present.index(op)
            needs += present[place - 1 : place] if place else order[-1:]
        return [need for need in needs if need in self.start]

    def transfer(self, op: Op) -> float:
        """The duration once all workers have arrived."""
        return self.end[op] - max(self.start[each] for each in self.members(op))

    def real(self) -> Took:
        return {op: self.transfer(op) for op in self.start}

    def ideal(self) -> Took:
        """Everything as its peers: the mean of work, the median of communication."""
        by_kind: dict[str, list[float]] = defaultdict(list)
        for op in self.start:
            by_kind[op[3]].append(self.transfer(op))
        usual = {
            kind: (median if KINDS[kind].is_comm else fmean)(values)
            for kind, values in by_kind.items()
        }
        return {op: usual[op[3]] for op in self.start}

    def step_s(self, took: Took) -> float:
        """The mean step, with these durations."""

        @cache
        def begin(op: Op) -> float:
            return max((over(need) for need in self.before(op)), default=0.0)

        @cache
        def over(op: Op) -> float:
            return max(begin(each) for each in self.members(op)) + took[op]

        return fmean(max(over(op) for op in took if op[0] == step) for step in self.steps)

    def changed(self, base: Took, other: Took, is_chosen: Callable[[Op], bool]) -> float:
        return self.step_s({op: other[op] if is_chosen(op) else base[op] for op in base})

    def explained(self) -> dict[str, float]:
        """Slowdown, M_W and M_S, as the paper defines them."""
        real, ideal = self.real(), self.ideal()
        real_s, ideal_s = self.step_s(real), self.step_s(ideal)
        by_dp = [self.changed(ideal, real, having(1, dp)) for dp in range(self.n_dp)]
        by_stage = [self.changed(ideal, real, having(2, stage)) for stage in range(self.n_stages)]
        score = {
            (dp, stage): min(by_dp[dp], by_stage[stage])
            for stage in range(self.n_stages)
            for dp in range(self.n_dp)
        }
        n_worst = ceil(0.03 * len(score))
        worst: Collection[tuple[int, int]] = sorted(score, key=lambda w: -score[w])[:n_worst]
        without_w = self.changed(real, ideal, lambda op: op[1:3] in worst)
        without_s = self.changed(real, ideal, lambda op: op[2] == self.n_stages - 1)
        gap_s = real_s - ideal_s
        return {
            "real_s": real_s,
            "ideal_s": ideal_s,
            "m_w": (real_s - without_w) / gap_s,
            "m_s": (real_s - without_s) / gap_s,
        }
