"""Sick cores, accelerators and memories, by what all nodes of a run report of themselves."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import METRICS, FloatArray, Span
from telemetry.detect.findings import CauseScore, Symptom, onset_of_alert, score_of_alert
from telemetry.detect.inputs import (
    DetectionInput,
    OpenProblem,
    is_persistent,
    new_measurements,
    reported_steps,
)
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import training_nodes
from telemetry.statistics.peers import GAUSSIAN, lower_median, mean, median

# Deviations of its node's own parts that a part must stand away, beside the least ratio.
DEVIATIONS = RULES["core_slow"].limits["deviations"]
# With fewer nodes there is no telling what is usual in a role.
ENOUGH_NODES = int(RULES["core_slow"].limits["enough_nodes"])
RATIO_STEP = 1 / 254


@dataclass(frozen=True, slots=True)
class PeerRule:
    """What to look at: a metric, whether the sick lie above (1) or below (-1), and limits.

    ``least`` is the smallest part of its usual value that a part must stand away; ``awake`` the
    value that the busiest part of a node must reach, or the node is not at work.
    """

    metric: str
    sign: int
    least: float
    min_active: float


_CORE, _HBM = RULES["core_slow"].limits, RULES["hbm_slow"].limits
CORES = PeerRule(
    "core_utilization_ratio", 1, least=_CORE["least_ratio"], min_active=_CORE["awake_ratio"]
)
MEMORY = PeerRule(
    "hbm_bandwidth_bytes_per_s",
    -1,
    least=_HBM["least_ratio"],
    min_active=_HBM["awake_bytes_per_s"],
)


@dataclass(frozen=True, slots=True)
class PeerDistance:
    """How far each part stands away, on the sick side: (n_nodes, n_parts) ratios, 1 is usual.

    ``least`` (n_nodes,) is what counts as unlike on each node, ``level`` the values themselves.
    """

    kind: PeerRule
    span: Span
    level: FloatArray
    ratio: FloatArray
    least: FloatArray

    @property
    def suspects(self) -> NDArray[np.bool_]:
        """Which parts stand away far enough: (n_nodes, n_parts)."""
        return np.asarray(self.ratio - 1.0 >= self.least[:, None])


def compare_parts(span: Span, kind: PeerRule) -> PeerDistance | None:
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
    ratio = _relative_to_role(_relative_to_node(level, kind))
    spread = GAUSSIAN * lower_median(np.abs(ratio - lower_median(ratio)[:, None]))
    coarse = np.zeros(len(level))
    if METRICS[kind.metric].packing == "ratio":
        coarse = 0.5 * RATIO_STEP / np.fmax(lower_median(level), RATIO_STEP)
    least = np.maximum(kind.least, DEVIATIONS * np.nan_to_num(spread)) + coarse
    return PeerDistance(kind, span, level, ratio, least)


def _relative_to_node(level: FloatArray, kind: PeerRule) -> FloatArray:
    """Return each part relative to the usual one of its node, over 1 on the sick side.

    ``level`` is (..., n_parts). A node that is not at work has no usual part.
    """
    busiest = np.where(np.isfinite(level), level, 0.0).max(axis=-1, keepdims=True)
    known = (busiest >= kind.min_active) & np.isfinite(level)
    tiny = kind.min_active / 100
    value = np.where(known, np.maximum(level, tiny), np.nan)
    sick_up = value if kind.sign > 0 else 1.0 / value
    return np.asarray(sick_up / lower_median(sick_up)[..., None])


def _relative_to_role(ratio: FloatArray) -> FloatArray:
    """Divide out what is usual for the same part of other nodes: axis -2 are the nodes.

    Where the others are not at work, a late node's own parts must not pass for usual.
    """
    if ratio.shape[-2] < ENOUGH_NODES:
        return ratio
    role = median(np.moveaxis(ratio, -2, -1))
    n_at_work = np.isfinite(ratio).sum(axis=-2)
    role = np.where((role > 0) & (n_at_work >= ENOUGH_NODES), role, 1.0)
    return np.asarray(ratio / role[..., None, :])


def ratio_history(span: Span, kind: PeerRule, row: int) -> FloatArray:
    """Return the ratios of one node's parts, second by second: (n_ticks, n_parts)."""
    values = span.values[kind.metric]
    if not values.shape[2] or not values.shape[0]:
        return np.full((len(span.ticks), 1), np.nan)
    return _relative_to_role(_relative_to_node(values, kind))[:, row]


