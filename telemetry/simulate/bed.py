"""The nodes that a simulated preflight probes, and what is wrong with them."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np

from telemetry import catalog
from telemetry.blocks import FloatArray, IntArray
from telemetry.catalog import Instance
from telemetry.simulate.conditions import efa_stretch
from telemetry.simulate.fabric import RETRANSMIT_RATIO
from telemetry.simulate.noise import mixed, stream, windows
from telemetry.simulate.script import Act

# What no drill injects, but preflights must find: with its usual strength.
PROBE_KINDS = {
    "efa_latency": 6.0,
    "efa_loss": 0.05,
    "efa_down": 1.0,
    "ecc_uncorrected": 6.0,
    "pair_slow": 3.0,
    "pair_silent": 1.0,
    "chip_missing": 1.0,
    "rest_moving": 12.0,
}
EFA_KINDS = ("efa_latency", "efa_loss", "efa_down")
PAIR_KINDS = ("pair_slow", "pair_silent")


class ProbeFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is wrong with a node, a device of it, or the way to one peer: the truth."""

    kind: str
    node: str
    peer: str | None = None
    device: int | None = None
    magnitude: float = 1.0


@dataclass(frozen=True)
class Bed:
    """The nodes that are probed, alike in type, and what is wrong with them."""

    nodes: tuple[str, ...]
    instance_name: str
    seed: int
    faults: tuple[ProbeFault, ...] = ()
    n_devices: dict[str, int] = field(default_factory=dict)

    @cached_property
    def instance(self) -> Instance:
        """The type of all of them."""
        return catalog.instance(self.instance_name)

    @cached_property
    def ids(self) -> IntArray:
        """A number for each name, whatever the others are: (n,)."""
        return np.array([zlib.crc32(name.encode()) for name in self.nodes], dtype=np.uint64)

    def normal(self, name: str, of: IntArray, width: int = 1) -> FloatArray:
        """Return standard normal noise: (len(of), width), named by what it is noise of."""
        return _noise(self.seed, name, of, width)

    def lasting(self, name: str, of: IntArray, width: int = 1) -> FloatArray:
        """Return what tells parts apart whenever they are probed: (len(of), width), -3 to 3."""
        return np.clip(_noise(0, f"lasting {name}", of, width), -3, 3)

    def row(self, node: str) -> int:
        """Return a node's place."""
        return self.nodes.index(node)

    def of(self, *kinds: str) -> Iterable[ProbeFault]:
        """Return the faults of some kinds on nodes that are here."""
        return (f for f in self.faults if f.kind in kinds and f.node in self.nodes)

    @cached_property
    def stretch(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Latency factor, bandwidth factor and loss of each device: (n, n_rails) each."""
        n_rails = max(1, self.instance.n_efa)
        latency, bandwidth = np.ones((2, len(self.nodes), n_rails))
        loss = np.full(latency.shape, RETRANSMIT_RATIO)
        for fault in self.of(*EFA_KINDS):
            row, device = (
                self.row(fault.node),
                slice(None) if fault.device is None else fault.device,
            )
            by_latency, by_bytes = efa_stretch(_act(fault))
            latency[row, device] = np.maximum(latency[row, device], by_latency)
            bandwidth[row, device] = np.maximum(bandwidth[row, device], by_bytes)
            if fault.kind == "efa_loss":
                loss[row, device] = np.maximum(loss[row, device], fault.magnitude)
            if fault.kind == "efa_down":
                latency[row, device] = np.inf
        return latency, bandwidth, loss


def _noise(seed: int, name: str, of: IntArray, width: int) -> FloatArray:
    return np.asarray(windows("normal", mixed(stream(seed, name), of), width), float)


def _act(fault: ProbeFault) -> Act:
    return Act(fault.kind, np.zeros(0, int), 0, 0.0, 0.0, fault.magnitude)
