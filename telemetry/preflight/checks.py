"""What each node shows by itself: counts, health, counters at rest, each EFA device."""

from collections.abc import Iterator

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.catalog import Instance
from telemetry.detect.peers import GAUSSIAN, lower_median, median
from telemetry.detect.rules import RULES
from telemetry.preflight.measured import Measured
from telemetry.preflight.trouble import Trouble

# A device this much slower than its peers is broken: alike devices differ by 2 to 4 %, a probe
# on a busy fabric by 10 %, and the mildest fault worth the trouble doubles the latency.
DEVICE_SLOWER_BY = 1.25
DEVIATIONS = 6.0
# A share of packets sent again that a healthy fabric does not reach (rule efa_degraded).
LOSS_RATIO = RULES["efa_degraded"].limits["loss_ratio"]


def counts(measured: Measured, instance: Instance | None) -> Iterator[Trouble]:
    """Find nodes with fewer accelerators or EFA devices than their type has."""
    if instance is None:
        return
    for kind, seen, expected in (
        ("device_missing", measured.n_devices, instance.n_devices),
        ("efa_missing", measured.n_efa_seen, instance.n_efa),
    ):
        for i in np.flatnonzero(seen < expected):
            node = measured.nodes[i]
            yield Trouble(kind, node, metric="count", value=float(seen[i]), usual=expected)


def health(measured: Measured) -> Iterator[Trouble]:
    """Find nodes whose memory or hardware has made errors that nothing could correct."""
    for kind in ("ecc_uncorrected", "hardware_errors"):
        seen: FloatArray = getattr(measured, kind)
        for i in np.flatnonzero(seen > 0):
            yield Trouble(kind, measured.nodes[i], metric="count", value=float(seen[i]), usual=0.0)


def rest(measured: Measured) -> Iterator[Trouble]:
    """Find nodes whose counters of trouble move although nothing runs."""
    for counter, moved in measured.rest.items():
        for i in np.flatnonzero(moved > 0):
            yield Trouble(
                "rest_moving", measured.nodes[i], metric=counter, value=float(moved[i]), usual=0.0
            )


def devices(measured: Measured) -> Iterator[Trouble]:
    """Find EFA devices that do not answer, answer late, or lose packets.

    Notes
    -----
    A device is compared with all others of all nodes, once what is usual for its node (its
    place in the racks) and for its number (its place in the node) is divided out by medians.
    No published figure says what a probe should take, so peers are the measure.

    References
    ----------
    AWS's own check of a device is fi_pingpong on it over loop-back (efa_test.sh); drivers
    count retransmissions since r2.17.0 (amzn-drivers, efa_verbs.c).
    """
    slow = slower(measured.device_s)
    usual_s = float(lower_median(_finite(measured.device_s).ravel()))
    lossy = measured.device_loss_ratio > LOSS_RATIO
    for row, device in zip(*np.nonzero(np.isinf(measured.device_s) | slow | lossy), strict=True):
        place = {"node": measured.nodes[row], "device": int(device)}
        latency_s = float(measured.device_s[row, device])
        if np.isinf(latency_s):
            yield Trouble("efa_down", **place)
        elif slow[row, device]:
            yield Trouble(
                "efa_latency", **place, metric="latency_s", value=latency_s, usual=usual_s
            )
        else:
            share = float(measured.device_loss_ratio[row, device])
            yield Trouble("efa_loss", **place, metric="ratio", value=share, usual=0.0)


def slower(device_s: FloatArray) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return which devices stand out from their node and from their like: (n, n_efa)."""
    if not device_s.size or not np.isfinite(device_s).any():
        return np.zeros(device_s.shape, dtype=bool)
    logs = np.log(_finite(device_s))
    by_place = np.nan_to_num(lower_median(logs.T))
    apart = logs - by_place
    # Where most devices of a node are slow, its own median hides them: the node itself is slow.
    own = np.nan_to_num(lower_median(apart))
    apart -= np.clip(own, -np.log(DEVICE_SLOWER_BY) / 2, np.log(DEVICE_SLOWER_BY) / 2)[:, None]
    spread = GAUSSIAN * float(median(np.abs(apart).ravel()))
    return np.asarray(apart > max(np.log(DEVICE_SLOWER_BY), DEVIATIONS * np.nan_to_num(spread)))


def _finite(values: FloatArray) -> FloatArray:
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)
