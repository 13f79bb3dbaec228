"""From measurements to a verdict: nodes, bad pairs, the group, and the nodes to use."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from telemetry.blocks import FloatArray
from telemetry.catalog import Instance
from telemetry.checks import preflight_pairs
from telemetry.checks.preflight_measurements import SLOWER_BY, Measured, slowdown
from telemetry.checks.preflight_pairs import BoolArray, NodeVerdict, PairAnalysis, PreflightFinding
from telemetry.detect.rules import RULES
from telemetry.statistics.peers import GAUSSIAN, lower_median, median

# Similar devices differ by 2 to 4 %, probes on a busy fabric by 10 %; a fault at least doubles
# the latency.
DEVICE_SLOWER_BY = 1.25
DEVIATIONS = 6.0
# Retransmit ratio that a healthy fabric does not reach (rule efa_degraded).
LOSS_RATIO = RULES["efa_degraded"].limits["loss_ratio"]


def counts(measured: Measured, instance: Instance | None) -> Iterator[PreflightFinding]:
    """Find nodes that lack accelerators or EFA devices of their type, or that count errors."""
    checks: list[tuple[str, FloatArray, BoolArray, float]] = []
    for kind in ("ecc_uncorrected", "hardware_errors"):
        seen: FloatArray = getattr(measured, kind)
        checks.append((kind, seen, seen > 0, 0.0))
    if instance is not None:
        n_devices, n_efa = measured.n_devices, measured.n_efa_seen
        checks[:0] = [
            ("device_missing", n_devices, n_devices < instance.n_devices, instance.n_devices),
            ("efa_missing", n_efa, n_efa < instance.n_efa, instance.n_efa),
        ]
    for kind, seen, is_bad, usual in checks:
        for i in np.flatnonzero(is_bad):
            node, value = measured.nodes[i], float(seen[i])
            yield PreflightFinding(kind, node, metric="count", value=value, usual=usual)


def rest(measured: Measured) -> Iterator[PreflightFinding]:
    """Find nodes whose error counters rise without load."""
    for counter, moved in measured.rest.items():
        for i in np.flatnonzero(moved > 0):
            yield PreflightFinding(
                "rest_moving", measured.nodes[i], metric=counter, value=float(moved[i]), usual=0.0
            )


def devices(measured: Measured) -> Iterator[PreflightFinding]:
    """Find EFA devices that do not respond, respond late, or lose packets.

    A device is compared with all others, after dividing out the medians of its node (its place in
    the racks) and of its number (its place in the node). No published figure says what a probe
    should take.

    References
    ----------
    AWS's own check is fi_pingpong over loop-back (efa_test.sh); drivers count retransmissions
    since r2.17.0 (amzn-drivers, efa_verbs.c).
    """
    slow = slower(measured.device_s)
    usual_s = float(lower_median(_finite(measured.device_s).ravel()))
    lossy = measured.device_loss_ratio > LOSS_RATIO
    for row, device in zip(*np.nonzero(np.isinf(measured.device_s) | slow | lossy), strict=True):
        place = {"node": measured.nodes[row], "device": int(device)}
        latency_s = float(measured.device_s[row, device])
        if np.isinf(latency_s):
            yield PreflightFinding("efa_down", **place)
        elif slow[row, device]:
            yield PreflightFinding(
                "efa_latency", **place, metric="latency_s", value=latency_s, usual=usual_s
            )
        else:
            share = float(measured.device_loss_ratio[row, device])
            yield PreflightFinding("efa_loss", **place, metric="ratio", value=share, usual=0.0)


def slower(device_s: FloatArray) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Mark devices that differ from both their node and their position: (n, n_efa)."""
    if not device_s.size or not np.isfinite(device_s).any():
        return np.zeros(device_s.shape, dtype=bool)
    logs = np.log(_finite(device_s))
    by_place = np.nan_to_num(lower_median(logs.T))
    apart = logs - by_place
    # If most devices of a node are slow, its median would hide them.
    own = np.nan_to_num(lower_median(apart))
    apart -= np.clip(own, -np.log(DEVICE_SLOWER_BY) / 2, np.log(DEVICE_SLOWER_BY) / 2)[:, None]
    spread = GAUSSIAN * float(median(np.abs(apart).ravel()))
    return np.asarray(apart > max(np.log(DEVICE_SLOWER_BY), DEVIATIONS * np.nan_to_num(spread)))


def _finite(values: FloatArray) -> FloatArray:
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


# Components of bad pairs up to this size are solved exactly, larger ones greedily.
EXACTLY = 24

