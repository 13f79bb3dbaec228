"""A matrix of pairs split into what is usual, what each node adds, and what is the pair's own."""

from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.peers import GAUSSIAN, lower_median, median

PASSES = 6


@dataclass(frozen=True, slots=True, eq=False)
class TwoWay:
    """``log(value[i, j]) = level + node[i] + node[j] + pair[i, j]``, each a logarithm.

    ``node`` is (n,), ``pair`` (n, n) with NaN where nothing was measured.
    """

    level: float
    node: FloatArray
    pair: FloatArray

    @property
    def node_spread(self) -> float:
        """How much nodes differ, as a robust standard deviation."""
        return float(GAUSSIAN * median(np.abs(self.node)))

    @property
    def pair_spread(self) -> float:
        """How much pairs differ beyond their nodes, as a robust standard deviation."""
        above = self.pair[np.triu_indices(len(self.node), 1)]
        return float(GAUSSIAN * median(np.abs(above)))


def two_way(values: FloatArray) -> TwoWay:
    """Split a symmetric matrix of positive figures by medians.

    Parameters
    ----------
    values : (n, n), symmetric
        A latency, or one over a bandwidth: what is sick lies above. NaN, zero and infinity are
        left out, and so is the diagonal.

    Returns
    -------
    split : TwoWay
        With one pair or none every node is usual: two alone cannot be told apart.

    Notes
    -----
    Tukey's median polish on logarithms, with one set of effects for rows and columns since the
    matrix is symmetric. A node that is slow to everybody moves its own median and leaves the
    medians of the others alone; a pair that is slow moves no median, and stays behind in the
    residuals. Of two middle values the lower is taken, so that one slow pair among three nodes
    blames no node. The effects are centred on the usual node.

    References
    ----------
    J. W. Tukey, "Exploratory Data Analysis", Addison-Wesley (1977), chapter 11.

    Examples
    --------
    Node 3 is twice as slow to everybody, and the pair of 0 and 1 three times:

    >>> values = np.full((5, 5), 16.0)
    >>> values[3] *= 2; values[:, 3] *= 2; values[0, 1] *= 3; values[1, 0] *= 3
    >>> split = two_way(values)
    >>> np.exp(split.node).round(2)
    array([1., 1., 1., 2., 1.])
    >>> np.exp(split.pair[0]).round(2)
    array([nan,  3.,  1.,  1.,  1.])
    """
    n = len(values)
    known = np.isfinite(values) & (values > 0) & ~np.eye(n, dtype=bool)
    logs = np.log(np.where(known, values, 1.0))
    logs[~known] = np.nan
    node = np.zeros(n)
    if np.triu(known).sum() < 2:
        level = float(np.nan_to_num(lower_median(logs[known])))
        return TwoWay(level, node, logs - level)
    level = float(lower_median(logs[known]))
    for _ in range(PASSES):
        rest = logs - level - node[:, None] - node
        node = node + np.nan_to_num(lower_median(rest))
        centre = float(lower_median(node))
        node, level = node - centre, level + 2 * centre
    return TwoWay(level, node, logs - level - node[:, None] - node)
