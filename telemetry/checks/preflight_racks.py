"""The classes of pairs: which nodes share a rack, by label or inferred from the pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
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
    logs = [_logs(values) for values in figures]
    if labels and all(labels) and len(set(labels)) > 1:
        rack = np.unique(list(labels), return_inverse=True)[1]
        across = PairClasses("labels", rack).is_across
        if any(_ratio(each, across) > np.log(LEAST_RATIO) / 2 for each in logs):
            return PairClasses("labels", rack)
    for each in logs:
        if (found := infer_racks(each)) is not None:
            return PairClasses("inferred", found)
    return PairClasses("", np.zeros(len(figures[0]), int))


def _logs(values: FloatArray) -> FloatArray:
    known = np.isfinite(values) & (values > 0) & ~np.eye(len(values), dtype=bool)
    return np.where(known, np.log(np.where(known, values, 1.0)), np.nan)


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
    racks = [np.array(each) for each in candidates if len(set(each)) > 1]
    racks.sort(key=lambda rack: _misfit(_rest(logs, rack)))
    refined = [_refined(logs, rack) for rack in racks[:REFINED]]
    accepted = [rack for rack in refined if _is_clear(logs, rack)]
    return min(accepted, key=lambda rack: _misfit(_residuals(logs, rack)), default=None)


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


def _residuals(logs: FloatArray, rack: IntArray) -> FloatArray:
    return _rest(logs, rack, _node_parts(logs, rack))


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