Conflicts = dict[int, frozenset[int]]


def compatible(n: int, bad_pairs: Iterable[tuple[int, int]], cost: FloatArray) -> list[int]:
    """Find the most nodes without a bad pair, in order.

    Parameters
    ----------
    n : number of nodes, numbered from 0
    bad_pairs : pairs of nodes of which only one may be used
    cost : (n,), to choose between equal groups; then earlier nodes win

    Notes
    -----
    This is a largest independent set of the graph of bad pairs, found per connected component by
    branching on the node with the most conflicts.

    A bad switch port makes node 1 a bad peer of three others:

    >>> compatible(5, [(1, 0), (1, 2), (1, 3)], np.zeros(5))
    [0, 2, 3, 4]
    """
    peers: dict[int, set[int]] = {i: set() for i in range(n)}
    for one, other in bad_pairs:
        peers[one].add(other)
        peers[other].add(one)
    conflicts: Conflicts = {i: frozenset(others) for i, others in peers.items()}
    taken: list[int] = []
    left, groups = set(conflicts), []
    while left:
        group, edge = set[int](), {min(left)}
        while edge:
            group |= edge
            edge = {peer for i in edge for peer in conflicts[i]} - group
        groups.append(frozenset(group))
        left -= group
    for component in groups:
        solve = _exact if len(component) <= EXACTLY else _greedy
        taken += solve(component, conflicts, cost)
    return sorted(taken)


def _exact(nodes: frozenset[int], conflicts: Conflicts, cost: FloatArray) -> list[int]:
    """Find the best independent set: the largest, then the cheapest, then the first."""
    if not nodes:
        return []
    hub = max(nodes, key=lambda i: (len(conflicts[i] & nodes), -i))
    if not conflicts[hub] & nodes:
        return sorted(nodes)
    without = _exact(nodes - {hub}, conflicts, cost)
    with_it = [hub, *_exact(nodes - {hub} - conflicts[hub], conflicts, cost)]
    return min((without, sorted(with_it)), key=lambda chosen: _price(chosen, cost))


def _price(chosen: list[int], cost: FloatArray) -> tuple[int, float, list[int]]:
    return -len(chosen), round(float(cost[chosen].sum()), 9), chosen


def _greedy(nodes: frozenset[int], conflicts: Conflicts, cost: FloatArray) -> list[int]:
    """Take the node with the fewest conflicts, repeatedly."""
    left, taken = set(nodes), []
    while left:
        best = min(left, key=lambda i: (len(conflicts[i] & left), float(cost[i]), i))
        taken.append(best)
        left -= conflicts[best] | {best}
    return taken


def closest(candidates: Collection[int], distance: FloatArray, *, take: int) -> list[int]:
    """Choose ``take`` candidates near each other, in order.

    Parameters
    ----------
    candidates : numbers of nodes without bad pairs
    distance : (n, n), 0 for usual; NaN counts as usual

    Notes
    -----
    Repeatedly drops the node farthest from the others, a usual approximation of the group with the
    least total distance. Of equal nodes the later is dropped, so that the result is stable.
    """
    left = sorted(candidates)
    near = np.nan_to_num(np.asarray(distance, dtype=float))
    while len(left) > max(take, 0):
        farness = near[np.ix_(left, left)].sum(axis=1).round(9)
        worst = len(left) - 1 - int(np.argmax(farness[::-1]))
        left.pop(worst)
    return left


ORDER = (NodeVerdict.PASS, NodeVerdict.HOLD, NodeVerdict.FAIL)


class Racks(msgspec.Struct, frozen=True, kw_only=True):
    """The classes of pairs: nodes by rack, and the ratio of pairs across racks to the others.

    ``basis`` is ``labels`` or ``inferred``. ``ratio`` is that of the median latency.
    """

    basis: str
    racks: tuple[tuple[str, ...], ...]
    ratio: float


class PreflightResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a preflight; unknown figures are None.

    ``chosen``: nodes to use. ``usual``: values of a usual pair and device. ``slowdown``: ratio of
    the last collective over the chosen nodes to the expected time. ``racks``: None if all pairs
    are compared as one class.
    """

    nodes: Mapping[str, NodeVerdict]
    troubles: tuple[PreflightFinding, ...] = ()
    chosen: tuple[str, ...] = ()
    n_wanted: int = 0
    usual: Mapping[str, float | None] = {}
    slowdown: float | None = None
    racks: Racks | None = None

    def findings_of(self, node: str) -> list[PreflightFinding]:
        return [trouble for trouble in self.troubles if node in {trouble.node, trouble.peer}]

    @property
    def own(self) -> list[PreflightFinding]:
        return [trouble for trouble in self.troubles if not trouble.is_of_pair]

    @property
    def pairs(self) -> list[PreflightFinding]:
        return [trouble for trouble in self.troubles if trouble.is_of_pair]

    @property
    def is_slow(self) -> bool:
        """Whether the collective over the chosen nodes took too long."""
        return self.slowdown is not None and self.slowdown > SLOWER_BY


def judge(
    measured: Measured, instance: Instance | None, *, take: int | None = None
) -> PreflightResult:
    """Judge all measurements; NaN means not measured.

    Parameters
    ----------
    instance : type of every node; None if unknown, then devices are not counted
    take : how many nodes are wanted; None: all usable ones

    Notes
    -----
    A node fails by its own findings: missing, slow, silent or lossy devices, errors, or slow to
    all others. Pairs are judged among the other nodes, within the class of pairs of one rack and
    that of pairs across racks (`preflight_pairs`). Only one node of a bad pair may be used;
    the other is held, chosen so that the most nodes can be used.
    """
    own = [*counts(measured, instance), *devices(measured), *rest(measured)]
    if len(measured.nodes) > 1:
        was_probed = np.any(measured.was_probed, axis=1)
        own += [
            PreflightFinding("not_measured", measured.nodes[i])
            for i in np.flatnonzero(~was_probed)
        ]
    looks = preflight_pairs.looked_at(measured)
    own += preflight_pairs.nodes(measured, looks, known=_of(own, NodeVerdict.FAIL))
    together = list(preflight_pairs.pairs(measured, looks, apart=_of(own, NodeVerdict.FAIL)))
    verdicts = dict.fromkeys(measured.nodes, NodeVerdict.PASS)
    for trouble in own:
        verdicts[trouble.node] = max(verdicts[trouble.node], trouble.verdict, key=ORDER.index)
    able = [i for i, node in enumerate(measured.nodes) if verdicts[node] is NodeVerdict.PASS]
    distance = distances(looks)
    fit = _fit(measured.nodes, able, together, distance)
    for i in set(able) - set(fit):
        verdicts[measured.nodes[i]] = NodeVerdict.HOLD
    n_wanted = len(measured.nodes) if take is None else take
    chosen = tuple(measured.nodes[i] for i in closest(fit, distance, take=n_wanted))
    over_chosen = [
        collective for collective in measured.collectives if set(collective.nodes) == set(chosen)
    ]
    racks, classes = None, looks[0].classes
    if classes.basis:
        members = [
            tuple(measured.nodes[i] for i in np.flatnonzero(classes.rack == number).tolist())
            for number in dict.fromkeys(classes.rack.tolist())
        ]
        racks = Racks(basis=classes.basis, racks=tuple(members), ratio=looks[0].rack_ratio)
    return PreflightResult(
        nodes=verdicts,
        troubles=(*own, *together),
        chosen=chosen,
        n_wanted=len(fit) if take is None else take,
        usual={look.figure.name: _known(look.usual) for look in looks},
        slowdown=_known(slowdown(over_chosen[-1])) if over_chosen else None,
        racks=racks,
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def distances(looks: Sequence[PairAnalysis], *, within_class: bool = False) -> FloatArray:
    """Return the log distance between nodes relative to a usual pair: (n, n).

    The usual pair is one of the same rack, or of the same class if ``within_class``.
    """
    return np.asarray(
        sum(
            np.nan_to_num(
                (0.0 if within_class else look.split.level - look.split.level.diagonal()[:, None])
                + look.split.pair
                + look.split.node[:, None]
                + look.split.node
            )
            for look in looks
        )
    )


def _of(troubles: Sequence[PreflightFinding], verdict: NodeVerdict) -> set[str]:
    return {trouble.node for trouble in troubles if trouble.verdict is verdict}


def _fit(
    nodes: Sequence[str],
    able: Sequence[int],
    together: Sequence[PreflightFinding],
    distance: FloatArray,
) -> list[int]:
    place = {nodes[i]: at for at, i in enumerate(able)}
    bad = [
        (place[trouble.node], place[trouble.peer])
        for trouble in together
        if trouble.node in place and trouble.peer in place
    ]
    cost = distance[np.ix_(able, able)].sum(axis=1) if able else np.zeros(0)
    return [able[i] for i in compatible(len(able), bad, cost)]