# Seconds that are looked at; in how many a part must stand away, and in the newest of all.
RECENT_S, PERSISTS_S, NEWEST_S = 8, 5, 2
# A second counts where the part stands away by this share of its mean; an open alert ends where
# it does not even by this share of the least.
HALF = 0.5
# What a part was like before: single seconds of so long ago, oldest first.
PAST_AGES_S = (120, 90, 60, 48, 36, 24)
# By how much a part must stand away from its peers alone where it always did, or nobody knows.
BLATANT = RULES["core_slow"].limits["blatant_ratio"]
# A part that was like this before has not changed: of the excess over its peers at least so much
# must be new.
NEW_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Suspect:
    """One suspect: its node's row and its own number, and how far away it stands."""

    row: int
    part: int
    ratio: float


def find_unhealthy_hardware(inputs: DetectionInput) -> list[Symptom]:
    """Find slow cores, throttled accelerators and slow memories: at most one of each per node.

    An accelerator whose memory is slow paces its node too, so that its cores stand out as if
    it were throttled: the memory explains them, but no others of the node.
    """
    memory = _find_unhealthy(inputs, MEMORY)
    starved = {(s.score.node, s.score.device) for s in memory}
    cores = _find_unhealthy(inputs, CORES, explained=starved)
    per_device = inputs.cores_per_device
    return memory + [s for s in cores if (s.score.node, _device(s, per_device)) not in starved]


def _device(symptom: Symptom, per_device: int) -> int:
    """Return the accelerator a sighting of cores is of."""
    part = symptom.score.device or 0
    return part if symptom.score.cause == "throttle" else part // max(1, per_device)


def _find_unhealthy(
    inputs: DetectionInput,
    kind: PeerRule,
    *,
    explained: Collection[tuple[str | None, int | None]] = (),
) -> list[Symptom]:
    """Find the worst part of each node that stands away, does so persistently, and newly.

    Cores of accelerators that are ``explained`` do not count.
    """
    seen = compare_parts(inputs.hardware([kind.metric], RECENT_S), kind)
    if seen is None:
        return []
    held = _open_alerts(inputs, kind, seen)
    worst = np.where(seen.suspects, seen.ratio, 0.0)
    per_device = max(1, inputs.cores_per_device)
    for node, device in explained:
        if node in seen.span.nodes and device is not None:
            first = device * per_device
            worst[seen.span.nodes.index(node), first : first + per_device] = 0.0
    rows = {int(row) for row in np.flatnonzero(worst.any(axis=1))} | set(held)
    found, past = [], None
    for row in sorted(rows):
        recent = ratio_history(seen.span, kind, row)
        if row in held and (kept := _still_open(inputs, seen, held[row], recent, row)):
            found.append(kept)
            continue
        part = Suspect(row, int(np.argmax(worst[row])), float(worst[row].max()))
        reports = np.asarray(new_measurements(seen.span.values[kind.metric][:, row]).any(axis=1))
        if not worst[row].any() or not _persists(recent[:, part.part], part.ratio, reports):
            continue
        if past is None and inputs.hardware_at is not None:
            past = inputs.hardware_at([kind.metric], PAST_AGES_S)
        if _is_new(past, seen, part):
            found.append(_symptom(inputs, seen, part, recent))
    return found


def _persists(recent: FloatArray, ratio: float, reports: NDArray[np.bool_]) -> bool:
    """Tell whether a part stands away report by report, and still does."""
    above, known = recent >= 1.0 + HALF * (ratio - 1.0), np.isfinite(recent)
    is_long = is_persistent(above[known], reports[known], least=PERSISTS_S)
    return bool(is_long) and bool(above[known][-NEWEST_S:].all())


def _is_new(past: Span | None, seen: PeerDistance, part: Suspect) -> bool:
    """Tell whether a part was like its peers before, as far as anybody knows.

    A core that holds other work than its peers does so for good. Where that is not known, or a
    fault is older than what is remembered, only peers in the same role on several nodes will do.
    """
    enough = len(seen.span.nodes) >= ENOUGH_NODES
    before = np.nan
    if past is not None and len(past.nodes):
        before = float(lower_median(ratio_history(past, seen.kind, part.row)[:, part.part]))
    excess = part.ratio - 1.0
    if np.isfinite(before) and part.ratio / before - 1.0 >= NEW_SHARE * excess:
        return True
    return enough and excess >= BLATANT


def _symptom(
    inputs: DetectionInput, seen: PeerDistance, part: Suspect, recent: FloatArray
) -> Symptom:
    """Name a suspect, and since when it stands away."""
    above = recent[:, part.part] >= 1.0 + HALF * (part.ratio - 1.0)
    first = int(np.argmax(above))
    cause, device = _classify(inputs, seen, part)
    return Symptom(_score(inputs, seen, part, cause, device), float(seen.span.ticks[first]) - 1.0)


