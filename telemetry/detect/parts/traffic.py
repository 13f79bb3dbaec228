"""EFA devices that carry badly: they carry nothing, or must send what they carry again."""

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray
from telemetry.detect.look import Look
from telemetry.detect.parts.efa import AGAIN, BYTES, PACKETS, Fabric, Figures, fabric_of, sightings
from telemetry.detect.parts.silicon import HALF, PAST_AGES_S, PERSISTS_S
from telemetry.detect.peers import GAUSSIAN, lower_median, mean, median
from telemetry.detect.readings import lasts
from telemetry.detect.rules import RULES
from telemetry.detect.sighting import Sighting
from telemetry.detect.steps.links import DEAD_RATIO, LOSS_RATIO, MOST
from telemetry.detect.vitals import Vitals

DEVIATIONS = 5.0
# So many packets sent again are no chance any more; a dead device's mates carry so much.
ENOUGH_AGAIN = RULES["efa_degraded"].limits["least_again"]
AT_WORK_BYTES_PER_S = RULES["efa_degraded"].limits["at_work_bytes_per_s"]

# On a quiet link losses are counted for so many seconds; some must be of the last part of them.
QUIET_S, LATELY = 300, 4


def lossy(now: Fabric) -> list[Sighting]:
    """Find devices that send more packets again than any healthy path does."""
    again, sent = mean(now.again_per_s, axis=0), mean(now.packets_per_s, axis=0)
    ratio = np.divide(again, sent, out=np.full(sent.shape, np.nan), where=sent > 0)
    known = ratio[np.isfinite(ratio)]
    if not known.size:
        return []
    usual = float(lower_median(known))
    spread = GAUSSIAN * float(lower_median(np.abs(known - usual)))
    limit = max(LOSS_RATIO, usual + DEVIATIONS * spread, 2 * usual)
    n_again = np.nansum(now.again_per_s, axis=0)
    above, at_all = (
        now.again_per_s > HALF * least * now.packets_per_s for least in (limit, LOSS_RATIO)
    )
    enough, anyhow = (
        (n_again >= ENOUGH_AGAIN)
        & lasts(each, now.reports, least=PERSISTS_S)
        & each[-3:].any(axis=0)
        for each in (above, at_all)
    )
    look = Look("efa_loss", 0.0, AGAIN, np.nan, usual, 0, "ratio")
    found = sightings(now, look, (ratio >= limit) & enough, Figures(ratio, ratio / limit, above))
    if usual >= LOSS_RATIO and float(anyhow.mean()) > MOST:
        look = Look("efa_loss", usual / LOSS_RATIO, AGAIN, usual, 0.0, 0, "ratio")
        first = int(np.argmax(at_all.mean(axis=(1, 2)) > MOST))
        found.append(Sighting(look, float(now.span.ticks[first]) - 1.0))
    return found


def seldom_lossy(vitals: Vitals, now: Fabric) -> list[Sighting]:
    """Find devices that lose packets of so few that it takes minutes to be sure."""
    again, sent = np.nansum(now.again_per_s, axis=0), np.nansum(now.packets_per_s, axis=0)
    held = {alert.node for alert in vitals.standing if alert.cause == "efa_loss"}
    faint = (again > 0) & (again < ENOUGH_AGAIN) & (again >= LOSS_RATIO * sent)
    rows = faint.any(axis=1) | np.array([node in held for node in now.span.nodes])
    if not rows.any():
        return []
    nodes = [now.span.nodes[row] for row in np.flatnonzero(rows)]
    far = fabric_of(vitals.hardware((PACKETS, AGAIN), QUIET_S).of(nodes))
    if far is None:
        return []
    again, sent = np.nansum(far.again_per_s, axis=0), np.nansum(far.packets_per_s, axis=0)
    ratio = np.divide(again, sent, out=np.zeros(sent.shape), where=sent > 0)
    above = far.again_per_s > HALF * LOSS_RATIO * far.packets_per_s
    lately = np.asarray(above[-QUIET_S // LATELY :].any(axis=0))
    enough = (again >= ENOUGH_AGAIN) & (above.sum(axis=0) >= PERSISTS_S) & lately
    look = Look("efa_loss", 0.0, AGAIN, np.nan, float(lower_median(ratio.ravel())), 0, "ratio")
    return sightings(
        far, look, enough & (ratio >= LOSS_RATIO), Figures(ratio, ratio / LOSS_RATIO, above)
    )


def dead(vitals: Vitals, now: Fabric) -> list[Sighting]:
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
        & lasts(quiet, now.reports, least=PERSISTS_S)
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
    return sightings(now, look, sick, Figures(moved, badness, quiet))


def _used_to_carry(vitals: Vitals, moved: FloatArray) -> NDArray[np.bool_]:
    """Tell which devices carried as much as their mates within the last minutes."""
    if vitals.moments is None:
        return np.zeros(moved.shape, dtype=bool)
    past = fabric_of(vitals.moments([BYTES], PAST_AGES_S))
    if past is None or past.bytes_per_s.shape[1:] != moved.shape:
        return np.zeros(moved.shape, dtype=bool)
    before = mean(past.bytes_per_s, axis=0)
    return np.asarray(before >= HALF * median(before)[:, None])
