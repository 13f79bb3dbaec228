"""What a preflight would measure on simulated nodes: the links' physics under injected faults.

Every figure is a function of the seed and of the names of the nodes it is of: probing in
another order, with other nodes or twice gives the same. Constant differences of equal parts
do not depend on the seed; only the scatter of probes does.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

import msgspec
import numpy as np

from telemetry import catalog
from telemetry.blocks import FloatArray, IntArray
from telemetry.catalog import Instance
from telemetry.checks.preflight_measurements import REST_COUNTERS, SIZES_BYTES, Collective
from telemetry.simulate.communication import collective_time_s
from telemetry.simulate.constants import STEP_FABRICS
from telemetry.simulate.hardware import PROBE_S, RETRANSMIT_RATIO
from telemetry.simulate.noise import mixed, stream, windows
from telemetry.simulate.script import Act, efa_stretch


@dataclass(frozen=True, slots=True)
class ProbeKind:
    """A kind of fault that preflights must find. Drills inject some of them.

    ``second`` is what it is of beside a node: a device of EFA, or another node.
    """

    help: str
    usual: float
    least: float = 0.0
    most: float = 1_000.0
    second: Literal["", "DEVICE", "NODE"] = ""
    has_strength: bool = True


PROBE_KINDS: Mapping[str, ProbeKind] = {
    "efa_latency": ProbeKind(
        "an EFA device answers STRENGTH times later", 6.0, 1.0, 100.0, second="DEVICE"
    ),
    "efa_loss": ProbeKind(
        "an EFA device sends this share of its packets again", 0.05, 0.0, 0.5, second="DEVICE"
    ),
    "efa_down": ProbeKind(
        "an EFA device does not answer", 1.0, second="DEVICE", has_strength=False
    ),
    "ecc_uncorrected": ProbeKind("uncorrectable memory errors per minute", 6.0),
    "pair_slow": ProbeKind(
        "two nodes are STRENGTH times slower to each other", 3.0, 1.0, 100.0, second="NODE"
    ),
    "pair_silent": ProbeKind(
        "two nodes cannot reach each other", 1.0, second="NODE", has_strength=False
    ),
    "chip_missing": ProbeKind("number of accelerators that the node lacks", 1.0),
    "rest_moving": ProbeKind("packets dropped while nothing runs", 12.0),
}
EFA_KINDS, PAIR_KINDS = (
    tuple(kind for kind, traits in PROBE_KINDS.items() if traits.second == second)
    for second in ("DEVICE", "NODE")
)


class ProbeFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fault of a node, of one of its devices, or of the path to one peer."""

    kind: str
    node: str
    peer: str | None = None
    device: int | None = None
    magnitude: float = 1.0

    @classmethod
    def of_kind(
        cls, kind: str, node: str, *, magnitude: float | None = None, **place: Any
    ) -> Self:
        """Build a fault; without a magnitude it has the usual one of its kind."""
        if magnitude is None:
            magnitude = PROBE_KINDS[kind].usual if kind in PROBE_KINDS else 1.0
        return cls(kind=kind, node=node, magnitude=magnitude, **place)


# Nodes of one rack are a hop nearer to each other. The name of a node decides its rack.
N_RACKS, RACK_RATIO = 4, 1.10


@dataclass(frozen=True)
class ProbedNodes:
    """The probed nodes, all of one type, and their faults.

    Pairs across racks have ``rack_ratio`` times the latency of pairs in one rack, and their
    bandwidth divided by ``rack_bandwidth_ratio``.
    """

    nodes: tuple[str, ...]
    instance_name: str
    seed: int
    faults: tuple[ProbeFault, ...] = ()
    n_devices: dict[str, int] = field(default_factory=dict)
    rack_ratio: float = RACK_RATIO
    rack_bandwidth_ratio: float = 1.0
    n_racks: int = N_RACKS

    @cached_property
    def instance(self) -> Instance:
        return catalog.instance(self.instance_name)

    @cached_property
    def ids(self) -> IntArray:
        """A number per name, independent of other names: (n,)."""
        return np.array([zlib.crc32(name.encode()) for name in self.nodes], dtype=np.uint64)

    @property
    def racks(self) -> IntArray:
        """(n,)."""
        return np.asarray(self.ids % np.uint64(self.n_racks))

    def normal(self, name: str, of: IntArray, width: int = 1) -> FloatArray:
        """Return standard normal noise by name: (len(of), width)."""
        return _noise(self.seed, name, of, width)

    def lasting(self, name: str, of: IntArray, width: int = 1) -> FloatArray:
        """Permanent differences between parts: (len(of), width), -3 to 3."""
        return np.clip(_noise(0, f"lasting {name}", of, width), -3, 3)

    def row(self, node: str) -> int:
        return self.nodes.index(node)

    def of(self, *kinds: str) -> Iterable[ProbeFault]:
        """Faults of some kinds on present nodes."""
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


