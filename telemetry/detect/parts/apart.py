"""Which part of which node is unlike the others of its node and of its role, and since when."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import METRICS, FloatArray, Span
from telemetry.detect.peers import GAUSSIAN, lower_median, mean, median
from telemetry.detect.rules import RULES

# Deviations of its node's own parts that a part must stand away, beside the least ratio.
DEVIATIONS = RULES["core_slow"].limits["deviations"]
# With fewer nodes there is no telling what is usual in a role.
ENOUGH_NODES = int(RULES["core_slow"].limits["enough_nodes"])
RATIO_STEP = 1 / 254


@dataclass(frozen=True, slots=True)
class Kind:
    """What to look at: a metric, whether the sick lie above (1) or below (-1), and limits.

    ``least`` is the smallest part of its usual value that a part must stand away; ``awake`` the
    value that the busiest part of a node must reach, or the node is not at work.
    """

    metric: str
    sign: int
    least: float
    awake: float


_CORE, _HBM = RULES["core_slow"].limits, RULES["hbm_slow"].limits
CORES = Kind("core_utilization_ratio", 1, least=_CORE["least_ratio"], awake=_CORE["awake_ratio"])
MEMORY = Kind(
    "hbm_bandwidth_bytes_per_s", -1, least=_HBM["least_ratio"], awake=_HBM["awake_bytes_per_s"]
)


@dataclass(frozen=True, slots=True)
class Apart:
    """How far each part stands away, on the sick side: (n_nodes, n_parts) ratios, 1 is usual.

    ``least`` (n_nodes,) is what counts as unlike on each node, ``level`` the values themselves.
    """

    kind: Kind
    span: Span
    level: FloatArray
    ratio: FloatArray
    least: FloatArray

    @property
    def suspects(self) -> NDArray[np.bool_]:
        """Which parts stand away far enough: (n_nodes, n_parts)."""
        return np.asarray(self.ratio - 1.0 >= self.least[:, None])


def apart(span: Span, kind: Kind) -> Apart | None:
    """Compare the parts of every node with each other, and with the same part of other nodes.

    Parameters
    ----------
    span : Span
        Some seconds of the metric, of all nodes of a run.

    Returns
    -------
    None where no node has the metric.

    Notes
    -----
    A tensor-parallel group meets after every layer: all parts of a node get through the same work
    at the same pace, whatever the phase. A sick part is a factor away from the usual one of its
    node, in every second. What is so by role, on most nodes alike, is divided out: in a pipeline
    the cores of one node may belong to different stages.

    References
    ----------
    F. R. Hampel, "The Influence Curve and its Role in Robust Estimation", JASA 69 (1974),
    383-393.
    """
    values = span.values.get(kind.metric)
    if values is None or not values.shape[2] or not len(values):
        return None
    level = mean(values, axis=0)
    ratio = _by_role(_within(level, kind))
    spread = GAUSSIAN * lower_median(np.abs(ratio - lower_median(ratio)[:, None]))
    coarse = np.zeros(len(level))
    if METRICS[kind.metric].packing == "ratio":
        coarse = 0.5 * RATIO_STEP / np.fmax(lower_median(level), RATIO_STEP)
    least = np.maximum(kind.least, DEVIATIONS * np.nan_to_num(spread)) + coarse
    return Apart(kind, span, level, ratio, least)


def _within(level: FloatArray, kind: Kind) -> FloatArray:
    """Return each part relative to the usual one of its node, over 1 on the sick side.

    ``level`` is (..., n_parts). A node that is not at work has no usual part.
    """
    busiest = np.where(np.isfinite(level), level, 0.0).max(axis=-1, keepdims=True)
    known = (busiest >= kind.awake) & np.isfinite(level)
    tiny = kind.awake / 100
    value = np.where(known, np.maximum(level, tiny), np.nan)
    sick_up = value if kind.sign > 0 else 1.0 / value
    return np.asarray(sick_up / lower_median(sick_up)[..., None])


def _by_role(ratio: FloatArray) -> FloatArray:
    """Divide out what is usual for the same part of other nodes: axis -2 are the nodes.

    Where the others are not at work, a late node's own parts must not pass for usual.
    """
    if ratio.shape[-2] < ENOUGH_NODES:
        return ratio
    role = median(np.moveaxis(ratio, -2, -1))
    n_at_work = np.isfinite(ratio).sum(axis=-2)
    role = np.where((role > 0) & (n_at_work >= ENOUGH_NODES), role, 1.0)
    return np.asarray(ratio / role[..., None, :])


def course(span: Span, kind: Kind, row: int) -> FloatArray:
    """Return the ratios of one node's parts, second by second: (n_ticks, n_parts)."""
    values = span.values[kind.metric]
    if not values.shape[2] or not values.shape[0]:
        return np.full((len(span.ticks), 1), np.nan)
    return _by_role(_within(values, kind))[:, row]
