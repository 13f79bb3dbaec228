"""Cores that are busy with waiting: the collectives of GPUs poll on the cores themselves."""

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span
from telemetry.detect.peers import mean
from telemetry.detect.readings import parts_of
from telemetry.detect.vitals import Vitals

MEMORY, LINKS = "hbm_bandwidth_bytes_per_s", "efa_tx_bytes_per_s"
# Cores that are all this busy without a break, while memory and links move less than this part of
# what they do in a step, spin.
SPINNING, MOVING = 0.9, 0.03
# At how many moments of so many seconds before the last step's end one sees what is usual, and
# for how long one looks now.
USUAL_MOMENTS, USUAL_S, LOOK_S = 6, 60.0, 8


def spinning(
    vitals: Vitals, nodes: tuple[str, ...], cores: FloatArray, *, since_s: float, step_s: float
) -> NDArray[np.bool_]:
    """Return whose cores are busy without a break and move nothing: (n_nodes,).

    Parameters
    ----------
    cores : (n_ticks, n_nodes, n_cores)
        How busy they were lately.
    since_s : Unix seconds
        When the last step ended.

    Notes
    -----
    NCCL waits in a kernel that polls: a GPU in a collective that somebody did not join reads
    100 % busy for as long as it hangs, and touches its memory hardly at all.
    """
    known = np.isfinite(cores)
    busy = known.any(axis=(0, 2)) & ((cores >= SPINNING) | ~known).all(axis=(0, 2))
    # One node alone that is as busy as can be is slow, and the others wait for it.
    if 2 * busy.sum() <= len(nodes) or vitals.moments is None or not np.isfinite(step_s):
        return np.zeros(len(nodes), dtype=bool)
    back_s = min(max(2 * step_s, USUAL_MOMENTS), USUAL_S)
    ages = np.linspace(vitals.now_s - since_s + back_s, vitals.now_s - since_s, USUAL_MOMENTS)
    metrics = (MEMORY, LINKS)
    usual = vitals.moments(metrics, tuple(dict.fromkeys(ages.astype(int).tolist()))).of(nodes)
    now = vitals.hardware(metrics, LOOK_S).of(nodes)
    is_told = np.isfinite(parts_of(now, MEMORY)).any(axis=(0, 2))
    still = [_moved(now, metric) < MOVING * _moved(usual, metric) for metric in metrics]
    # A node without links of its own says nothing by them.
    return np.asarray(busy & is_told & still[0] & (still[1] | ~(_moved(usual, LINKS) > 0)))


def _moved(span: Span, metric: str) -> FloatArray:
    """Return how much each node moved per second on the whole: (n_nodes,), NaN where unknown."""
    return mean(mean(parts_of(span, metric).astype(float), axis=2), axis=0)
