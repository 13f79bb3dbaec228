"""What a preflight has measured so far: probes of pairs and devices, counts, counters at rest."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray

# Counters of a node that should stand still while nothing runs, as EFA's hw_counters name them.
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

    ``expected_s`` is what this type of instance should take, NaN where nobody knows.
    """

    nodes: tuple[str, ...]
    size_bytes: FloatArray
    time_s: FloatArray
    expected_s: FloatArray
    op: str = "all_reduce"


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """All that was measured of n nodes; NaN wherever nobody has looked.

    Parameters
    ----------
    p50_s, p99_s, bandwidth_bytes_per_s : (n, n), symmetric
        Of every pair of nodes: latency of one way, median and 99th percentile, and bytes per
        second. No answer: latency is infinite, bandwidth 0.
    device_s, device_loss_ratio : (n, n_efa)
        Latency of each EFA device probed on its own (infinite: no answer), and the share of its
        packets that were sent again meanwhile.
    n_devices, n_efa_seen : (n,)
        Accelerators and EFA devices that the node has.
    rest : (n,) by name
        By how much a counter has moved in ``rest_s`` without any work.
    ecc_uncorrected, hardware_errors : (n,)
        Memory errors that ECC could not correct, and errors of the hardware, since it booted.
    """

    nodes: tuple[str, ...]
    p50_s: FloatArray
    p99_s: FloatArray
    bandwidth_bytes_per_s: FloatArray
    device_s: FloatArray
    device_loss_ratio: FloatArray
    n_devices: FloatArray
    n_efa_seen: FloatArray
    ecc_uncorrected: FloatArray
    hardware_errors: FloatArray
    rest: Mapping[str, FloatArray] = field(default_factory=dict)
    rest_s: float = float("nan")
    collectives: tuple[Collective, ...] = ()

    @classmethod
    def nothing_of(cls, nodes: tuple[str, ...], *, n_efa: int) -> "Measured":
        """Return what is known before the first probe."""
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
        """Which pairs were probed: (n, n)."""
        return ~np.isnan(self.p50_s)

    def with_pairs(
        self, rows: IntArray, columns: IntArray, values: Mapping[str, FloatArray]
    ) -> "Measured":
        """Return the same with some pairs measured; ``values`` (n_pairs,) by field."""
        changes = {}
        for name, measured in values.items():
            matrix = getattr(self, name).copy()
            matrix[rows, columns] = matrix[columns, rows] = measured
            changes[name] = matrix
        return replace(self, **changes)
