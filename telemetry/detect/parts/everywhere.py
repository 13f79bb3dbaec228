"""The same part sick on most nodes at once: no machine is to blame, but what they share."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from telemetry.detect.sighting import Sighting

# Fewer nodes than this, or no more than this share of all, are machines that fail alike.
ENOUGH_NODES, MOST = 3, 0.5


def together(found: Sequence[Sighting], *, n_nodes: int) -> list[Sighting]:
    """Make one sighting of what most nodes show at the same part, and leave the others.

    Machines fail one at a time. Where the same EFA device of most of them falls ill for the same
    cause, it is the rail that they share: one problem, of the run. As C4 tells one slow connection
    from all of a node's by the row of the matrix that they fill: J. Dong et al., arXiv:2406.04594.
    """
    groups: dict[tuple[str, int | None], list[Sighting]] = defaultdict(list)
    for each in found:
        groups[each.look.cause, each.look.device].append(each)
    kept: list[Sighting] = []
    for (_, device), group in groups.items():
        nodes = {each.look.node for each in group} - {None}
        if device is None or len(nodes) < ENOUGH_NODES or len(nodes) <= MOST * n_nodes:
            kept += group
            continue
        worst = max(group, key=lambda each: each.look.strength)
        onset_s = min(each.onset_s for each in group)
        kept.append(Sighting(replace(worst.look, node=None), onset_s))
    return kept
