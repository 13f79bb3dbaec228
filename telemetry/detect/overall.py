"""Why all workers compute for longer at once: clocks that are lower, or memory that is slower."""

import numpy as np

from telemetry.blocks import Span
from telemetry.detect.look import Look
from telemetry.detect.pace import Lift
from telemetry.detect.parts import BANDWIDTH, PART_METRICS, UTILIZATION
from telemetry.detect.peers import lower_median, mean
from telemetry.detect.vitals import Vitals

# Seconds that are looked at: the newest since the onset, and single ones of so long before it.
RECENT_S, LEAST_S = 20, 4
BEFORE_S = (60, 50, 40, 30, 20, 10, 5)
# Cores this busy compute for most of the second.
AT_WORK = 0.3
# A step's memory traffic that shrinks by this is not the same work any more.
FEWER_BYTES = 0.96
# As many bytes as ever, within this.
SAME_WORK = 0.08
# Cores that are as busy as ever while they compute: within this of before.
AS_BUSY = 0.1


def overall_looks(vitals: Vitals, found: Lift, onset_s: float) -> list[Look]:
    """Look why everybody computes for longer: the memories first, then the clocks.

    Notes
    -----
    Bytes moved per second of busy core, times the seconds computed, is what one step moves. Where
    that is as ever, the same work is done more slowly: the clock is lower. Where it shrank, the
    memory is what gives less. Without bandwidth (real nodes do not report it) nobody can tell.
    """
    if vitals.moments is None:
        return []
    ages = [int(vitals.now_s - onset_s) + before for before in BEFORE_S]
    past = _intensity(vitals.moments(PART_METRICS, ages))
    recent_s = int(np.clip(vitals.now_s - onset_s, LEAST_S, RECENT_S))
    now = _intensity(vitals.hardware(PART_METRICS, recent_s))
    if past is None or now is None:
        return []
    (was_bytes, was_busy), (is_bytes, is_busy) = past, now
    slower = found.now / found.usual
    kept = is_bytes / was_bytes * slower
    starved = (1.0 - kept) / (1.0 - FEWER_BYTES)
    is_same_work = abs(kept - 1.0) <= SAME_WORK and abs(is_busy / was_busy - 1.0) <= AS_BUSY
    throttled = 1.0 if is_same_work else 0.0
    return [
        Look("hbm_slow", starved, BANDWIDTH, is_bytes, was_bytes, 0, "bytes_per_s"),
        Look("throttle", throttled, "compute_s", found.now, found.usual, 0, "s"),
    ]


def _intensity(span: Span) -> tuple[float, float] | None:
    """Return the bytes per second a busy accelerator moves, and how busy busy cores are."""
    if any(name not in span.values or not span.values[name].shape[2] for name in PART_METRICS):
        return None
    busy = mean(span.values[UTILIZATION].astype(float), axis=2)
    moved = mean(span.values[BANDWIDTH].astype(float), axis=2)
    at_work = busy >= min(AT_WORK, 0.5 * float(np.nanmax(busy, initial=0.0)))
    ratio = np.where(at_work, moved / np.where(at_work, busy, 1.0), np.nan)
    bytes_per_s = float(lower_median(ratio.ravel()))
    busiest = np.sort(busy[np.isfinite(busy)])
    if not np.isfinite(bytes_per_s) or bytes_per_s <= 0 or not busiest.size:
        return None
    return bytes_per_s, float(np.mean(busiest[-max(1, busiest.size // 4) :]))
