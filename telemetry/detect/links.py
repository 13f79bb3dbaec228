"""Scores of EFA causes: a device, or a node, that slows the gradient exchange."""

from dataclasses import dataclass, replace

import numpy as np

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.detect.findings import CauseScore
from telemetry.detect.inputs import new_measurements
from telemetry.detect.rules import RULES
from telemetry.detect.share import ShareCase, hardware_before_and_after
from telemetry.statistics.peers import GAUSSIAN, deviations, lower_median, mean, median

LINK_METRICS = (
    "efa_latency_s",
    "efa_tx_bytes_per_s",
    "efa_rx_bytes_per_s",
    "efa_tx_packets_per_s",
    "efa_retransmits_per_s",
)
# Required ratio to the peers, and in their deviations.
SLOWER_BY = 1.15
# One probe in a thousand is slow by chance, so a single tick needs a high ratio.
SLOWER_AT_ONCE = 4.0
ENOUGH_PROBES = 2
DEVIATIONS = 5.0
# Required ratio of all devices to their past where no device stands out.
ALL_SLOWER_BY = 1.5
# Retransmit ratio that a healthy fabric does not reach.
LOSS_RATIO = RULES["efa_degraded"].limits["loss_ratio"]
# A device below this share of the traffic of the other devices of its node is down.
DEAD_RATIO = RULES["efa_degraded"].limits["dead_ratio"]
# Above this share of unhealthy devices the node as a whole is unhealthy.
MOST = 0.5


@dataclass(frozen=True, slots=True)
class LinkReadings:
    """EFA devices over a span; arrays (n_nodes, n_efa), NaN where unknown."""

    nodes: tuple[str, ...]
    n_probes: IntArray
    latency_s: FloatArray
    bytes_per_s: FloatArray
    loss_ratio: FloatArray


def score_links(case: ShareCase) -> list[CauseScore]:
    """Scores of a down, a lossy and a slow EFA device; none where nodes have no EFA."""
    past_span, span = hardware_before_and_after(case, LINK_METRICS)
    now = link_readings(span)
    return (
        []
        if now is None
        else [_score_down(now), _score_loss(now), _score_latency(now, link_readings(past_span))]
    )


def link_readings(span: Span) -> LinkReadings | None:
    """None where the nodes have no EFA device."""
    shapes = {v.shape for name, v in span.values.items() if name in LINK_METRICS}
    if not shapes or not len(span.ticks):
        return None
    unknown = np.full(shapes.pop(), np.nan)
    value = {name: span.values.get(name, unknown) for name in LINK_METRICS}
    sent = mean(value["efa_tx_packets_per_s"], axis=0)
    retransmits = mean(value["efa_retransmits_per_s"], axis=0)
    moved = mean(value["efa_tx_bytes_per_s"], axis=0) + mean(value["efa_rx_bytes_per_s"], axis=0)
    latency = value["efa_latency_s"]
    return LinkReadings(
        nodes=span.nodes,
        # A probe repeated over many ticks is one measurement.
        n_probes=new_measurements(latency).sum(axis=0),
        latency_s=lower_median(np.moveaxis(latency, 0, -1)),
        bytes_per_s=moved,
        loss_ratio=np.divide(retransmits, sent, out=np.full(sent.shape, np.nan), where=sent > 0),
    )


def _score_latency(now: LinkReadings, past: LinkReadings | None) -> CauseScore:
    """Compare devices with each other, and all of them with before."""
    x = now.latency_s
    centre, _ = _median_and_spread(x)
    slower_by = np.where(now.n_probes >= ENOUGH_PROBES, SLOWER_BY, SLOWER_AT_ONCE)
    floor = (slower_by - 1) / DEVIATIONS * centre
    z = deviations(x.ravel(), floor=floor.ravel()).reshape(x.shape)
    score = CauseScore("efa_latency", 0.0, "efa_latency_s", np.nan, centre, 0, "s")
    usual = np.nan if past is None else _median_and_spread(past.latency_s)[0]
    return _name_worst_device(
        now, score, x, z / DEVIATIONS, _zero_if_unknown(centre / usual / ALL_SLOWER_BY)
    )


def _score_loss(now: LinkReadings) -> CauseScore:
    x = now.loss_ratio
    centre, spread = _median_and_spread(x)
    score = CauseScore("efa_loss", 0.0, "efa_retransmits_per_s", np.nan, centre, 0, "ratio")
    above = max(LOSS_RATIO, centre + DEVIATIONS * spread, 2 * centre)
    return _name_worst_device(now, score, x, x / above, _zero_if_unknown(centre / LOSS_RATIO))


def _score_down(now: LinkReadings) -> CauseScore:
    """Return a device that carries almost nothing while the others of the node do."""
    x = now.bytes_per_s
    centre, _ = _median_and_spread(x)
    others = median(x)[:, None] if x.shape[1] > 1 else np.full((1, 1), centre)
    usual = np.broadcast_to(others, x.shape)
    left = np.divide(x, usual, out=np.full(x.shape, np.nan), where=usual > 0)
    score = CauseScore("efa_down", 0.0, "efa_tx_bytes_per_s", np.nan, centre, 0, "bytes_per_s")
    return _name_worst_device(now, score, x, DEAD_RATIO / np.maximum(left, DEAD_RATIO / 100), 0.0)


def _median_and_spread(x: FloatArray) -> tuple[float, float]:
    """Median and robust deviation of all devices of the run."""
    every = x[np.isfinite(x)]
    if not every.size:
        return np.nan, np.nan
    centre = float(lower_median(every))
    return centre, GAUSSIAN * float(lower_median(np.abs(every - centre)))


def _zero_if_unknown(strength: float) -> float:
    return strength if np.isfinite(strength) else 0.0


def _name_worst_device(
    now: LinkReadings, score: CauseScore, x: FloatArray, strength: FloatArray, all_over: float
) -> CauseScore:
    """Name the device that stands out most; only its node where most devices of it do.

    Without an outlier and with all devices worse than before (``all_over``), the cause has no
    culprit.
    """
    if not np.isfinite(strength).any():
        return score
    row, device = (int(i) for i in np.unravel_index(int(np.nanargmax(strength)), x.shape))
    score = replace(score, value=float(x[row, device]), n_peers=int(np.isfinite(x).sum()) - 1)
    if strength[row, device] < 1.0 <= all_over:
        return replace(score, strength=all_over)
    most = x.shape[1] > 2 and float(np.mean(strength[row] >= 1.0)) > MOST
    return replace(
        score,
        strength=float(strength[row, device]),
        node=now.nodes[row],
        device=None if most else device,
    )
