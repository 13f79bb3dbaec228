"""The matrix of pairs: nodes that are slow to all, pairs that are slow to each other."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray
from telemetry.checks.preflight_measurements import Measured
from telemetry.checks.preflight_racks import PairClasses, pair_classes
from telemetry.statistics.peers import GAUSSIAN, lower_median, median


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

    def pair_spread(self, classes: NDArray[np.bool_]) -> FloatArray:
        """Return the deviation of the pairs of the same class, of all if it is small: (n, n)."""
        above = np.triu(np.ones(self.pair.shape, dtype=bool), 1) & np.isfinite(self.pair)
        spreads = []
        for mask in (~classes, classes):
            known = above & mask
            chosen = known if known.sum() >= FEWEST_IN_CLASS else above
            spreads.append(float(GAUSSIAN * median(np.abs(self.pair[chosen]))))
        return np.where(classes, spreads[1], spreads[0])


def two_way(values: FloatArray, is_across: NDArray[np.bool_] | None = None) -> TwoWay:
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

    Examples
    --------
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


def _levels(logs: FloatArray, across: NDArray[np.bool_]) -> FloatArray:
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
    def slow_nodes(self) -> NDArray[np.bool_]:
        least = max(np.log(self.figure.node), NODE_DEVIATIONS * self.split.node_spread)
        return np.asarray(self.split.node > least)

    @property
    def slow_pairs(self) -> NDArray[np.bool_]:
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


def silent(measured: Measured) -> NDArray[np.bool_]:
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
