"""How far values are from those of their peers: the signals compared, and what stands out."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fleet.formatting import figure, unit_of
from telemetry.blocks import FloatArray, IntArray, mean
from telemetry.statistics.bootstrap import student_quantile
from telemetry.steps import PHASES
from telemetry.store.packing import RATIO_STEPS

# The standard deviation of what rounding to steps of one takes away, and of a normal
# distribution with a median absolute deviation of one.
ROUNDING, PER_MAD = 12**-0.5, 1.4826
# Of more peers every n-th is read: their median is then known to 2 % of their spread.
MOST_COMPARED = 4096
# Deviations end here: of peers that are all alike, any other value is infinitely far.
FURTHEST = 999.0
# How much the steps of healthy nodes differ for good: docs/physics.md, "nodes, for good".
NODES_DIFFER = 0.0055
# How sure a median absolute deviation is, next to a standard deviation of as many values.
MAD_EFFICIENCY = 0.37
# A part stands out clearly at so many times what noise explains: the strongest colour.
CLEAR = 2.0


@dataclass(frozen=True, slots=True)
class Signal:
    """What is compared: a ``metric`` of the hardware, or a phase of the steps of a worker."""

    name: str
    title: str
    metric: str
    part: str  # as texts call one
    # Whether it changes within a step, so that only whole steps can be compared.
    follows_step: bool = False
    # The side of the peers that costs steps: 1 above them, -1 below, 0 either.
    worse: int = 0
    # What rounding adds to a value, in steps of the store: one that is no mean may be off by one.
    rounding: float = ROUNDING

    def harm(self, apart: FloatArray) -> FloatArray:
        """Return how far values are from their peers to the side that costs steps."""
        return np.abs(apart) if not self.worse else np.maximum(self.worse * apart, 0.0)

    @property
    def unit(self) -> str:
        return unit_of(self.metric) or "count"

    @property
    def chart(self) -> str:
        """Return the name of its map, in addresses."""
        return "core-heat" if self.name == "utilization" else f"{self.name}-heat"

    @property
    def is_of_steps(self) -> bool:
        return self.metric in PHASES

    def quantum(self, medians: FloatArray) -> FloatArray:
        """Return the deviation that the signal has at least, where peers have these medians.

        The store rounds a ratio to 1/254 and other values to 8 significant bits: that is
        uniform noise. Counts scatter by the square root of their mean, at least by one.
        """
        if self.metric == "efa_retransmits_per_s":
            return np.sqrt(np.maximum(medians, 1.0))
        if self.unit == "ratio":
            return np.full(medians.shape, self.rounding / RATIO_STEPS)
        return np.asarray(self.rounding * 2.0**-8 * np.abs(medians))


_ALL = (
    Signal("compute", "Compute", "compute_s", "worker", worse=1),
    Signal("wait", "Wait", "wait_s", "worker", worse=-1),
    Signal("efa-latency", "EFA latency", "efa_latency_s", "EFA", worse=1),
    Signal("retransmits", "Retransmits", "efa_retransmits_per_s", "EFA", worse=1),
    Signal("hbm", "HBM bandwidth", "hbm_bandwidth_bytes_per_s", "device", follows_step=True),
    Signal("power", "Power", "device_power_ratio", "device"),
    Signal("utilization", "Utilization", "core_utilization_ratio", "core"),
)
# Without any outlier the first map is that of the last one.
SIGNALS: Mapping[str, Signal] = {signal.name: signal for signal in _ALL}
OF_HARDWARE = tuple(signal for signal in _ALL if not signal.is_of_steps)
OF_STEPS = tuple(signal for signal in _ALL if signal.is_of_steps)


def middle(values: FloatArray, axis: int = -1) -> FloatArray:
    """Median of the reported values along an axis, NaN without any."""
    rows = np.sort(np.moveaxis(values, axis, -1), axis=-1)  # NaN comes last
    n = np.isfinite(rows).sum(axis=-1, keepdims=True)
    if not rows.shape[-1]:
        return np.full(rows.shape[:-1], np.nan)
    low, high = (
        np.take_along_axis(rows, np.maximum(at, 0), axis=-1)[..., 0]
        for at in ((n - 1) // 2, np.minimum(n // 2, rows.shape[-1] - 1))
    )
    return np.asarray(np.where(n[..., 0] > 0, (low + high) / 2, np.nan))


def level_of(signal: Signal, values: FloatArray) -> FloatArray:
    """Return the level of a signal over times (n, ...); of latencies the median.

    One probe in a thousand is late by more than peers differ.
    """
    return middle(values, axis=0) if signal.metric == "efa_latency_s" else mean(values, 0)


def deviations(
    signal: Signal, values: FloatArray, *, step_s: float | FloatArray = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Return how far each member is from the median of its peers, and these medians.

    Parameters
    ----------
    values : (n_times, n_members)
        All members of one run and role at the same times; NaN where unknown.
    step_s : float or (n_times,)
        Of a phase, the duration of the whole step.

    Returns
    -------
    deviations : (n_times, n_members)
        Differences from the median over the spread of the peers, both robust: 1.4826 times the
        median absolute deviation. NaN where unknown, and where no other member is known.
    medians : (n_times,)

    Notes
    -----
    The spread has three floors, all measured. The noise of these peers: the median of their
    spread over all times with any, as they may agree by chance in one second. The rounding of the
    store (`Signal.quantum`). And of steps, how much healthy nodes differ for good.

    >>> z, medians = deviations(SIGNALS["power"], np.array([[0.5, 0.5, 0.5, 0.75, np.nan]]))
    >>> z.round().tolist(), medians.tolist()
    ([[0.0, 0.0, 0.0, 220.0, nan]], [0.5])
    """
    sample = values[:, :: -(-values.shape[1] // MOST_COMPARED) or 1]
    medians = middle(sample)
    spread = PER_MAD * middle(np.abs(sample - medians[:, None]))
    usual = middle(np.where(spread > 0, spread, np.nan), axis=0)
    least = np.fmax(
        signal.quantum(medians), NODES_DIFFER * np.asarray(step_s) if signal.is_of_steps else 0.0
    )
    scale = np.fmax(np.fmax(spread, usual), least)
    apart = values - medians[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(apart == 0, 0.0, np.clip(apart / scale[:, None], -FURTHEST, FURTHEST))
    is_alone = np.isfinite(sample).sum(axis=1) < 2
    return np.where(is_alone[:, None] | ~np.isfinite(apart), np.nan, z), medians


def calm_level(n: int, n_peers: int) -> float:
    """Return how far noise alone is expected to take the furthest of ``n`` values.

    Values are normal; the spread is known from ``n_peers`` only, by their median absolute
    deviation, which is as sure as a standard deviation of 37 % of them.

    >>> [round(calm_level(n, n), 1) for n in (4, 8, 64, 10_000)]
    [2.4, 2.2, 2.6, 3.9]
    """
    freedom = MAD_EFFICIENCY * (n_peers - 1)
    return student_quantile(freedom, 1 - 0.5 / n) if n > 1 else math.inf


def strengths(z: FloatArray, *, n_peers: int | None = None) -> FloatArray:
    """Return how strongly the cells of a map are coloured: 0 like their peers, up to 1 or -1.

    What noise alone explains is 0, ``CLEAR`` times as far is 1. NaN where unknown. ``n_peers`` is
    of how many values the spread is: of all cells, unless it is given.
    """
    n_known = int(np.isfinite(z).sum())
    calm = calm_level(n_known, n_known if n_peers is None else n_peers)
    return np.asarray(np.sign(z) * np.clip((np.abs(z) / calm - 1) / (CLEAR - 1), 0, 1))


def deviations_by_role(
    signal: Signal, values: FloatArray, role: IntArray, *, step_s: float | FloatArray = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Return deviations, and the median of each one's peers, both (n_times, n_members)."""
    z, medians = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    for each in np.unique(role):
        mine = role == each
        z[:, mine], of_role = deviations(signal, values[:, mine], step_s=step_s)
        medians[:, mine] = of_role[:, None]
    return z, medians


@dataclass(frozen=True, slots=True)
class Outlier:
    """A part of a node that is far from its peers: ``number`` is None where it is the node."""

    signal: Signal
    node: str
    number: int | None
    value: float
    peers: float
    deviation: float

    @property
    def place(self) -> str:
        return self.node if self.number is None else f"{self.signal.part} {self.number}"

    @property
    def figures(self) -> str:
        value, peers = figure(self.value, self.signal.unit), figure(self.peers, self.signal.unit)
        return f"{value}, peers {peers}"


def outlier_of(
    signal: Signal,
    names: Sequence[str],
    values: FloatArray,
    role: IntArray | None = None,
    *,
    own: Sequence[int] | None = None,
    step_s: float = 0.0,
) -> Outlier | None:
    """Return the part that is furthest from its peers to the side that costs steps.

    None if noise alone explains all: a worker that is faster than its peers is no outlier.

    ``values`` (n_nodes, n_parts) are means over the last seconds; only ``own`` rows count.
    """
    n_nodes, n_parts = values.shape
    flat_role = np.repeat(np.zeros(n_nodes, int) if role is None else role, n_parts)
    z, medians = deviations_by_role(signal, values.reshape(1, -1), flat_role, step_s=step_s)
    z, medians = z.reshape(values.shape), medians.reshape(values.shape)
    rows = np.arange(n_nodes) if own is None else np.array(own, int)
    far = signal.harm(np.nan_to_num(z[rows]))
    n_known = int(np.isfinite(z).sum())
    if not far.size or far.max() < CLEAR * calm_level(n_known, n_known):
        return None
    at, part = np.unravel_index(int(far.argmax()), far.shape)
    row = int(rows[at])
    return Outlier(
        signal,
        names[row],
        None if signal.is_of_steps else int(part),
        float(values[row, part]),
        float(medians[row, part]),
        float(z[row, part]),
    )


def furthest(outliers: Iterable[Outlier | None]) -> Outlier | None:
    """Return the outlier with the largest deviation; of equal ones the first.

    A worker that others wait for computes for longer, and waits for as much less: where both
    stand out, it is the cause that counts.
    """
    found = [each for each in outliers if each]
    computes = any(each.signal.name == "compute" for each in found)
    counted = [each for each in found if not (computes and each.signal.name == "wait")]
    return max(counted, key=lambda each: abs(each.deviation), default=None)
