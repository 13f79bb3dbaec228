"""Sick EFA devices, by what all nodes of a run report: slow to answer, lossy, or dead."""

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray
from telemetry.detect.look import Look
from telemetry.detect.parts.efa import LATENCY, METRICS, Fabric, Figures, fabric_of, sightings
from telemetry.detect.parts.everywhere import together
from telemetry.detect.parts.silicon import HALF, PAST_AGES_S, PERSISTS_S, RECENT_S
from telemetry.detect.parts.traffic import dead, lossy, seldom_lossy
from telemetry.detect.peers import GAUSSIAN, lower_median, median
from telemetry.detect.readings import measured, newest
from telemetry.detect.rules import RULES
from telemetry.detect.sighting import LINK_CAUSES, Sighting, remembered, since
from telemetry.detect.steps.links import DEAD_RATIO, LOSS_RATIO, MOST, SLOWER_BY
from telemetry.detect.vitals import Standing, Vitals

DEVIATIONS = 5.0
# A device must answer so much later than it used to, or than its peers where nobody knows.
CHANGED_BY, BLATANT = 1.10, RULES["efa_degraded"].limits["blatant_latency_ratio"]
# Where probes are further apart than seconds: at which ages one looks for them, how many of the
# newest are looked at, and how many must say that a device is late.
PROBE_AGES_S, NEWEST_PROBES, ENOUGH_PROBES = tuple(range(405, -1, -15)), 5, 3
# All devices of a run must answer so much later than they used to.
ALL_SLOWER_BY = 1.3


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
    groups = (dead(vitals, now), lossy(now), seldom_lossy(vitals, now), _slow(vitals, now))
    for group in groups:
        for each in group:
            found.setdefault(each.look.node, each)
    for alert in vitals.standing:
        if alert.cause in LINK_CAUSES and alert.node not in found:
            kept = _kept(vitals, now, alert)
            if kept is not None:
                found[alert.node] = kept
    if None in found and len(found) > 1 and _is_everywhere(now, found):
        return [found[None]]
    return together(list(found.values()), n_nodes=len(now.span.nodes))


def _is_everywhere(now: Fabric, found: dict[str | None, Sighting]) -> bool:
    return len(found) - 1 > MOST * len(now.span.nodes)


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
    held, found = _is_held(now), list[Sighting]()
    sick &= ~held
    look = Look("efa_latency", 0.0, LATENCY, np.nan, usual, 0, "s")
    if (held & (badness >= 1.0)).any():
        # One probe that stands for a minute is one measurement, whatever it says.
        found = _by_probes(vitals, now, look, held=held, limit=limit)
    found += sightings(now, look, sick, Figures(typical * usual, badness, above))
    used_to_s = np.nan if past is None else past.usual_s
    return found + _slow_everywhere(now, _used_to_s(vitals) if held.all() else used_to_s)


def _is_held(now: Fabric) -> NDArray[np.bool_]:
    """Tell which devices are probed less often than each second: (n_nodes, n_efa)."""
    return np.asarray(measured(now.latency_s).sum(axis=0) < PERSISTS_S)


def _probes(vitals: Vitals) -> Fabric | None:
    """Return some seconds of the last minutes, close enough to see every probe of a minute."""
    if vitals.moments is None:
        return None
    return fabric_of(vitals.moments([LATENCY], PROBE_AGES_S))


def _newest_apart(far: Fabric, n: int) -> FloatArray:
    """Return how late each device answered its newest probes: (n, n_nodes, n_efa)."""
    apart = np.where(measured(far.latency_s), far.apart, np.nan)
    # What the run's usual device does meanwhile moves the ratio; the probe is the same one.
    return newest(apart, n)


def _used_to_s(vitals: Vitals) -> float:
    """Return what all devices used to take, where the newest probes in a row say it is more."""
    far = _probes(vitals)
    if far is None:
        return float("nan")
    probes = newest(far.latency_s, 2 * ENOUGH_PROBES)
    usual = lower_median(probes.reshape(len(probes), -1))
    before = float(lower_median(usual[:ENOUGH_PROBES]))
    is_so = bool((usual[ENOUGH_PROBES:] >= ALL_SLOWER_BY * before).all())
    return before if is_so else float("nan")


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


def _kept(vitals: Vitals, now: Fabric, alert: Standing) -> Sighting | None:
    """Keep what an open alert says while it is so, or while nothing says that it is not."""
    if alert.node is None:
        return _kept_everywhere(now, alert)
    if alert.node not in now.span.nodes:
        return None
    row = now.span.nodes.index(alert.node)
    device = slice(None) if alert.device is None else slice(alert.device, alert.device + 1)
    bad = _still(now, alert.cause)[:, row, device]
    is_probed = np.isfinite(now.latency_s[:, row, device]).any()
    if alert.cause == "efa_latency" and is_probed and _is_held(now)[row, device].all():
        return _kept_by_probes(vitals, now, alert, row, device)
    # A well device answers late now and then too; losses of a sick one come now and then.
    is_late = alert.cause == "efa_latency" and bool((bad.mean(axis=0) > HALF).any())
    is_bad = is_late or (alert.cause != "efa_latency" and bool(bad[-PERSISTS_S:].any()))
    known = np.isfinite(now.bytes_per_s[-PERSISTS_S:, row, device])
    if known.any() and not is_bad:
        return None
    return Sighting(remembered(alert), since(alert, now.span))


def _kept_by_probes(
    vitals: Vitals, now: Fabric, alert: Standing, row: int, device: slice
) -> Sighting | None:
    """Keep an open alert until two probes in a row say that the device is well."""
    far = _probes(vitals)
    if far is not None and far.latency_s.shape[1] == len(now.span.nodes):
        last = _newest_apart(far, 2)[:, row, device]
        well = last <= 1 + HALF * (SLOWER_BY - 1)
        if well.all(axis=0).mean() > HALF:
            return None
    return Sighting(remembered(alert), since(alert, now.span))


def _by_probes(
    vitals: Vitals, now: Fabric, look: Look, *, held: NDArray[np.bool_], limit: float
) -> list[Sighting]:
    """Judge devices by their newest probes, each of which counts once.

    A device is late by three of five, the newest two among them, and by more than it used to be.
    """
    far = _probes(vitals)
    if far is None or far.latency_s.shape[1:] != held.shape:
        return []
    probes = _newest_apart(far, NEWEST_PROBES)
    late = probes - 1.0 >= limit
    on_the_whole = lower_median(np.moveaxis(np.where(late, probes, np.nan), 0, -1))
    before = lower_median(np.moveaxis(np.where(late, np.nan, probes), 0, -1))
    is_new = (on_the_whole >= CHANGED_BY * before) | (on_the_whole >= BLATANT)
    sick = held & (late.sum(axis=0) >= ENOUGH_PROBES) & late[-2:].all(axis=0) & is_new
    badness = (on_the_whole - 1.0) / limit
    # The first of the late probes in view says when it began.
    above = measured(far.latency_s) & (far.apart - 1.0 >= limit)
    return sightings(far, look, sick, Figures(on_the_whole * now.usual_s, badness, above))


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
    device = slice(None) if alert.device is None else slice(alert.device, alert.device + 1)
    if alert.cause == "efa_latency" and np.isfinite(look.peers_median):
        recent = lower_median(now.latency_s[-PERSISTS_S:, :, device].ravel())
        if recent < look.peers_median * (1 + HALF * (ALL_SLOWER_BY - 1)):
            return None
    elif not _still(now, alert.cause)[-PERSISTS_S:, :, device].any(axis=0).mean() > HALF:
        return None
    return Sighting(look, since(alert, now.span))