def _classify(inputs: DetectionInput, seen: PeerDistance, part: Suspect) -> tuple[str, int]:
    """Tell a slow core from a throttled accelerator: then all its cores stand away alike."""
    if seen.kind is MEMORY:
        return "hbm_slow", part.part
    per_device = inputs.cores_per_device
    n_cores = seen.ratio.shape[1]
    if per_device == 1:
        # An accelerator of one core: nobody can tell them apart, and it is what gets replaced.
        return "throttle", part.part
    if n_cores % per_device:
        return "slow_core", part.part
    device = part.part // per_device
    cores = seen.ratio[part.row, device * per_device : (device + 1) * per_device]
    if np.nanmin(cores) - 1.0 >= HALF * (part.ratio - 1.0):
        return "throttle", device
    return "slow_core", part.part


def _score(
    inputs: DetectionInput, seen: PeerDistance, part: Suspect, cause: str, device: int
) -> CauseScore:
    """Put a suspect's figure beside that of its node's other parts."""
    level = seen.level[part.row]
    value = level[part.part]
    if cause == "throttle":
        per_device = inputs.cores_per_device
        value = float(np.nanmean(level[device * per_device : (device + 1) * per_device]))
    return CauseScore(
        cause=cause,
        strength=(part.ratio - 1.0) / float(seen.least[part.row]),
        metric=seen.kind.metric,
        value=float(value),
        peers_median=float(lower_median(level)),
        n_peers=int(np.isfinite(level).sum()) - 1,
        unit="ratio" if seen.kind is CORES else "bytes_per_s",
        node=seen.span.nodes[part.row],
        device=device,
    )


def _open_alerts(
    inputs: DetectionInput, kind: PeerRule, seen: PeerDistance
) -> dict[int, OpenProblem]:
    """Return the open alerts that this kind of evidence can end, by the row of their node."""
    causes = ("hbm_slow",) if kind is MEMORY else ("slow_core", "throttle")
    places = {name: row for row, name in enumerate(seen.span.nodes)}
    return {
        places[each.node]: each
        for each in inputs.open_problems
        if each.cause in causes and each.node in places and each.device is not None
    }


def _still_open(
    inputs: DetectionInput, seen: PeerDistance, alert: OpenProblem, recent: FloatArray, row: int
) -> Symptom | None:
    """Keep what an open alert says while it is so, or while nothing says that it is not."""
    per_device = inputs.cores_per_device if alert.cause == "throttle" else 1
    first = (alert.device or 0) * per_device
    parts = np.arange(first, first + per_device)
    parts = parts[parts < recent.shape[1]]
    away = lower_median(recent[:, parts]) if parts.size else np.full(1, np.nan)
    known = away[np.isfinite(away)]
    if known.size >= PERSISTS_S:
        if float(known[-PERSISTS_S:].max()) < 1.0 + HALF * seen.kind.least:
            return None
        ratio = float(max(known.mean(), 1.0))
        part = Suspect(row, int(parts[0]), ratio)
        score = _score(inputs, seen, part, alert.cause, int(alert.device or 0))
        return Symptom(score, onset_of_alert(alert, seen.span))
    node = seen.span.nodes[row]
    steps = reported_steps(inputs.steps)
    if bool(len(steps)) and node not in training_nodes(inputs, steps):
        return None
    return Symptom(score_of_alert(alert), onset_of_alert(alert, seen.span))


# Fewer nodes than this, or no more than this share of all, are machines that fail alike.
EVERYWHERE_ENOUGH_NODES, MOST = 3, 0.5


def merge_common(found: Sequence[Symptom], *, n_nodes: int) -> list[Symptom]:
    """Make one sighting of what most nodes show at the same part, and leave the others.

    Machines fail one at a time. Where the same EFA device of most of them falls ill for the same
    cause, it is the rail that they share: one problem, of the run. As C4 tells one slow connection
    from all of a node's by the row of the matrix that they fill: J. Dong et al., arXiv:2406.04594.
    """
    groups: dict[tuple[str, int | None], list[Symptom]] = defaultdict(list)
    for each in found:
        groups[each.score.cause, each.score.device].append(each)
    kept: list[Symptom] = []
    for (_, device), group in groups.items():
        nodes = {each.score.node for each in group} - {None}
        if device is None or len(nodes) < EVERYWHERE_ENOUGH_NODES or len(nodes) <= MOST * n_nodes:
            kept += group
            continue
        worst = max(group, key=lambda each: each.score.strength)
        onset_s = min(each.onset_s for each in group)
        kept.append(Symptom(replace(worst.score, node=None), onset_s))
    return kept
