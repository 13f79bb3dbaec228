"""Measurements of a preflight: pairs of nodes and collectives."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray

# Counters that should not move without load, by their names in EFA's hw_counters.
REST_COUNTERS = (
    "rx_drops",
    "retrans_pkts",
    "retrans_timeout_events",
    "impaired_remote_conn_events",
    "unresponsive_remote_events",
)


@dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """One collective at several sizes over some of the nodes: ``size_bytes`` and times (k,).

    ``expected_s`` is the expected time of this instance type, NaN where unknown.
    """

    nodes: tuple[str, ...]
    size_bytes: FloatArray
    time_s: FloatArray
    expected_s: FloatArray
    op: str = "all_reduce"


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """All measurements of n nodes; NaN where not measured."""

    nodes: tuple[str, ...]
    # (n, n), symmetric: median and 99th percentile of the one-way latency of each pair, and its
    # bandwidth. Without a response latency is infinite, and bandwidth 0.
    p50_s: FloatArray
    p99_s: FloatArray
    bandwidth_bytes_per_s: FloatArray
    # (n, n_efa): latency of each EFA device probed alone (infinite: no response), and its
    # retransmit ratio.
    device_s: FloatArray
    device_loss_ratio: FloatArray
    # (n,): accelerators and EFA devices of the node.
    n_devices: FloatArray
    n_efa_seen: FloatArray
    # (n,): uncorrected memory errors, and hardware errors, since boot.
    ecc_uncorrected: FloatArray
    hardware_errors: FloatArray
    # (n,) by name: increase of a counter in ``rest_s`` without load.
    rest: Mapping[str, FloatArray] = field(default_factory=dict)
    rest_s: float = float("nan")
    collectives: tuple[Collective, ...] = ()
    racks: tuple[str, ...] = ()  # rack or zone of each node; empty if unknown

    @classmethod
    def blank(cls, nodes: tuple[str, ...], *, n_efa: int) -> "Measured":
        n = len(nodes)

        def blank(*shape: int) -> FloatArray:
            return np.full(shape, np.nan)

        return cls(
            nodes,
            p50_s=blank(n, n),
            p99_s=blank(n, n),
            bandwidth_bytes_per_s=blank(n, n),
            device_s=blank(n, n_efa),
            device_loss_ratio=blank(n, n_efa),
            n_devices=blank(n),
            n_efa_seen=blank(n),
            ecc_uncorrected=blank(n),
            hardware_errors=blank(n),
        )

    @property
    def was_probed(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.p50_s)

    def with_pairs(
        self, rows: IntArray, columns: IntArray, values: Mapping[str, FloatArray]
    ) -> "Measured":
        """Add measured pairs; ``values`` (n_pairs,) by field."""
        changes = {}
        for name, measured in values.items():
            matrix = getattr(self, name).copy()
            matrix[rows, columns] = matrix[columns, rows] = measured
            changes[name] = matrix
        return replace(self, **changes)


# 1 KiB, 4 KiB and so on up to 1 GiB.
SIZES_BYTES: FloatArray = 2.0 ** np.arange(10, 31, 2)
# The expected curve fits published runs within 15 %; for Trainium2 no run of several nodes is
# public.
SLOWER_BY = 1.5
# Below this the start-up time dominates, which runtime releases have changed twentyfold.
JUDGED_FROM_BYTES = 2.0**20


def slowdown(measured: Collective) -> float:
    """Ratio of a collective to its expected time; NaN if unknown.

    The median over sizes from 1 MiB on, where bandwidth dominates. Sources: aws-neuron-sdk,
    nccom-test.rst and neuron-runtime/about/collectives.rst.
    """
    judged = measured.size_bytes >= JUDGED_FROM_BYTES
    ratio = measured.time_s[judged] / measured.expected_s[judged]
    known = ratio[np.isfinite(ratio)]
    return float(np.median(known)) if known.size else float("nan")
