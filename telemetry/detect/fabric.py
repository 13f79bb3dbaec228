"""Sick EFA devices, by what all nodes of a run report: slow to answer, lossy, or dead."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span
from telemetry.detect.links import DEAD_RATIO, LOSS_RATIO, MOST, SLOWER_BY
from telemetry.detect.look import Look
from telemetry.detect.peers import GAUSSIAN, lower_median, mean, median
from telemetry.detect.sighting import LINK_CAUSES, Sighting, remembered, since
from telemetry.detect.silicon import HALF, PAST_AGES_S, PERSISTS_S, RECENT_S
from telemetry.detect.vitals import Standing, Vitals

LATENCY, BYTES = "efa_latency_s", "efa_tx_bytes_per_s"
PACKETS, AGAIN, IMPAIRED = "efa_tx_packets_per_s", "efa_retransmits_per_s", "efa_impaired_per_s"
METRICS = (LATENCY, BYTES, PACKETS, AGAIN, IMPAIRED)
DEVIATIONS = 5.0
# A device must answer so much later than it used to, or than its peers where nobody knows.
CHANGED_BY, BLATANT = 1.10, 1.3
# All devices of a run must answer so much later than they used to.
ALL_SLOWER_BY = 1.3
# So many packets sent again are no chance any more; a dead device's mates carry so much.
ENOUGH_AGAIN, AT_WORK_BYTES_PER_S = 5.0, 1e3


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


def fabric(vitals: Vitals) -> list[Sighting]:
    """Find sick EFA devices, one finding per node, and a fabric that is sick as a whole.

    Notes
    -----
    The most special evidence comes first: a dead device answers no probes, and one that loses
    packets answers late besides.

    References
    ----------
    L. Shalev et al., "A Cloud-Optimized Transport Protocol for Elastic and Scalable HPC",
    IEEE Micro 40(6), 2020: what latency and loss say of a path.
    """
    now = fabric_of(vitals.hardware(METRICS, RECENT_S))
    if now is None:
        return []
    found: dict[str | None, Sighting] = {}
    for sightings in (_dead(vitals, now), _lossy(now), _slow(vitals, now)):
        for each in sightings:
            found.setdefault(each.look.node, each)
    for alert in vitals.standing:
        if alert.cause in LINK_CAUSES and alert.node not in found:
            kept = _kept(now, alert)
            if kept is not None:
                found[alert.node] = kept
    if None in found and len(found) > 1 and _is_everywhere(now, found):
        return [found[None]]
    return list(found.values())


def _is_everywhere(now: Fabric, found: dict[str | None, Sighting]) -> bool:
    return len(found) - 1 > MOST * len(now.span.nodes)


def _sightings(
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


@dataclass(frozen=True, slots=True)
class Figures:
    """One figure per device (n_nodes, n_efa), how bad it is over its limit, and in which ticks."""

    value: FloatArray
    badness: FloatArray
    above: NDArray[np.bool_]


def _slow(vitals: Vitals, now: Fabric) -> list[Sighting]:
    """Find devices that answer later than their peers and than they used to.

    Each second is compared with its own: when all devices change at once, none stands out.
    """
    usual = now.usual_s
    if not np.isfinite(usual):
        return []
    apart = now.apart
    typical = lower_median(np.moveaxis(apart, 0, -1))
    spread = GAUSSIAN * float(lower_median(np.abs(typical.ravel() - 1.0)))
    limit = max(SLOWER_BY - 1.0, DEVIATIONS * spread)
    badness = (typical - 1.0) / limit
    above = apart - 1.0 >= HALF * np.maximum(typical - 1.0, limit)
    sick = (badness >= 1.0) & (above.sum(axis=0) >= PERSISTS_S) & above[-2:].any(axis=0)
    past = _past(vitals)
    sick &= _is_new(past, typical)
    look = Look("efa_latency", 0.0, LATENCY, np.nan, usual, 0, "s")
    found = _sightings(now, look, sick, Figures(typical * usual, badness, above))
    return found + _slow_everywhere(now, np.nan if past is None else past.usual_s)


def _slow_everywhere(now: Fabric, used_to_s: float) -> list[Sighting]:
    """Find out whether all devices answer later than they used to."""
    strength = now.usual_s / used_to_s / ALL_SLOWER_BY
    if not strength >= 1.0:
        return []
    late = now.latency_s >= used_to_s * (1 + HALF * (ALL_SLOWER_BY - 1))
    first = int(np.argmax(late.mean(axis=(1, 2)) > HALF * np.isfinite(now.latency_s).mean()))
    look = Look("efa_latency", strength, LATENCY, now.usual_s, used_to_s, 0, "s")
    return [Sighting(look, float(now.span.ticks[first]) - 1.0)]


def _past(vitals: Vitals) -> Fabric | None:
    """Return the latencies of some seconds of the last minutes."""
    if vitals.moments is None:
        return None
    return fabric_of(vitals.moments([LATENCY], PAST_AGES_S[::2]))


def _is_new(past: Fabric | None, typical: FloatArray) -> NDArray[np.bool_]:
    """Tell which devices answer later than they used to, as far as anybody knows."""
    blatant = np.asarray(typical >= BLATANT)
    if past is None or past.latency_s.shape[1:] != typical.shape:
        return blatant
    before = lower_median(np.moveaxis(past.apart, 0, -1))
    return np.asarray((typical >= CHANGED_BY * before) | blatant)


def _lossy(now: Fabric) -> list[Sighting]:
    """Find devices that send more packets again than any healthy path does."""
    again, sent = mean(now.again_per_s, axis=0), mean(now.packets_per_s, axis=0)
    ratio = np.divide(again, sent, out=np.full(sent.shape, np.nan), where=sent > 0)
    known = ratio[np.isfinite(ratio)]
    if not known.size:
        return []
    usual = float(lower_median(known))
    spread = GAUSSIAN * float(lower_median(np.abs(known - usual)))
    limit = max(LOSS_RATIO, usual + DEVIATIONS * spread, 2 * usual)
    above = now.again_per_s > HALF * limit * now.packets_per_s
    n_again = np.nansum(now.again_per_s, axis=0)
    enough = (n_again >= ENOUGH_AGAIN) & (above.sum(axis=0) >= PERSISTS_S) & above[-3:].any(axis=0)
    look = Look("efa_loss", 0.0, AGAIN, np.nan, usual, 0, "ratio")
    found = _sightings(now, look, (ratio >= limit) & enough, Figures(ratio, ratio / limit, above))
    if usual >= LOSS_RATIO and float(enough.mean()) > MOST:
        look = Look("efa_loss", usual / LOSS_RATIO, AGAIN, usual, 0.0, 0, "ratio")
        first = int(np.argmax(above.mean(axis=(1, 2)) > MOST))
        found.append(Sighting(look, float(now.span.ticks[first]) - 1.0))
    return found


def _dead(vitals: Vitals, now: Fabric) -> list[Sighting]:
    """Find devices that carry nothing while their mates do, and that used to, or are missed."""
    moved = mean(now.bytes_per_s, axis=0)
    mates = (
        median(moved)[:, None] if moved.shape[1] > 1 else np.full((1, 1), median(moved.ravel()))
    )
    usual = np.broadcast_to(mates, moved.shape)
    quiet = now.bytes_per_s < DEAD_RATIO * usual
    idle = (usual < AT_WORK_BYTES_PER_S) | ~np.isfinite(moved)
    sick = (
        (moved < DEAD_RATIO * usual)
        & ~idle
        & (quiet.sum(axis=0) >= PERSISTS_S)
        & quiet[-2:].any(axis=0)
    )
    if not sick.any():
        return []
    missed = np.nansum(now.impaired_per_s, axis=0) > 0
    mute = ~np.isfinite(now.latency_s[-PERSISTS_S:]).any(axis=0)
    others = (
        np.isfinite(now.latency_s[-PERSISTS_S:]).any(axis=0).mean(axis=1, keepdims=True) > HALF
    )
    sick &= missed | (mute & others) | _used_to_carry(vitals, moved)
    left = np.divide(moved, usual, out=np.ones(moved.shape), where=usual > 0)
    badness = DEAD_RATIO / np.maximum(left, DEAD_RATIO / 100)
    look = Look("efa_down", 0.0, BYTES, np.nan, float(median(moved.ravel())), 0, "bytes_per_s")
    return _sightings(now, look, sick, Figures(moved, badness, quiet))


def _used_to_carry(vitals: Vitals, moved: FloatArray) -> NDArray[np.bool_]:
    """Tell which devices carried as much as their mates within the last minutes."""
    if vitals.moments is None:
        return np.zeros(moved.shape, dtype=bool)
    past = fabric_of(vitals.moments([BYTES], PAST_AGES_S))
    if past is None or past.bytes_per_s.shape[1:] != moved.shape:
        return np.zeros(moved.shape, dtype=bool)
    before = mean(past.bytes_per_s, axis=0)
    return np.asarray(before >= HALF * median(before)[:, None])


def _kept(now: Fabric, alert: Standing) -> Sighting | None:
    """Keep what an open alert says while it is so, or while nothing says that it is not."""
    if alert.node is None:
        return _kept_everywhere(now, alert)
    if alert.node not in now.span.nodes:
        return None
    row = now.span.nodes.index(alert.node)
    device = slice(None) if alert.device is None else slice(alert.device, alert.device + 1)
    bad = _still(now, alert.cause)[-PERSISTS_S:, row, device]
    known = np.isfinite(now.bytes_per_s[-PERSISTS_S:, row, device])
    if known.any() and not bad.any():
        return None
    return Sighting(remembered(alert), since(alert, now.span))


def _still(now: Fabric, cause: str) -> NDArray[np.bool_]:
    """Tell in which seconds a device is bad by the milder measure that ends an alert."""
    if cause == "efa_latency":
        return np.asarray(now.apart > 1 + HALF * (SLOWER_BY - 1))
    if cause == "efa_loss":
        return np.asarray(now.again_per_s > HALF * LOSS_RATIO * now.packets_per_s)
    mates = median(now.bytes_per_s)[..., None]
    return np.asarray(now.bytes_per_s < 2 * DEAD_RATIO * mates)


def _kept_everywhere(now: Fabric, alert: Standing) -> Sighting | None:
    """Keep a sick fabric while it is as sick as the open alert says."""
    look = remembered(alert)
    if alert.cause == "efa_latency" and np.isfinite(look.peers_median):
        recent = lower_median(now.latency_s[-PERSISTS_S:].ravel())
        if recent < look.peers_median * (1 + HALF * (ALL_SLOWER_BY - 1)):
            return None
    elif not _still(now, alert.cause)[-PERSISTS_S:].any(axis=0).mean() > HALF:
        return None
    return Sighting(look, since(alert, now.span))
