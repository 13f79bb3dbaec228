"""The EFA devices of a run over some seconds, and how the worst of them are named."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span
from telemetry.detect.look import Look
from telemetry.detect.peers import lower_median
from telemetry.detect.readings import measured
from telemetry.detect.sighting import Sighting
from telemetry.detect.steps.links import MOST

LATENCY, BYTES = "efa_latency_s", "efa_tx_bytes_per_s"
PACKETS, AGAIN, IMPAIRED = "efa_tx_packets_per_s", "efa_retransmits_per_s", "efa_impaired_per_s"
METRICS = (LATENCY, BYTES, PACKETS, AGAIN, IMPAIRED)


@dataclass(frozen=True, slots=True)
class Fabric:
    """The EFA devices of a run over some seconds; each array (n_ticks, n_nodes, n_efa)."""

    span: Span
    latency_s: FloatArray
    bytes_per_s: FloatArray
    packets_per_s: FloatArray
    again_per_s: FloatArray
    impaired_per_s: FloatArray

    @property
    def usual_s(self) -> float:
        """Median latency of all devices of the run."""
        typical = lower_median(np.moveaxis(self.latency_s, 0, -1))
        return float(lower_median(typical.ravel()))

    @property
    def reports(self) -> NDArray[np.bool_]:
        """Which ticks brought counters of their own: (n_ticks, n_nodes, 1), by node.

        A device that carries nothing, or loses nothing, tells the same again and again; all of
        a node's devices do so only where no report came.
        """
        moved = [measured(each) for each in (self.bytes_per_s, self.packets_per_s)]
        return np.asarray((moved[0] | moved[1]).any(axis=2, keepdims=True))

    @property
    def apart(self) -> FloatArray:
        """How much later each device answers than the usual one in the same second."""
        n_ticks = len(self.latency_s)
        usual = lower_median(self.latency_s.reshape(n_ticks, -1))
        return np.asarray(self.latency_s / usual[:, None, None])


def fabric_of(span: Span) -> Fabric | None:
    """Return the EFA devices of a span; None where no node has any."""
    shapes = {v.shape for n, v in span.values.items() if n in METRICS and v.shape[2]}
    if not shapes or not len(span.ticks):
        return None
    unknown = np.full(max(shapes), np.nan)
    value = {
        n: v if v is not None and v.shape[2] else unknown
        for n in METRICS
        for v in [span.values.get(n)]
    }
    return Fabric(span, *(value[name] for name in METRICS))


@dataclass(frozen=True, slots=True)
class Figures:
    """One figure per device (n_nodes, n_efa), how bad it is over its limit, and in which ticks."""

    value: FloatArray
    badness: FloatArray
    above: NDArray[np.bool_]


def sightings(
    now: Fabric, look: Look, sick: NDArray[np.bool_], figures: "Figures"
) -> list[Sighting]:
    """Name the worst device of each sick node; the node alone where most of its are sick."""
    found = []
    for row in np.flatnonzero(sick.any(axis=1)):
        value = np.where(sick[row], figures.badness[row], -np.inf)
        device = int(np.argmax(value))
        most = sick.shape[1] > 2 and float(sick[row].mean()) > MOST
        first = int(np.argmax(figures.above[:, row, device]))
        found.append(
            Sighting(
                Look(
                    cause=look.cause,
                    strength=float(figures.badness[row, device]),
                    metric=look.metric,
                    value=float(figures.value[row, device]),
                    peers_median=look.peers_median,
                    n_peers=int(np.isfinite(figures.value).sum()) - 1,
                    unit=look.unit,
                    node=now.span.nodes[row],
                    device=None if most else device,
                ),
                float(now.span.ticks[first]) - 1.0,
            )
        )
    return found