REST_S = 30.0
# Lasting differences between alike devices and ways, and the scatter of one probe's figures.
DEVICE_SPREAD, PAIR_SPREAD = 0.022, 0.02
P50_NOISE, P99_NOISE, BANDWIDTH_NOISE = 0.015, 0.07, 0.02
COLLECTIVE_NOISE = 0.025
# The 99th of a hundred messages comes that much later than the median one; where packets are
# lost, it waited for a timeout.
P99_RATIO, LOST_P99_RATIO, LOST_SURELY = 1.4, 9.0, 0.01
PACKETS_PROBED = 250_000
# A probe keeps several messages in flight, but not as many as a training job.
PROBE_SHARE = 0.8


def counts(bed: ProbedNodes) -> tuple[FloatArray, FloatArray]:
    """Accelerators and EFA devices that each node shows: (n,) each."""
    n_devices = np.array([bed.n_devices.get(n, bed.instance.n_devices) for n in bed.nodes], float)
    for fault in bed.of("chip_missing"):
        n_devices[bed.row(fault.node)] -= max(1.0, round(fault.magnitude))
    # A device that is down is there to be counted still.
    return np.maximum(n_devices, 0), np.full(len(bed.nodes), float(bed.instance.n_efa))


def at_rest(bed: ProbedNodes) -> dict[str, FloatArray]:
    """Increase of each counter in REST_S without work: (n,) by name."""
    moved: dict[str, FloatArray] = {name: np.zeros(len(bed.nodes)) for name in REST_COUNTERS}
    for fault in bed.of("rest_moving"):
        moved["rx_drops"][bed.row(fault.node)] += max(1.0, round(fault.magnitude))
    return moved


def errors(bed: ProbedNodes) -> tuple[FloatArray, FloatArray]:
    """Uncorrected memory errors and hardware errors: (n,) each."""
    ecc = np.zeros(len(bed.nodes))
    for fault in bed.of("ecc_uncorrected"):
        ecc[bed.row(fault.node)] += max(1.0, round(fault.magnitude * REST_S / 60))
    return ecc, np.zeros(len(bed.nodes))


def devices(bed: ProbedNodes) -> tuple[FloatArray, FloatArray]:
    """Latency and loss of EFA devices, probed one by one: (n, n_efa) each."""
    n = bed.instance.n_efa
    latency, _, loss = bed.stretch
    own = 1 + DEVICE_SPREAD * bed.lasting("device", bed.ids, n)
    seen = np.exp(P50_NOISE * bed.normal("device probe", bed.ids, n))
    again = loss[:, :n] * PACKETS_PROBED + np.sqrt(loss[:, :n] * PACKETS_PROBED) * bed.normal(
        "again", bed.ids, n
    )
    return PROBE_S * own * seen * latency[:, :n], np.maximum(0, again.round()) / PACKETS_PROBED


