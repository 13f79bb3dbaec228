"""The matrix of pairs: which node is slow to everybody, which pair only to each other."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray
from telemetry.preflight.measured import Measured
from telemetry.preflight.trouble import Trouble
from telemetry.preflight.twoway import TwoWay, two_way

# A node that fewer than this share of its peers can reach is not there.
MOST_SILENT = 0.5


@dataclass(frozen=True, slots=True)
class Figure:
    """One matrix, and how many times worse than usual a node or a pair must be to count.

    Medians of probes differ by 2 to 4 % between alike devices, and by up to a fifth when the
    way between two nodes is longer: racks apart are no fault, so the limit for pairs lies
    above that. The 99th percentile wanders more, and bandwidth less.
    """

    name: str
    node: float
    pair: float
    is_rate: bool = False


FIGURES = (
    Figure("p50_s", node=1.25, pair=1.5),
    Figure("p99_s", node=1.8, pair=2.2),
    Figure("bandwidth_bytes_per_s", node=1.2, pair=1.3, is_rate=True),
)
NODE_DEVIATIONS, PAIR_DEVIATIONS = 6.0, 8.0


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """One matrix taken apart: in ``excess_*`` 1 is the limit, NaN where nothing is known."""

    figure: Figure
    values: FloatArray
    split: TwoWay

    @property
    def usual(self) -> float:
        """What a usual pair shows."""
        level = float(np.exp(self.split.level))
        return 1 / level if self.figure.is_rate else level

    @property
    def slow_nodes(self) -> NDArray[np.bool_]:
        """Which nodes are slow to everybody: (n,)."""
        least = max(np.log(self.figure.node), NODE_DEVIATIONS * self.split.node_spread)
        return np.asarray(self.split.node > least)

    @property
    def slow_pairs(self) -> NDArray[np.bool_]:
        """Which pairs are slow to each other beyond what their nodes are: (n, n)."""
        least = max(np.log(self.figure.pair), PAIR_DEVIATIONS * self.split.pair_spread)
        return np.asarray(self.split.pair > least)


def looked_at(measured: Measured) -> list[Looked]:
    """Take each of the three matrices apart."""
    found = []
    for figure in FIGURES:
        values: FloatArray = getattr(measured, figure.name)
        sick_up = np.full(values.shape, np.nan)
        if figure.is_rate:
            np.divide(1.0, values, out=sick_up, where=values > 0)
        else:
            sick_up = values
        found.append(Looked(figure, values, two_way(sick_up)))
    return found


def silent(measured: Measured) -> NDArray[np.bool_]:
    """Return which nodes most of their peers cannot reach, and more than one: (n,)."""
    n_dead = np.isinf(measured.p50_s).sum(axis=1)
    n_probed = measured.was_probed.sum(axis=1)
    return np.asarray((n_dead > 1) & (n_dead > MOST_SILENT * n_probed))


def nodes(measured: Measured, looks: list[Looked], *, known: Collection[str]) -> Iterator[Trouble]:
    """Find nodes that are silent or slow to everybody; the ``known`` have a better reason."""
    gone = silent(measured)
    for i, node in enumerate(measured.nodes):
        if node in known:
            continue
        if gone[i]:
            yield Trouble("node_silent", node, value=float(np.isinf(measured.p50_s[i]).sum()))
            continue
        worst = max(
            (look for look in looks if look.slow_nodes[i]),
            key=lambda look: float(look.split.node[i]),
            default=None,
        )
        if worst is not None:
            sign = -1 if worst.figure.is_rate else 1
            value = worst.usual * float(np.exp(sign * worst.split.node[i]))
            yield Trouble(
                "node_slow", node, metric=worst.figure.name, value=value, usual=worst.usual
            )


def pairs(measured: Measured, looks: list[Looked], *, apart: Collection[str]) -> Iterator[Trouble]:
    """Find pairs that are silent or slow only to each other, among nodes that may be taken."""
    dead, slow = np.isinf(measured.p50_s), [look.slow_pairs for look in looks]
    may = np.array([node not in apart for node in measured.nodes], dtype=bool)
    bad = np.triu((dead | np.logical_or.reduce(slow)) & may & may[:, None], 1)
    for i, j in zip(*np.nonzero(bad), strict=True):
        node, peer = measured.nodes[i], measured.nodes[j]
        if dead[i, j]:
            yield Trouble("pair_silent", node, peer)
            continue
        worst = max(
            (look for look, mask in zip(looks, slow, strict=True) if mask[i, j]),
            key=lambda look: float(look.split.pair[i, j]),
        )
        value = float(worst.values[i, j])
        yield Trouble(
            "pair_slow", node, peer, metric=worst.figure.name, value=value, usual=worst.usual
        )
