"""The matrix of pairs: nodes that are slow to all, pairs that are slow to each other.

Pairs of one rack and pairs across racks are two classes, by label or inferred from the pairs.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.checks.preflight_measurements import Measured
from telemetry.statistics.peers import GAUSSIAN, lower_median, median

BoolArray = NDArray[np.bool_]
# Groups are inferred from at least this many nodes, and from this many pairs of each class.
FEWEST_NODES, FEWEST_PAIRS = 6, 3
# Pairs across racks are slower than pairs in one by a factor in this range. Below it, the limits
# for pairs have room for the difference. Above it, a fault is more likely than a longer path.
LEAST_RATIO, MOST_RATIO = 1.12, 2.5
# The two classes differ by so many deviations of their pairs.
APART_DEVIATIONS = 4.0
# Share of pairs that must lie nearer to their own class than to the other.
LEAST_FITTING = 0.9
MOST_GAPS, N_QUANTILES, REFINED, ROUNDS = 12, 19, 3, 3
# A node leaves its group, or joins one, if that lowers its misfit by so much.
BETTER = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class PairClasses:
    """The pairs of one rack and those across racks.

    ``basis`` is ``labels``, ``inferred`` or, if all pairs are one class, empty. ``rack`` (n,)
    numbers the rack of each node.
    """

    basis: str
    rack: IntArray

    @property
    def is_across(self) -> BoolArray:
        """(n, n)."""
        return np.asarray(self.rack[:, None] != self.rack)


def pair_classes(figures: Sequence[FloatArray], labels: Sequence[str]) -> PairClasses:
    """Return the classes of pairs.

    Parameters
    ----------
    figures : (n, n) each, symmetric
        Figures that are higher for slow pairs. The first one that shows racks decides.
    labels : (n,)
        Rack or zone of each node, empty if unknown. Used if all are known and the pairs across
        racks differ from the others in some figure.
    """
    logs = []
    for values in figures:
        known = np.isfinite(values) & (values > 0) & ~np.eye(len(values), dtype=bool)
        logs.append(np.where(known, np.log(np.where(known, values, 1.0)), np.nan))
    if labels and all(labels) and len(set(labels)) > 1:
        rack = np.unique(list(labels), return_inverse=True)[1]
        across = PairClasses("labels", rack).is_across
        if any(_ratio(log, across) > np.log(LEAST_RATIO) / 2 for log in logs):
            return PairClasses("labels", rack)
    for log in logs:
        if (racks := infer_racks(log)) is not None:
            return PairClasses("inferred", racks)
    return PairClasses("", np.zeros(len(figures[0]), int))


def _ratio(logs: FloatArray, across: BoolArray) -> float:
    """Return the log ratio of pairs across racks to pairs in one; NaN if there are none."""
    return float(lower_median(logs[across]) - lower_median(logs[~across]))


def infer_racks(logs: FloatArray) -> IntArray | None:
    """Infer the rack of each node, numbered, (n,); None if the figures show no racks.

    Parameters
    ----------
    logs : (n, n), symmetric
        Logarithms of a figure that is higher for slow pairs; NaN where unknown.

    Notes
    -----
    A threshold between fast and slow pairs gives groups of nodes. Candidates are the largest gaps
    in the sorted figures, and their quantiles. Each node then moves to the group that best
    explains its pairs, whatever its own speed: a slow node keeps its rack. The candidate that
    leaves the least unexplained is accepted if two groups or more have two nodes, and the classes
    are clearly apart. A node that is slow to all others forms no group.
    """
    figures = np.sort(logs[np.triu(np.isfinite(logs), 1)])
    if len(logs) < FEWEST_NODES or figures.size < 2 * FEWEST_PAIRS:
        return None
    gaps = np.argsort(np.diff(figures), kind="stable")[-MOST_GAPS:]
    middles = (figures[gaps] + figures[gaps + 1]) / 2
    steps = np.linspace(0, 1, N_QUANTILES + 2)[1:-1]
    thresholds = np.unique([*middles, *np.quantile(figures, steps)])
    candidates = {tuple(_groups(logs < threshold)) for threshold in thresholds}
    racks = [np.array(candidate) for candidate in candidates if len(set(candidate)) > 1]
    racks.sort(key=lambda rack: _misfit(_rest(logs, rack)))
    refined = [_refined(logs, rack) for rack in racks[:REFINED]]
    accepted = [rack for rack in refined if _is_clear(logs, rack)]
    return min(
        accepted,
        key=lambda rack: _misfit(_rest(logs, rack, _node_parts(logs, rack))),
        default=None,
    )


def _groups(fast: BoolArray) -> IntArray:
    """Group nodes that are mostly fast to each other, and number the groups: (n,)."""
    rack = np.full(len(fast), -1)
    for number in range(len(fast)):
        left = rack < 0
        if not left.any():
            break
        degrees = np.where(left, (fast & left).sum(axis=1), -1)
        hub = int(np.argmax(degrees))
        group = fast[hub] & left
        group[hub] = True
        group = ((fast & group).sum(axis=1) * 2 > group.sum() - group) & left
        group[hub] = True
        rack[group] = number
    return rack


def _rest(logs: FloatArray, rack: IntArray, node: FloatArray | None = None) -> FloatArray:
    """Subtract the part of each node and the median of each class: (n, n)."""
    logs = logs if node is None else logs - np.add.outer(node, node)
    across = rack[:, None] != rack
    levels = np.where(across, lower_median(logs[across]), lower_median(logs[~across]))
    return np.asarray(logs - levels)


def _node_parts(logs: FloatArray, rack: IntArray) -> FloatArray:
    node = np.zeros(len(logs))
    for _ in range(ROUNDS):
        node = node + np.nan_to_num(lower_median(_rest(logs, rack, node)))
        node = node - lower_median(node)
    return node


def _misfit(rest: FloatArray) -> float:
    return float(np.nansum(np.minimum(np.abs(rest), np.log(MOST_RATIO))))


def _refined(logs: FloatArray, rack: IntArray) -> IntArray:
    """Move each node to the group, or to one of its own, that explains its pairs best."""
    for _ in range(ROUNDS):
        across = rack[:, None] != rack
        ratio = _ratio(logs, across)
        if not ratio > 0:
            return rack
        others = _rest(logs, rack, _node_parts(logs, rack)) + np.where(across, ratio, 0.0)
        numbers, sizes = np.unique(rack, return_counts=True)
        moved = rack.copy()
        for i in range(len(logs)):
            options = [*numbers[(sizes > 1) | (numbers == rack[i])], rack.max() + 1 + i]
            rest = others[i] - ratio * (np.array(options)[:, None] != rack)
            costs = np.nansum(np.abs(rest - median(rest)[:, None]), axis=1)
            stays = costs[options.index(rack[i])]
            if costs.min() < BETTER * stays:
                moved[i] = options[int(np.argmin(costs))]
        if np.array_equal(moved, rack):
            break
        rack = np.unique(moved, return_inverse=True)[1]
    return rack


def _is_clear(logs: FloatArray, rack: IntArray) -> bool:
    """Whether the pairs form two classes that are clearly apart."""
    across, known = rack[:, None] != rack, np.triu(np.isfinite(logs), 1)
    _, sizes = np.unique(rack, return_counts=True)
    n_pairs = min((known & across).sum(), (known & ~across).sum())
    if (sizes > 1).sum() < 2 or n_pairs < FEWEST_PAIRS:
        return False
    node = _node_parts(logs, rack)
    ratio = _ratio(logs - np.add.outer(node, node), across)
    rest = np.abs(_rest(logs, rack, node)[known])
    spread = GAUSSIAN * float(median(rest))
    return (
        np.log(LEAST_RATIO) <= ratio <= np.log(MOST_RATIO)
        and ratio > APART_DEVIATIONS * spread
        and float(np.mean(rest < ratio / 2)) >= LEAST_FITTING
    )


class NodeVerdict(StrEnum):
    PASS = "pass"  # noqa: S105
    HOLD = "hold"
    FAIL = "fail"


# The verdict of each kind of finding on its node. One node of a bad pair may be used.
KINDS: dict[str, NodeVerdict] = {
    "device_missing": NodeVerdict.FAIL,
    "efa_missing": NodeVerdict.FAIL,
    "efa_down": NodeVerdict.FAIL,
    "efa_latency": NodeVerdict.FAIL,
    "efa_loss": NodeVerdict.FAIL,
    "node_silent": NodeVerdict.FAIL,
    "node_slow": NodeVerdict.FAIL,
    "ecc_uncorrected": NodeVerdict.FAIL,
    "hardware_errors": NodeVerdict.FAIL,
    "rest_moving": NodeVerdict.HOLD,
    "not_measured": NodeVerdict.HOLD,
    "pair_slow": NodeVerdict.HOLD,
    "pair_silent": NodeVerdict.HOLD,
}
PAIRS = ("pair_slow", "pair_silent")


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """One problem; of a pair, ``peer`` is the other node.

    ``metric`` names the figure, ``value`` and ``usual`` are its value here and elsewhere; None
    where not comparable.
    """

    kind: str
    node: str
    peer: str | None = None
    device: int | None = None
    metric: str = ""
    value: float | None = None
    usual: float | None = None

    @property
    def verdict(self) -> NodeVerdict:
        return KINDS[self.kind]

    @property
    def is_of_pair(self) -> bool:
        return self.kind in PAIRS


PASSES = 6
# Fewer pairs of one class say little about their deviation.
FEWEST_IN_CLASS = 10


@dataclass(frozen=True, slots=True, eq=False)
class TwoWay:
    """``log(value[i, j]) = level[i, j] + node[i] + node[j] + pair[i, j]``, each a logarithm.

    ``level`` (n, n) has one value per class of pairs. ``node`` is (n,), ``pair`` (n, n) with NaN
    where nothing was measured.
    """

    level: FloatArray
    node: FloatArray
    pair: FloatArray

    @property
    def node_spread(self) -> float:
        return float(GAUSSIAN * median(np.abs(self.node)))

    def pair_spread(self, classes: BoolArray) -> FloatArray:
        """Return the deviation of the pairs of the same class, of all if it is small: (n, n)."""
        above = np.triu(np.ones(self.pair.shape, dtype=bool), 1) & np.isfinite(self.pair)
        spreads = []
        for mask in (~classes, classes):
            known = above & mask
            chosen = known if known.sum() >= FEWEST_IN_CLASS else above
            spreads.append(float(GAUSSIAN * median(np.abs(self.pair[chosen]))))
        return np.where(classes, spreads[1], spreads[0])


def two_way(values: FloatArray, is_across: BoolArray | None = None) -> TwoWay:
    """Split a symmetric matrix of positive figures by medians.

    Parameters
    ----------
    values : (n, n), symmetric
        A latency, or one over a bandwidth: faulty values are higher. NaN, zero and infinity are
        left out, and so is the diagonal.
    is_across : (n, n)
        The pairs across racks, whose level differs; by default all pairs are one class.

    Returns
    -------
    split : TwoWay
        With one pair or none every node is usual: two alone cannot be distinguished.

    Notes
    -----
    Tukey's median polish on logarithms, with one set of effects for rows and columns since the
    matrix is symmetric. A node that is slow to all others moves its own median and leaves the
    medians of the others alone; a pair that is slow moves no median, and stays behind in the
    residuals. Of two middle values the lower is taken, so that one slow pair among three nodes
    accuses no node. The effects are centred on the usual node.

    References
    ----------
    J. W. Tukey, "Exploratory Data Analysis", Addison-Wesley (1977), chapter 11.

    Node 3 is twice as slow to all others, and the pair of 0 and 1 three times:

    >>> values = np.full((5, 5), 16.0)
    >>> values[3] *= 2; values[:, 3] *= 2; values[0, 1] *= 3; values[1, 0] *= 3
    >>> split = two_way(values)
    >>> np.exp(split.node).round(2)
    array([1., 1., 1., 2., 1.])
    >>> np.exp(split.pair[0]).round(2)
    array([nan,  3.,  1.,  1.,  1.])
    """
    n = len(values)
    across = np.zeros((n, n), dtype=bool) if is_across is None else is_across
    known = np.isfinite(values) & (values > 0) & ~np.eye(n, dtype=bool)
    logs = np.log(np.where(known, values, 1.0))
    logs[~known] = np.nan
    node = np.zeros(n)
    if np.triu(known).sum() < 2:
        level = np.full((n, n), np.nan_to_num(lower_median(logs[known])))
        return TwoWay(level, node, logs - level)
    level = _levels(logs, across)
    for _ in range(PASSES):
        rest = logs - level - node[:, None] - node
        node = node + np.nan_to_num(lower_median(rest))
        centre = float(lower_median(node))
        node, level = node - centre, level + 2 * centre
        if across.any():
            level = level + _levels(logs - level - node[:, None] - node, across)
    return TwoWay(level, node, logs - level - node[:, None] - node)


def _levels(logs: FloatArray, across: BoolArray) -> FloatArray:
    """Return the median of each class of pairs; of all pairs for a class without any: (n, n)."""
    overall = lower_median(logs[np.isfinite(logs)])
    same, other = (lower_median(logs[mask]) for mask in (~across, across))
    levels = np.where(across, other, same)
    return np.where(np.isnan(levels), overall, levels)


# A node is silent if more than this share of its peers cannot reach it.
MOST_SILENT = 0.5


@dataclass(frozen=True, slots=True)
class PairMeasure:
    """One matrix, and the factors over usual from which a node or a pair is bad.

    Medians of probes differ by 2 to 4 % between similar devices. The 99th percentile varies
    more, bandwidth less. Racks that are too alike to infer differ by up to a fifth, which is no
    fault; the limit for pairs is higher.
    """

    name: str
    node: float
    pair: float
    is_rate: bool = False


FIGURES = (
    PairMeasure("p50_s", node=1.25, pair=1.5),
    PairMeasure("p99_s", node=1.8, pair=2.2),
    PairMeasure("bandwidth_bytes_per_s", node=1.2, pair=1.3, is_rate=True),
)
NODE_DEVIATIONS, PAIR_DEVIATIONS = 6.0, 8.0


@dataclass(frozen=True, slots=True, eq=False)
class PairAnalysis:
    figure: PairMeasure
    values: FloatArray
    split: TwoWay
    classes: PairClasses

    @property
    def usual_of_pairs(self) -> FloatArray:
        """The value of a usual pair of the same class: (n, n)."""
        level = np.exp(self.split.level)
        return np.asarray(1 / level if self.figure.is_rate else level)

    @property
    def usual(self) -> float:
        """The value of a usual pair of one rack, or of any pair if all are one class."""
        return float(self.usual_of_pairs.diagonal()[0]) if len(self.values) else float("nan")

    @property
    def rack_ratio(self) -> float:
        """By how much a usual pair across racks is worse than one in a rack."""
        level = self.split.level
        return float(np.exp(np.max(level, initial=-np.inf) - np.min(level, initial=np.inf)))

    @property
    def slow_nodes(self) -> BoolArray:
        least = max(np.log(self.figure.node), NODE_DEVIATIONS * self.split.node_spread)
        return np.asarray(self.split.node > least)

    @property
    def slow_pairs(self) -> BoolArray:
        """Whether pairs are slower than their class and their nodes explain: (n, n)."""
        spread = self.split.pair_spread(self.classes.is_across)
        least = np.maximum(np.log(self.figure.pair), PAIR_DEVIATIONS * spread)
        return np.asarray(self.split.pair > least)


def looked_at(measured: Measured) -> list[PairAnalysis]:
    """Split each matrix. Bandwidth decides the classes of pairs if latency shows no racks."""
    all_values: list[FloatArray] = [getattr(measured, figure.name) for figure in FIGURES]
    higher_is_worse = []
    for figure, values in zip(FIGURES, all_values, strict=True):
        inverse = np.full(values.shape, np.nan)
        np.divide(1.0, values, out=inverse, where=values > 0)
        higher_is_worse.append(inverse if figure.is_rate else values)
    classes = pair_classes((higher_is_worse[0], higher_is_worse[2]), measured.racks)
    return [
        PairAnalysis(figure, values, two_way(up, classes.is_across), classes)
        for figure, values, up in zip(FIGURES, all_values, higher_is_worse, strict=True)
    ]


def silent(measured: Measured) -> BoolArray:
    """Find nodes that most of their peers, and at least two, cannot reach: (n,)."""
    n_dead = np.isinf(measured.p50_s).sum(axis=1)
    n_probed = measured.was_probed.sum(axis=1)
    return np.asarray((n_dead > 1) & (n_dead > MOST_SILENT * n_probed))


def nodes(
    measured: Measured, looks: list[PairAnalysis], *, known: Collection[str]
) -> Iterator[PreflightFinding]:
    """Find nodes that are silent or slow to all, except ``known``, which have a better reason."""
    gone = silent(measured)
    for i, node in enumerate(measured.nodes):
        if node in known:
            continue
        if gone[i]:
            yield PreflightFinding(
                "node_silent", node, value=float(np.isinf(measured.p50_s[i]).sum())
            )
            continue
        worst = max(
            (look for look in looks if look.slow_nodes[i]),
            key=lambda look: float(look.split.node[i]),
            default=None,
        )
        if worst is not None:
            sign = -1 if worst.figure.is_rate else 1
            value = worst.usual * float(np.exp(sign * worst.split.node[i]))
            yield PreflightFinding(
                "node_slow", node, metric=worst.figure.name, value=value, usual=worst.usual
            )


def pairs(
    measured: Measured, looks: list[PairAnalysis], *, apart: Collection[str]
) -> Iterator[PreflightFinding]:
    """Find usable nodes that are silent or slow only to each other."""
    dead, slow = np.isinf(measured.p50_s), [look.slow_pairs for look in looks]
    may = np.array([node not in apart for node in measured.nodes], dtype=bool)
    bad = np.triu((dead | np.logical_or.reduce(slow)) & may & may[:, None], 1)
    for i, j in zip(*np.nonzero(bad), strict=True):
        node, peer = measured.nodes[i], measured.nodes[j]
        if dead[i, j]:
            yield PreflightFinding("pair_silent", node, peer)
            continue
        worst = max(
            (look for look, mask in zip(looks, slow, strict=True) if mask[i, j]),
            key=lambda look: float(look.split.pair[i, j]),
        )
        yield PreflightFinding(
            "pair_slow",
            node,
            peer,
            metric=worst.figure.name,
            value=float(worst.values[i, j]),
            usual=float(worst.usual_of_pairs[i, j]),
        )
