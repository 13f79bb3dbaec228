"""Simulated nodes of one kind as they stand: what their exporters' series are derived from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from telemetry import catalog
from telemetry.batches import Batch
from telemetry.blocks import FloatArray
from telemetry.dropin.who import Who, rows_of
from telemetry.exposition import Scene
from telemetry.slabs import Rows
from telemetry.store.packing import Codes


@dataclass(frozen=True)
class Played:
    """Simulated nodes of one instance type, out of one batch, ``places`` there."""

    batch: Batch
    places: NDArray[np.int64]
    machine: catalog.Instance
    rows: Rows
    totals: Mapping[str, Mapping[str, float]]

    def codes(self, name: str) -> Codes | None:
        """Return the codes of a metric: (n_nodes, n_parts); None where no node has it."""
        codes = self.batch.codes(name)
        return None if codes is None else np.asarray(codes[self.places])

    def values(self, name: str) -> FloatArray:
        """Return a metric: (n_nodes, n_parts), NaN where absent; one part where nobody has it."""
        values = self.batch.values(name)
        if values is None:
            return np.full((len(self.places), 1), np.nan)
        return np.asarray(values[self.places])

    def counted(self, name: str) -> FloatArray:
        """Return what each node has counted of a rate so far: (n_nodes, 1), NaN if nothing."""
        held = self.totals.get(name, {})
        total = [held.get(self.batch.nodes[place], np.nan) for place in self.places.tolist()]
        return np.asarray(np.floor(total))[:, None]

    @cached_property
    def runs_process(self) -> NDArray[np.bool_]:
        """Whether a process holds the node's cores: (n_nodes, 1); it does if it holds memory."""
        held = self.values("device_memory_used_bytes")
        return np.asarray((held > 0).any(axis=1, keepdims=True))

    @property
    def n_cores(self) -> int:
        """Cores as the runtime counts them."""
        return self.machine.n_cores


def played(scene: Scene, who: Mapping[str, Who]) -> Iterator[Played]:
    """Yield the simulated nodes that are up and have AWS' chips, those of a kind together."""
    for batch in scene.batches:
        kinds: dict[str, list[int]] = {}
        for place, node in enumerate(batch.nodes):
            known = who.get(node)
            if known and known.is_simulated and known.machine:
                kinds.setdefault(known.instance_type, []).append(place)
        for kind, places in kinds.items():
            members = [who[batch.nodes[place]] for place in places]
            rows = rows_of((member.base, member.runtime_tag) for member in members)
            machine = catalog.instances()[kind]
            yield Played(batch, np.array(places), machine, rows, scene.totals)
