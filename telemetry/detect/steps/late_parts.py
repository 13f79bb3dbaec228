"""Which core or accelerator of a late node stands out: slow, throttled, or starved of memory."""

from dataclasses import dataclass, replace

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.detect.look import Look
from telemetry.detect.peers import deviations, lower_median, mean, median
from telemetry.detect.steps.case import Case, either_side

UTILIZATION, BANDWIDTH = "core_utilization_ratio", "hbm_bandwidth_bytes_per_s"
PART_METRICS = (UTILIZATION, BANDWIDTH)
# Deviations a part must stand away from the other parts of its node, and the least deviation
# assumed, as a share of the usual value: together 7.5 %.
DEVIATIONS, SPREAD = 5.0, 0.015
# How far the only part of a node must stand away from those of other nodes.
ALONE = 0.2
ENOUGH_MATES = 63


@dataclass(frozen=True, slots=True)
class Parts:
    """The like parts of a late node, each figure (n,), NaN where not reported.

    ``role`` is the usual figure of the same part on ``n_mates`` other nodes, ``to_mates`` how a
    part compares with it, ``relative`` that relative to the usual part of this node.
    """

    value: FloatArray
    role: FloatArray
    n_mates: int
    to_mates: FloatArray
    relative: FloatArray

    @property
    def is_only(self) -> bool:
        """Whether the node has but one such part, and others can only be those of its mates."""
        return self.relative.size == 1

    @property
    def usual(self) -> float:
        """What is usual for such a part; NaN where there is no other."""
        if self.is_only:
            return float(self.role[0]) if self.n_mates else np.nan
        return float(median(self.value))

    @property
    def n_peers(self) -> int:
        """How many others that is judged by."""
        return self.n_mates if self.is_only else int(np.isfinite(self.value).sum()) - 1

    @property
    def strength(self) -> FloatArray:
        """Evidence that each part lies above the others, over threshold: (n,).

        An only part has no others; that of other nodes must do, and tells less.
        """
        if self.is_only:
            return (self.to_mates - 1.0) / ALONE
        return deviations(self.relative, floor=SPREAD) / DEVIATIONS


def part_looks(case: Case, node: str, *, blame_only_device: bool = True) -> list[Look]:
    """Look for slow memory, a slow core and a throttled accelerator, the most special first.

    A node with a single accelerator has nothing to compare it with but other nodes: whether to
    blame it for its node, all of whose cores are busy for longer, is the caller's to say.

    Notes
    -----
    A tensor-parallel group meets after every layer, so one slow part paces its whole node: it
    alone stays busy while the others wait for it. An accelerator starved of memory moves fewer
    bytes besides, which no slow core or throttled accelerator does to it alone.
    """
    _, span = either_side(case, PART_METRICS, nodes={node, *_mates(case, node)})
    if node not in span.nodes or not len(span.ticks):
        return []
    mates = [i for i, name in enumerate(span.nodes) if name != node]
    looks = []
    if BANDWIDTH in span.values:
        looks.append(_starved(node, parts(span, BANDWIDTH, node, mates, sign=-1)))
    if UTILIZATION in span.values:
        cores = parts(span, UTILIZATION, node, mates)
        per_device = max(1, case.vitals.cores_per_device)
        if cores.value.size % per_device:
            per_device = 1
        looks += _busy(node, cores, per_device)
        if case.vitals.cores_per_device == 1:
            # Of an accelerator of one core nobody can tell them apart.
            looks = [each for each in looks if each.cause != "throttle"]
            looks = [
                replace(each, cause="throttle") if each.cause == "slow_core" else each
                for each in looks
            ]
        if cores.value.size == per_device and not blame_only_device:
            looks = [look for look in looks if look.cause != "throttle"]
    return looks


def parts(span: Span, metric: str, node: str, mates: list[int], *, sign: int = 1) -> Parts:
    """Compare the parts of a node with each other, each by its role.

    Parameters
    ----------
    mates : rows of the other nodes that train
        The same part of other nodes plays the same role: in a pipeline, cores of one node may
        belong to different stages and be unlike for good.
    sign : 1 or -1
        Whether a sick part lies above the others or below.
    """
    level = mean(span.values[metric], axis=0)
    own = level[span.nodes.index(node)]
    mates = [row for row in mates if np.isfinite(level[row]).any()]
    role = median(level[mates].T) if mates else np.ones_like(own)
    ratio = np.divide(own, role, out=np.full(own.shape, np.nan), where=role > 0)
    if sign < 0:
        ratio = np.divide(1.0, ratio, out=np.full(own.shape, np.nan), where=ratio > 0)
    usual = float(lower_median(ratio))
    relative = ratio / usual if usual > 0 else np.full(own.shape, np.nan)
    return Parts(own, role, len(mates), ratio, relative)


def _mates(case: Case, node: str) -> list[str]:
    """Return other nodes that train: enough of them to say what is usual."""
    told = np.isfinite(case.after.phases["compute_s"]).any(axis=0)
    training = {case.vitals.node_of(case.after.workers[i]): None for i in np.flatnonzero(told)}
    return [name for name in training if name is not None and name != node][:ENOUGH_MATES]


def _starved(node: str, devices: Parts) -> Look:
    """Look for an accelerator that moves fewer bytes than the others of its node."""
    look = _look("hbm_slow", BANDWIDTH, "bytes_per_s", devices)
    return _named(look, node, devices, devices.strength)


def _busy(node: str, cores: Parts, per_device: int) -> list[Look]:
    """Look for cores that stay busy while the others wait: one, or all of an accelerator."""
    devices = Parts(
        value=cores.value.reshape(-1, per_device).mean(axis=1),
        role=cores.role.reshape(-1, per_device).mean(axis=1),
        n_mates=cores.n_mates,
        to_mates=cores.to_mates.reshape(-1, per_device).min(axis=1),
        relative=cores.relative.reshape(-1, per_device).min(axis=1),
    )
    whole = devices.strength if devices.value.size == 1 else _least(cores.strength, per_device)
    strength = cores.strength
    throttle = _look("throttle", UTILIZATION, "ratio", devices)
    if per_device > 1:
        throttle = _named(throttle, node, devices, whole)
        # All cores of an accelerator alike are not a slow core: their accelerator is slow.
        strength = np.where(np.repeat(_least(strength, per_device), per_device) < 1, strength, 0)
    slow = _look("slow_core", UTILIZATION, "ratio", cores)
    return [_named(slow, node, cores, strength), throttle]


def _least(strength: FloatArray, per_device: int) -> FloatArray:
    """Return what holds for all cores of each accelerator: (n_devices,)."""
    return np.asarray(strength.reshape(-1, per_device).min(axis=1))


def _look(cause: str, metric: str, unit: str, among: Parts) -> Look:
    return Look(cause, 0.0, metric, np.nan, among.usual, 0, unit)


def _named(look: Look, node: str, among: Parts, strength: FloatArray) -> Look:
    """Name the part that stands out most."""
    if not np.isfinite(strength).any():
        return look
    part = int(np.nanargmax(strength))
    return replace(
        look,
        strength=float(strength[part]),
        value=float(among.value[part]),
        n_peers=among.n_peers,
        is_only_part=among.is_only,
        node=node,
        device=part,
    )