def rounds(n: int) -> list[tuple[IntArray, IntArray]]:
    """Return rounds of disjoint pairs that together contain every pair once.

    The circle method of round-robin tournaments: n - 1 rounds (n if odd), so that all pairs of
    a round can be probed at once without disturbing each other.

    >>> [list(zip(rows.tolist(), columns.tolist())) for rows, columns in rounds(4)]
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    seats = n + n % 2
    found = []
    circle = list(range(1, seats))
    for _ in range(seats - 1):
        order = np.array([0, *circle])
        one, other = order[: seats // 2], order[::-1][: seats // 2]
        real = (one < n) & (other < n)
        found.append((np.minimum(one, other)[real], np.maximum(one, other)[real]))
        circle = [circle[-1], *circle[:-1]]
    return found if n > 1 else []


def pairs(bed: ProbedNodes, rows: IntArray, columns: IntArray) -> dict[str, FloatArray]:
    """Probe some pairs over all their devices: latencies and bandwidth, (n_pairs,) by field.

    Messages go over all devices in turn, so the median is that of a usual device, and one sick
    device of sixteen shows in the 99th percentile. Bytes are striped in fixed shares, so the
    slowest stripe paces them, as it paces a collective. The devices' factors are those of
    `efa_stretch`; healthy probes take `PROBE_S`.
    """
    latency, bandwidth, loss = bed.stretch
    both = np.maximum(latency[rows], latency[columns])
    stripes = np.maximum(bandwidth[rows], bandwidth[columns]).max(axis=1)
    lost = np.maximum(loss[rows], loss[columns]).max(axis=1)
    way, thin = _ways(bed, rows, columns)
    between = (bed.ids[rows] * np.uint64(31)) ^ (bed.ids[columns] * np.uint64(31))
    noise = {name: bed.normal(name, between)[:, 0] for name in ("p50", "p99", "bandwidth")}
    alive = np.where(np.isfinite(both), both, np.nan)
    dead = ~np.isfinite(both).any(axis=1)
    alive[dead] = np.inf
    p50 = PROBE_S * way * np.nanmedian(alive, axis=1) * np.exp(P50_NOISE * noise["p50"])
    tail = P99_RATIO * np.exp(P99_NOISE * noise["p99"])
    late = 1 + LOST_P99_RATIO * np.minimum(lost / LOST_SURELY, 1)
    usual = PROBE_S * way * tail * late
    rate = bed.instance.network_bytes_per_s * STEP_FABRICS[bed.instance.chip.name].network_ratio
    moved = rate * PROBE_SHARE / (stripes * thin) * np.exp(BANDWIDTH_NOISE * noise["bandwidth"])
    gone = ~np.isfinite(p50)
    return {
        "p50_s": p50,
        "p99_s": np.where(gone, np.inf, usual * np.nanmax(alive, axis=1)),
        "bandwidth_bytes_per_s": np.where(gone, 0.0, moved),
    }


def _ways(bed: ProbedNodes, rows: IntArray, columns: IntArray) -> tuple[FloatArray, FloatArray]:
    """Latency and bandwidth factors of the path of each pair."""
    between = (bed.ids[rows] * np.uint64(17)) ^ (bed.ids[columns] * np.uint64(17))
    way = np.exp(PAIR_SPREAD * bed.lasting("way", between)[:, 0])
    is_same_rack = bed.racks[rows] == bed.racks[columns]
    way *= np.where(is_same_rack, 1.0, bed.rack_ratio)
    thin = np.where(is_same_rack, 1.0, bed.rack_bandwidth_ratio)
    for fault in bed.of(*PAIR_KINDS):
        if fault.peer not in bed.nodes:
            continue
        ends = sorted((bed.row(fault.node), bed.row(str(fault.peer))))
        hit = (np.minimum(rows, columns) == ends[0]) & (np.maximum(rows, columns) == ends[1])
        factor = np.inf if fault.kind == "pair_silent" else fault.magnitude
        way[hit], thin[hit] = way[hit] * factor, thin[hit] * factor
    return way, thin


def collective(bed: ProbedNodes, nodes: Sequence[str], *, op: str = "all_reduce") -> Collective:
    """Run one collective over some of the nodes at all sizes, as nccom-test would.

    All cores take part. The expected curve is `collective_time_s`; the worst device and the
    worst pair among the nodes pace all of them. Where a pair does not answer at all, the
    collective never ends: its times are infinite.
    """
    some = np.array([bed.row(node) for node in nodes])
    latency, bandwidth, _ = bed.stretch
    answers = np.where(np.isfinite(latency[some]), latency[some], 1.0)
    one, other = np.triu_indices(len(some), 1)
    way, thin = _ways(bed, some[one], some[other])
    slow = float(
        max(answers.max(), 1.0, *np.where(way > 2 * bed.rack_ratio / RACK_RATIO, way, 1.0))
    )
    narrow = float(max(bandwidth[some].max(), 1.0, *thin))
    seen = bed.normal("collective " + "+".join(nodes), np.arange(len(SIZES_BYTES)))[:, 0]
    parts = [curve_point(bed.instance, len(nodes), int(size), op) for size in SIZES_BYTES]
    expected = np.array([start + moving for start, moving in parts])
    taken = np.array([start * slow + moving * narrow for start, moving in parts])
    return Collective(
        nodes=tuple(nodes),
        size_bytes=SIZES_BYTES,
        time_s=taken * np.exp(COLLECTIVE_NOISE * seen),
        expected_s=expected,
        op=op,
    )


def curve_point(instance: Instance, n_nodes: int, n_bytes: int, op: str) -> tuple[float, float]:
    """Return expected start-up time and bandwidth of a collective over whole nodes."""
    time = collective_time_s(
        instance, n_nodes=n_nodes, n_ranks=n_nodes * instance.n_cores, n_bytes=n_bytes, op=op
    )
    return time.latency_s, time.bandwidth_s
