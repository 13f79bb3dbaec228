"""From what was measured to a verdict: each node, each bad pair, the group, and whom to take."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.catalog import Instance
from telemetry.preflight import checks, links
from telemetry.preflight.choice import closest, compatible
from telemetry.preflight.collective import slowdown
from telemetry.preflight.links import Looked
from telemetry.preflight.measured import Collective, Measured
from telemetry.preflight.trouble import Trouble, Verdict

ORDER = (Verdict.PASS, Verdict.HOLD, Verdict.FAIL)


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What a preflight has found.

    ``chosen`` are the nodes to take, ``usual`` what a usual pair and device show, and
    ``slowdown`` how many times as long as expected the last collective over them took.
    """

    nodes: Mapping[str, Verdict]
    troubles: Sequence[Trouble]
    chosen: tuple[str, ...]
    n_wanted: int
    usual: Mapping[str, float]
    slowdown: float

    @property
    def bad_pairs(self) -> list[tuple[str, str]]:
        """Pairs of which one node may come."""
        return [(t.node, t.peer) for t in self.troubles if t.peer is not None]

    def of(self, node: str) -> list[Trouble]:
        """Return what is held against a node, alone or with another."""
        return [trouble for trouble in self.troubles if node in {trouble.node, trouble.peer}]


def judge(measured: Measured, instance: Instance | None, *, take: int | None = None) -> Judged:
    """Judge everything that was measured.

    Parameters
    ----------
    measured : Measured
        Whatever is NaN in it was not looked at; a node of which no pair was probed is held.
    instance : type of every node, None where the catalogue lacks it
        Says how many accelerators and EFA devices there should be.
    take : int
        How many nodes are wanted; None: all that can come.

    Notes
    -----
    A node fails by its own doing: a device short, slow, silent or lossy, errors, or slow to
    everybody. Pairs are judged among the nodes that did not fail. Of a bad pair one node may
    come; which is left is chosen so that the most can come together, and it is held.
    """
    own = [
        *checks.counts(measured, instance),
        *checks.health(measured),
        *checks.devices(measured),
        *checks.rest(measured),
        *_not_measured(measured),
    ]
    looks = links.looked_at(measured)
    own += links.nodes(measured, looks, known=_of(own, Verdict.FAIL))
    together = list(links.pairs(measured, looks, apart=_of(own, Verdict.FAIL)))
    verdicts = _verdicts(measured.nodes, own)
    able = [i for i, node in enumerate(measured.nodes) if verdicts[node] is Verdict.PASS]
    distance = distances(looks)
    fit = _fit(measured.nodes, able, together, distance)
    for i in set(able) - set(fit):
        verdicts[measured.nodes[i]] = Verdict.HOLD
    n_wanted = len(measured.nodes) if take is None else take
    chosen = tuple(measured.nodes[i] for i in closest(fit, distance, take=n_wanted))
    return Judged(
        nodes=verdicts,
        troubles=[*own, *together],
        chosen=chosen,
        n_wanted=len(fit) if take is None else take,
        usual={look.figure.name: look.usual for look in looks},
        slowdown=group_slowdown(measured.collectives, chosen),
    )


def group_slowdown(collectives: Sequence[Collective], chosen: Collection[str]) -> float:
    """Return how slow the last collective over just these nodes was; NaN where none was."""
    over = [each for each in collectives if set(each.nodes) == set(chosen)]
    return slowdown(over[-1]) if over else float("nan")


def distances(looks: Sequence[Looked]) -> FloatArray:
    """Return how much farther than usual any two nodes are, as logarithms: (n, n)."""
    return np.asarray(
        sum(
            np.nan_to_num(look.split.pair + look.split.node[:, None] + look.split.node)
            for look in looks
        )
    )


def _of(troubles: Sequence[Trouble], verdict: Verdict) -> set[str]:
    return {trouble.node for trouble in troubles if trouble.verdict is verdict}


def _not_measured(measured: Measured) -> list[Trouble]:
    """Hold nodes that no pair was probed of, where there is more than one node."""
    if len(measured.nodes) < 2:
        return []
    seen = np.any(measured.was_probed, axis=1)
    return [Trouble("not_measured", measured.nodes[i]) for i in np.flatnonzero(~np.asarray(seen))]


def _verdicts(nodes: Sequence[str], own: Sequence[Trouble]) -> dict[str, Verdict]:
    """Return the worst that each node's own troubles say."""
    verdicts = dict.fromkeys(nodes, Verdict.PASS)
    for trouble in own:
        verdicts[trouble.node] = max(verdicts[trouble.node], trouble.verdict, key=ORDER.index)
    return verdicts


def _fit(
    nodes: Sequence[str], able: Sequence[int], together: Sequence[Trouble], distance: FloatArray
) -> list[int]:
    """Return the most of the able nodes of which no two are a bad pair."""
    place = {nodes[i]: at for at, i in enumerate(able)}
    bad = [
        (place[trouble.node], place[trouble.peer])
        for trouble in together
        if trouble.node in place and trouble.peer in place
    ]
    cost = distance[np.ix_(able, able)].sum(axis=1) if able else np.zeros(0)
    return [able[i] for i in compatible(len(able), bad, cost)]
