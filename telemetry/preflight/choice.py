"""Which nodes to take: never both of a bad pair, as many as asked for, the closest together."""

from collections.abc import Collection, Iterable

import numpy as np

from telemetry.blocks import FloatArray

# Components of bad pairs up to this size are solved exactly; larger ones have never been seen,
# and are thinned by taking who conflicts least.
EXACTLY = 24

Conflicts = dict[int, frozenset[int]]


def compatible(n: int, bad_pairs: Iterable[tuple[int, int]], cost: FloatArray) -> list[int]:
    """Return the most nodes of which no two are a bad pair, in order.

    Parameters
    ----------
    n : int
        How many nodes there are, numbered from 0.
    bad_pairs : of two numbers each
        Of each at most one may be taken.
    cost : (n,)
        Whom to leave rather than another, where it is a choice: the costlier, then the later.

    Notes
    -----
    This is a largest independent set of the graph of bad pairs. The graph is sparse and falls
    into small components, which are solved one by one: a node with most conflicts is either
    left out, or taken and all it conflicts with left out.

    Examples
    --------
    A bad switch port makes node 1 a bad peer of three; leaving it out alone is enough:

    >>> compatible(5, [(1, 0), (1, 2), (1, 3)], np.zeros(5))
    [0, 2, 3, 4]
    """
    peers: dict[int, set[int]] = {i: set() for i in range(n)}
    for one, other in bad_pairs:
        peers[one].add(other)
        peers[other].add(one)
    conflicts: Conflicts = {i: frozenset(others) for i, others in peers.items()}
    taken: list[int] = []
    for component in _components(conflicts):
        solve = _exact if len(component) <= EXACTLY else _greedy
        taken += solve(component, conflicts, cost)
    return sorted(taken)


def _components(conflicts: Conflicts) -> list[frozenset[int]]:
    """Return groups of nodes that bad pairs tie together."""
    left, found = set(conflicts), []
    while left:
        group, edge = set[int](), {min(left)}
        while edge:
            group |= edge
            edge = {peer for i in edge for peer in conflicts[i]} - group
        found.append(frozenset(group))
        left -= group
    return found


def _exact(nodes: frozenset[int], conflicts: Conflicts, cost: FloatArray) -> list[int]:
    """Return the best independent set: the largest, then the cheapest, then the first."""
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
    """Take whoever conflicts with fewest of those left, again and again."""
    left, taken = set(nodes), []
    while left:
        best = min(left, key=lambda i: (len(conflicts[i] & left), float(cost[i]), i))
        taken.append(best)
        left -= conflicts[best] | {best}
    return taken


def closest(candidates: Collection[int], distance: FloatArray, *, take: int) -> list[int]:
    """Return so many of the candidates, near each other, in order.

    Parameters
    ----------
    candidates : numbers of nodes, none a bad pair with another
    distance : (n, n)
        How far any two are apart, 0 for usual; NaN counts as usual.
    take : int
        How many; all of them where there are no more.

    Notes
    -----
    The farthest from the others is left out until enough have gone: for the least total
    distance of a group no quick exact way is known, and this is the usual approximation. The
    later of two equals goes, so that the answer is always the same.
    """
    left = sorted(candidates)
    near = np.nan_to_num(np.asarray(distance, dtype=float))
    while len(left) > max(take, 0):
        farness = near[np.ix_(left, left)].sum(axis=1).round(9)
        worst = len(left) - 1 - int(np.argmax(farness[::-1]))
        left.pop(worst)
    return left
