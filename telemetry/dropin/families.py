"""The families of neuron-monitor's exporter for all nodes, simulated and real, in one page."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from telemetry.dropin import neuron_names as names
from telemetry.dropin.derived import DERIVED
from telemetry.dropin.played import Played, played
from telemetry.dropin.reported import Parts, Reported, Shown, reported
from telemetry.dropin.who import Who, rows_of
from telemetry.exposition import Scene
from telemetry.families import Spec, Told
from telemetry.numbers import written
from telemetry.slabs import Slab, SlabFamily
from telemetry.store.last_reports import Kept

# Nodes, or processes, that are written side by side.
MOST_ROWS = 64


def neuron_families(scene: Scene, who: Mapping[str, Who], kept: Mapping[str, Kept]) -> list[Told]:
    """Return what neuron-monitor's exporter would show of every node that is up.

    Parameters
    ----------
    scene : what the hot tier holds
    who : the machine behind each node
    kept : the last report of each real node
    """
    simulated = tuple(played(scene, who))
    told = (reported(n, kept[n], who.get(n)) for n in sorted(kept) if n in scene.up)
    real = tuple(each for each in told if each is not None)
    return [SlabFamily(spec, partial(_slabs, spec, simulated, real)) for spec in names.ALL]


def _slabs(spec: Spec, simulated: Sequence[Played], real: Sequence[Reported]) -> Iterator[Slab]:
    for nodes in simulated:
        slab = DERIVED[spec](nodes)
        if slab is not None:
            yield slab
    yield from _real(spec, real)


def _real(spec: Spec, nodes: Sequence[Reported]) -> Iterator[Slab]:
    """Yield the series of real nodes, those with the same parts side by side."""
    alike: dict[Parts, list[tuple[tuple[str, ...], Shown]]] = {}
    for node in nodes:
        for shown in node.series.get(spec, ()):
            alike.setdefault(shown.parts, []).append((node.base, shown))
    for parts, members in alike.items():
        for i in range(0, len(members), MOST_ROWS):
            some = members[i : i + MOST_ROWS]
            values = np.stack([shown.values for _, shown in some])
            rows = rows_of((base, shown.tag) for base, shown in some)
            yield Slab(rows, names.own_labels(spec), parts, written(values), np.isfinite(values))
