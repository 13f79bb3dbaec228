"""Which alert noticed which fault, which only repeated it, and which was false."""

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.drills.firings import Firing
from fleet.drills.truth import Truth

# An alert may come a little after the fault is over; a crash also costs the restart.
GRACE_S = 60.0
RESTART_S = 180.0
# Kinds that slow several machines alike wherever they begin: naming one is not the point.
OF_MANY = ("seq_imbalance", "stage_imbalance")


@dataclass(frozen=True, slots=True)
class Matches:
    """What became of every fault and every alert; rows are places in their lists."""

    noticed: dict[int, int]
    repeats: dict[int, int]
    false: tuple[int, ...]


def match(truths: Sequence[Truth], firings: Sequence[Firing]) -> Matches:
    """Match alerts with faults, one to one, the best fitting first.

    An alert that is left over repeats a fault it could have noticed, unless it blames a node
    that is not the fault's; then, as without any fault at the time, it is false.
    """
    pairs = [
        (_fit(truth, firing), -firing.fired_s, -i, -j)
        for i, truth in enumerate(truths)
        for j, firing in enumerate(firings)
        if overlaps(truth, firing)
    ]
    noticed: dict[int, int] = {}
    taken: dict[int, int] = {}
    for _, _, i, j in sorted(pairs, reverse=True):
        if -i not in noticed and -j not in taken:
            noticed[-i] = -j
            taken[-j] = -i
    repeats: dict[int, int] = {}
    for _, _, i, j in sorted(pairs, reverse=True):
        if -j not in taken and -j not in repeats and _blames_nobody_else(truths[-i], firings[-j]):
            repeats[-j] = -i
    false = [j for j in range(len(firings)) if j not in taken and j not in repeats]
    return Matches(noticed, repeats, tuple(false))


def overlaps(truth: Truth, firing: Firing) -> bool:
    """Whether an alert fired about the fault's run while the fault was felt, or soon after."""
    is_about = firing.run == truth.run or (firing.run is None and firing.node is None)
    return is_about and truth.start_s <= firing.fired_s <= grace_until_s(truth)


def grace_until_s(truth: Truth) -> float:
    """Return until when an alert may be about a fault."""
    until_s = max(truth.end_s, truth.felt_until_s) + GRACE_S
    return until_s + (RESTART_S if truth.fault.kind == "node_crash" else 0.0)


def is_cause_right(truth: Truth, firing: Firing) -> bool:
    """Whether the alert believes in the fault's kind, or in one that looks exactly like it."""
    return firing.cause in {truth.fault.kind, *truth.looks_like}


def is_place_right(truth: Truth, firing: Firing) -> bool:
    """Whether the alert names the node that is hit, none where the whole run is.

    A part of the node that is named must be the right one; it need not be named.
    """
    if truth.fault.node is None or truth.fault.kind in OF_MANY:
        return firing.node is None
    return firing.node == truth.fault.node and firing.device in {None, _part(truth)}


def _part(truth: Truth) -> int:
    return truth.fault.device or 0


def _fit(truth: Truth, firing: Firing) -> int:
    is_node = firing.node == truth.fault.node
    return 2 * is_node + 2 * is_cause_right(truth, firing) + is_place_right(truth, firing)


def _blames_nobody_else(truth: Truth, firing: Firing) -> bool:
    return not firing.accused or truth.fault.node in {None, *firing.accused}
