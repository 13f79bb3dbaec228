"""Cores, accelerators and memories, compared with their peers on the same node and on others."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import METRICS, FloatArray, Span
from telemetry.detect.findings import (
    CauseScore,
    Problem,
    onset_of_alert,
    problem_of,
    score_of_alert,
)
from telemetry.detect.inputs import (
    DetectionInput,
    OpenProblem,
    is_persistent,
    new_measurements,
    part_values,
    recent,
)
from telemetry.detect.pace import (
    BEFORE_S,
    CLEARLY,
    ShareCase,
    hardware_before_and_after,
    work_s,
)
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import training_nodes
from telemetry.statistics.bootstrap import student_quantile
from telemetry.statistics.peers import GAUSSIAN, deviations, lower_median, mean, median, middle

# Required distance in deviations of the parts of the node, in addition to the minimum ratio.
DEVIATIONS = RULES["core_slow"].limits["deviations"]
# Fewer nodes do not define what is usual in a role.
ENOUGH_NODES = int(RULES["core_slow"].limits["enough_nodes"])
FEW_NODES = 8
# A share of a limit that is surely below it, however numbers are rounded.
ALMOST = 0.99
RATIO_STEP = 1 / 254


@dataclass(frozen=True, slots=True)
class PeerRule:
    """A metric, the side of unhealthy parts (1 above, -1 below), and limits.

    ``least``: minimum relative distance from the usual value. ``min_active``: the value that the
    busiest part of a node must reach, or the node is not at work.
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


@dataclass(frozen=True)
class PeerDistance:
    """Distance of each part on the unhealthy side: (n_nodes, n_parts) ratios, 1 is usual.

    ``level`` are the values. All else is computed when it is needed: nearly always no part can be
    unhealthy, which is soon clear.
    """

    kind: PeerRule
    span: Span
    level: FloatArray

    @cached_property
    def _of_node(self) -> FloatArray:
        return _relative_to_node(self.level, self.kind)

    @cached_property
    def ratio(self) -> FloatArray:
        return _relative_to_role(self._of_node)

    @cached_property
    def least(self) -> FloatArray:
        """The limit on each node: (n_nodes,), at least that of the rule."""
        ratio, level = self.ratio, self.level
        spread = GAUSSIAN * lower_median(np.abs(ratio - lower_median(ratio)[:, None]))
        coarse = np.zeros(len(level))
        if METRICS[self.kind.metric].packing == "ratio":
            coarse = 0.5 * RATIO_STEP / np.fmax(lower_median(level), RATIO_STEP)
        return np.asarray(np.maximum(self.kind.least, DEVIATIONS * np.nan_to_num(spread)) + coarse)

    @cached_property
    def suspects(self) -> NDArray[np.bool_]:
        """Parts beyond the limit: (n_nodes, n_parts)."""
        # What is usual in a role lies between the lowest and the highest ratio.
        most = float(np.fmax.reduce(self._of_node, axis=None, initial=1.0))
        least = float(np.fmin.reduce(self._of_node, axis=None, initial=1.0))
        if most < least * (1.0 + ALMOST * self.kind.least):
            return np.zeros(self.level.shape, bool)
        excess = self.ratio - 1.0
        suspects = np.asarray(excess >= np.float64(self.kind.least))
        return suspects & (excess >= self.least[:, None]) if suspects.any() else suspects


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
    return PeerDistance(kind, span, level)


def _relative_to_node(level: FloatArray, kind: PeerRule) -> FloatArray:
    """Ratio to the usual part of the node, above 1 on the unhealthy side.

    ``level`` is (..., n_parts). A node that is not at work has no usual part.
    """
    busiest = np.where(np.isfinite(level), level, 0.0).max(axis=-1, keepdims=True)
    known = (busiest >= kind.min_active) & np.isfinite(level)
    tiny = kind.min_active / 100
    value = np.where(known, np.maximum(level, tiny), np.nan)
    sick_up = value if kind.sign > 0 else 1.0 / value
    return np.asarray(sick_up / lower_median(sick_up)[..., None])


def _relative_to_role(ratio: FloatArray) -> FloatArray:
    """Divide by the usual value of the same part on other nodes (axis -2).

    Without other nodes at work, the parts of a late node must not pass for usual.
    """
    if ratio.shape[-2] < ENOUGH_NODES:
        return ratio
    n_at_work = np.isfinite(ratio).sum(axis=-2)
    if ratio.shape[-2] <= FEW_NODES:
        # Of few nodes each is often the usual one itself: a ratio of exactly 1 would hide how much
        # the parts vary.
        others = [np.delete(ratio, row, axis=-2) for row in range(ratio.shape[-2])]
        role = np.stack([median(np.moveaxis(each, -2, -1)) for each in others], axis=-2)
    else:
        role = median(np.moveaxis(ratio, -2, -1))[..., None, :]
    role = np.where((role > 0) & (n_at_work >= ENOUGH_NODES)[..., None, :], role, 1.0)
    return np.asarray(ratio / role)


def ratio_history(span: Span, kind: PeerRule) -> FloatArray:
    """Ratios of all parts: (n_ticks, n_nodes, n_parts)."""
    return _relative_to_role(_relative_to_node(part_values(span, kind.metric), kind))


# Seconds to read; in how many, and in how many of the newest, a part must stand out.
RECENT_S, PERSISTS_S, NEWEST_S = 8, 5, 2
# Where reports come every few seconds, so many of them show a small distance.
MANY_REPORTS = 8
# Noise alone makes no run page more often.
FALSE_EVERY_S = 365 * 86_400.0
# A second counts from this share of the mean distance. An open alert resolves below this share of
# the limit.
HALF = 0.5
# Ages (seconds) that show the past of a part, oldest first.
PAST_AGES_S = (120, 90, 60, 48, 36, 24)
# Required distance from the peers alone where the part always differed, or its past is unknown.
BLATANT = RULES["core_slow"].limits["blatant_ratio"]
# At least this share of the distance must be new.
NEW_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Suspect:
    """``row`` of the node, number of the part, and its ratio."""

    row: int
    part: int
    ratio: float


def find_unhealthy_hardware(inputs: DetectionInput) -> list[Problem]:
    """Find slow cores, throttled accelerators and slow memories: one of each accelerator.

    An accelerator with slow memory slows its node too, so that its cores stand out as if
    throttled. The memory explains its own cores only.
    """
    memory = _find_unhealthy(inputs, MEMORY)
    starved = {(each.node, each.device) for each in memory}
    cores = _find_unhealthy(inputs, CORES, explained=starved)
    per_device = max(1, inputs.cores_per_device)
    return memory + [
        each
        for each in cores
        # A slow core has the number of the core.
        if (each.node, (each.device or 0) // (1 if each.cause == "throttle" else per_device))
        not in starved
    ]


def _find_unhealthy(
    inputs: DetectionInput,
    kind: PeerRule,
    *,
    explained: Collection[tuple[str | None, int | None]] = (),
) -> list[Problem]:
    """Find the worst part of each accelerator with a persistent, new distance.

    Cores of ``explained`` accelerators do not count. Of reports that come every few seconds, two
    show a large distance soon, and `MANY_REPORTS` a small one.
    """
    seen = compare_parts(recent(inputs, [kind.metric], RECENT_S), kind)
    if seen is None:
        return []
    found, per_device = list[Problem](), 1 if kind is MEMORY else max(1, inputs.cores_per_device)
    known = [(seen.span.nodes.index(n), d) for n, d in explained if n in seen.span.nodes]
    for row, alerts in _open_alerts(inputs, kind, seen).items():
        ratios = ratio_history(seen.span, kind)[:, row]
        for alert in alerts:
            kept = _still_open(inputs, seen, alert, ratios, row)
            if kept is not None:
                found.append(kept)
                own = 1 if alert.cause == "throttle" else per_device
                known.append((row, int(alert.device or 0) // own))
    found += _new_distances(inputs, seen, known, PAST_AGES_S)
    every_s, past_at = inputs.report_every_s, inputs.hardware_at
    if every_s == 1 or past_at is None:
        return found
    ages_s = every_s * np.arange(MANY_REPORTS, 0, -1)
    longer = compare_parts(past_at([kind.metric], ages_s.tolist()), kind)
    if longer is not None and longer.span.nodes == seen.span.nodes:
        found += _new_distances(inputs, longer, known, [int(ages_s[0]) + s for s in PAST_AGES_S])
    return found


def _new_distances(
    inputs: DetectionInput,
    seen: PeerDistance,
    known: list[tuple[int, int | None]],
    past_ages_s: Sequence[int],
) -> list[Problem]:
    """Find the worst part of each accelerator that is not ``known``, and add it there."""
    per_device = 1 if seen.kind is MEMORY else max(1, inputs.cores_per_device)
    if not seen.suspects.any():
        return []
    worst = np.where(seen.suspects, seen.ratio, 0.0)
    for row, device in known:
        if device is not None:
            _without_device(worst[row], device, per_device)
    if not worst.any():
        return []
    found, past = list[Problem](), None
    history = ratio_history(seen.span, seen.kind)
    healthy = history.copy()
    for row, part in np.argwhere(seen.suspects):
        _without_device(healthy[:, row].T, part // per_device, per_device, np.nan)
    for row in np.flatnonzero(worst.any(axis=1)).tolist():
        reports = np.asarray(new_measurements(seen.span.values[seen.kind.metric][:, row]))
        of_node = np.asarray(reports.any(axis=1))
        while worst[row].any():
            part = Suspect(row, int(np.argmax(worst[row])), float(worst[row].max()))
            device = part.part // per_device
            _without_device(worst[row], device, per_device)
            ratios = history[:, row, part.part]
            is_known = np.isfinite(ratios)
            # A node that waits has no ratio: few seconds of work are a mean of few reports.
            chance = limit_of_chance(
                healthy,
                row,
                n_reports=int((reports[:, part.part] & is_known).sum()),
                n_compared=int(np.isfinite(seen.ratio).sum()),
                report_every_s=inputs.report_every_s,
            )
            if part.ratio - 1.0 < chance:
                continue
            # It must stand out in enough reports, and in the newest.
            above = ratios >= 1.0 + HALF * (part.ratio - 1.0)
            if not is_persistent(above[is_known], of_node[is_known], least=PERSISTS_S):
                continue
            if not above[is_known][-NEWEST_S:].all():
                continue
            if past is None and inputs.hardware_at is not None:
                past = inputs.hardware_at([seen.kind.metric], past_ages_s)
            if _is_new(past, seen, part):
                score = _score(inputs, seen, part, *_classify(inputs, seen, part))
                onset_s = float(seen.span.ticks[int(np.argmax(above))]) - 1.0
                found.append(problem_of(score, onset_s))
                known.append((row, device))
    return found


def limit_of_chance(
    history: FloatArray, row: int, *, n_reports: int, n_compared: int, report_every_s: int
) -> float:
    """Mean relative distance that noise reaches once in `FALSE_EVERY_S`, in any part of a run.

    Parameters
    ----------
    history : (n_ticks, n_nodes, n_parts) ratios of healthy parts, 1 is usual; NaN where unknown
    row : of the node in question
    n_reports : independent values in the mean; a value that is held for seconds counts once
    n_compared : parts of the run that are compared

    Notes
    -----
    A part of a healthy run is ``1 + s e`` in each report, with independent noise ``e``, so its
    mean over n reports has the deviation ``s / sqrt(n)``. Each report of each part is a chance to
    pass for unhealthy: ``n_compared FALSE_EVERY_S / report_every_s`` of them in that time
    (Bonferroni; windows that overlap add no independent looks). The limit is the quantile of
    Student's distribution that leaves one such chance. Its degrees of freedom are the smaller of
    two:

    - The spread ``s`` is the 0.9 quantile of ``|ratio - 1|`` over 1.645, of the node or of the
      run, whichever is larger. The variance of a quantile, ``q (1 - q) / (N f(q)**2)``, is that
      of a deviation with ``0.64 N`` degrees of freedom, where N counts the values of the run.
    - Noise may itself have the tails of Student's distribution with d degrees of freedom. For
      those ``d = 1.6 / (r - 1.566) + 1.3`` within 3 %, where r is the 0.99 over the 0.9 quantile
      (1.566 if normal). A part passes only if all reports, or `PERSISTS_S` of many, exceed half of
      the distance: m independent values of tail index d, together ``m d``.

    References
    ----------
    H. A. David, H. N. Nagaraja, "Order Statistics" (2003), section 10.2.

    Examples
    --------
    >>> noise = 1 + 0.02 * np.random.default_rng(1).standard_normal((2, 16, 64))
    >>> limit = limit_of_chance(noise, 0, n_reports=2, n_compared=1024, report_every_s=15)
    >>> round(limit / (0.02 / 2**0.5), 1)
    6.5
    """
    distance = np.abs(history - 1.0)
    of_run = distance[np.isfinite(distance)]
    of_node = distance[:, row][np.isfinite(distance[:, row])]
    if not of_run.size:
        return 0.0
    n_values = of_run.size * n_reports / len(history)
    usual, rare = (float(q) for q in np.quantile(of_run, (0.9, 0.99)))
    spread = max(usual, float(np.quantile(of_node, 0.9)) if of_node.size else 0.0) / 1.645
    beyond = rare / usual - 1.566 if usual > 0 else 0.0
    tail = 1.6 / beyond + 1.3 if beyond > 0 else np.inf
    freedom = min(0.64 * n_values, tail * min(n_reports, PERSISTS_S))
    n_looks = n_compared * FALSE_EVERY_S / report_every_s
    return float(spread / n_reports**0.5 * student_quantile(freedom, 1.0 - 1.0 / n_looks))


def _without_device(parts: FloatArray, device: int, per_device: int, value: float = 0.0) -> None:
    """Clear the parts (first axis) of an accelerator, in place."""
    parts[device * per_device : (device + 1) * per_device] = value


def _is_new(past: Span | None, seen: PeerDistance, part: Suspect) -> bool:
    """Whether a part was like its peers before, if known.

    A core with other work than its peers always differs. Without a known past, only peers in the
    same role on several nodes count.
    """
    enough = len(seen.span.nodes) >= ENOUGH_NODES
    before = np.nan
    if past is not None and len(past.nodes):
        before = float(lower_median(ratio_history(past, seen.kind)[:, part.row, part.part]))
    excess = part.ratio - 1.0
    if np.isfinite(before) and part.ratio / before - 1.0 >= NEW_SHARE * excess:
        return True
    return enough and excess >= BLATANT


def _classify(inputs: DetectionInput, seen: PeerDistance, part: Suspect) -> tuple[str, int]:
    """Slow core, or throttled accelerator if all its cores stand out alike."""
    if seen.kind is MEMORY:
        return "hbm_slow", part.part
    per_device = inputs.cores_per_device
    n_cores = seen.ratio.shape[1]
    if per_device == 1:
        # With one core per accelerator the two look the same; the accelerator is what gets
        # replaced.
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
) -> dict[int, list[OpenProblem]]:
    """Open alerts that this metric can resolve, by the row of their node."""
    causes = ("hbm_slow",) if kind is MEMORY else ("slow_core", "throttle", "slow_compute")
    places = {name: row for row, name in enumerate(seen.span.nodes)}
    found: dict[int, list[OpenProblem]] = defaultdict(list)
    for each in inputs.open_problems:
        if each.cause in causes and each.node in places and each.device is not None:
            # All cores of an accelerator stand out, whether it or its memory is slow.
            is_class = each.cause == "slow_compute"
            alert = replace(each, cause="throttle") if is_class else each
            found[places[each.node]].append(alert)
    return found


def _still_open(
    inputs: DetectionInput, seen: PeerDistance, alert: OpenProblem, recent: FloatArray, row: int
) -> Problem | None:
    """Keep an open problem while it lasts, or while no data contradicts it."""
    per_device = inputs.cores_per_device if alert.cause == "throttle" else 1
    first = (alert.device or 0) * per_device
    parts = np.arange(first, first + per_device)
    parts = parts[parts < recent.shape[1]]
    away = lower_median(recent[:, parts]) if parts.size else np.full(1, np.nan)
    known = away[np.isfinite(away)]
    # One report does not end what two have shown.
    last = PERSISTS_S if inputs.report_every_s == 1 else len(known)
    if known.size >= PERSISTS_S:
        if float(known[-last:].max()) < 1.0 + HALF * seen.kind.least:
            return None
        ratio = float(max(known.mean(), 1.0))
        part = Suspect(row, int(parts[0]), ratio)
        score = _score(inputs, seen, part, alert.cause, int(alert.device or 0))
        return problem_of(score, onset_of_alert(alert, seen.span.ticks[0]))
    node = seen.span.nodes[row]
    steps = inputs.steps.reported
    if bool(len(steps)) and node not in training_nodes(inputs, steps):
        return None
    return problem_of(score_of_alert(alert), onset_of_alert(alert, seen.span.ticks[0]))


UTILIZATION, BANDWIDTH = "core_utilization_ratio", "hbm_bandwidth_bytes_per_s"
POWER = "device_power_ratio"
PART_METRICS = (UTILIZATION, BANDWIDTH)
# Devices that wait for a slow one draw less power than before. The slow one saves this share of
# what they save, because it is clocked all the time. No figure is published: assumed.
CLOCKED_SAVES = 0.7
# Required distance of the power from the other devices of the node, in deviations and relative,
# and the seconds that show it.
POWER_DEVIATIONS, POWER_RATIO, POWER_S = 5.0, 0.015, 6
# Required fall of the power of a whole node that computes for longer. Noise of its devices
# averages out.
LESS_POWER_RATIO = 0.05
# Devices report the mean power of so many seconds. A step longer by this ratio within them is
# another change of the run, whose power says nothing about a node.
POWER_MEAN_S, OTHER_STEP_RATIO, TINY_S = 60.0, 1.2, 1e-3
# Required deviations from the other parts of the node, and the minimum deviation assumed,
# relative to the usual value: together 7.5 %.
LATE_PARTS_DEVIATIONS, SPREAD = 5.0, 0.015
# Required distance of the only part of a node from other nodes.
ALONE = 0.2
ENOUGH_PEER_NODES, ENOUGH_DEVICES = 63, 3


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of the same kind of a late node; each array (n,), NaN where missing.

    ``role``: usual value of the same part on ``n_peer_nodes`` other nodes. ``to_peer_nodes``:
    ratio to it. ``relative``: that ratio over the usual one of this node.
    """

    value: FloatArray
    role: FloatArray
    n_peer_nodes: int
    to_peer_nodes: FloatArray
    relative: FloatArray

    @property
    def is_only(self) -> bool:
        """Whether the node has one such part, so that its peers are on other nodes."""
        return self.relative.size == 1

    @property
    def usual(self) -> float:
        """NaN without peers."""
        if self.is_only:
            return float(self.role[0]) if self.n_peer_nodes else np.nan
        return float(median(self.value))

    @property
    def n_peers(self) -> int:
        return self.n_peer_nodes if self.is_only else int(np.isfinite(self.value).sum()) - 1

    @property
    def strength(self) -> FloatArray:
        """Evidence over threshold that each part is above its peers: (n,).

        A comparison with other nodes proves less, so its threshold is higher.
        """
        if self.is_only:
            return (self.to_peer_nodes - 1.0) / ALONE
        return deviations(self.relative, floor=SPREAD) / LATE_PARTS_DEVIATIONS


def score_parts(
    case: ShareCase, node: str, *, blame_only_device: bool = True, is_alone: bool = False
) -> list[CauseScore]:
    """Score slow memory, slow cores and throttled accelerators, the most specific first.

    A single accelerator can only be compared with other nodes. The caller decides whether it is
    accused when all cores of the node are busy for longer (``blame_only_device``).
    ``is_alone``: no other node is late, so that none waits for another while it computes.

    Notes
    -----
    A tensor-parallel group meets after every layer, so one slow part paces its whole node: it
    alone stays busy while the others wait for it. An accelerator starved of memory moves fewer
    bytes besides, which no slow core or throttled accelerator does to it alone.
    """
    metrics = (*PART_METRICS, POWER)
    before, span = hardware_before_and_after(case, metrics, nodes={node, *peer_nodes(case, node)})
    if node not in span.nodes or not len(span.ticks):
        return []
    peer_rows = [i for i, name in enumerate(span.nodes) if name != node]
    scores = []
    if BANDWIDTH in span.values:
        devices = parts(span, BANDWIDTH, node, peer_rows, sign=-1)
        scores.append(_score_worst("hbm_slow", node, devices, devices.strength))
    if UTILIZATION in span.values:
        cores = parts(span, UTILIZATION, node, peer_rows)
        per_device = max(1, case.inputs.cores_per_device)
        if cores.value.size % per_device:
            per_device = 1
        scores += _score_cores(node, cores, per_device)
        if case.inputs.cores_per_device == 1:
            # With one core per accelerator the two look the same.
            scores = [
                replace(each, cause="throttle") if each.cause == "slow_core" else each
                for each in scores
                if each.cause != "throttle"
            ]
        if cores.value.size == per_device and not blame_only_device:
            scores = [score for score in scores if score.cause != "throttle"]
    if not any(score.stands_out for score in scores):
        of_power = _score_power(case, node, before, span)
        scores += of_power if is_alone else of_power[:1]
    return scores


def _score_power(case: ShareCase, node: str, before: Span, since: Span) -> list[CauseScore]:
    """Score the device that saves less power than the other devices of its node, and the node.

    For cores that count as busy while they wait. Power shows the device of a slow core, not the
    core. If each device draws less while the node computes for longer, they wait for one of them:
    more work would take as much power as before.
    """
    if len(before.ticks) < POWER_S and case.inputs.hardware_at is not None:
        # Real devices report a mean of a minute, which shows a change late.
        ages_s = int(case.inputs.now_s - case.onset_s) + np.arange(BEFORE_S, 0, -1)
        before = case.inputs.hardware_at([POWER], ages_s.tolist())
    if min(len(before.ticks), len(since.ticks)) < POWER_S or POWER not in since.values:
        return []
    if _changed_before(case):
        return []
    was, now = (mean(span.of([node]).values[POWER], axis=0)[0] for span in (before, since))
    if was.shape != now.shape:
        # The seconds before the onset are gone, or had no power.
        return []
    known = np.isfinite(was) & np.isfinite(now) & (was > 0)
    if known.sum() < ENOUGH_DEVICES:
        return []
    left = np.divide(now, was, out=np.full(was.shape, np.nan), where=known)
    usual = float(lower_median(left))
    spread = GAUSSIAN * float(lower_median(np.abs(left - usual)))
    device = int(np.nanargmax(left))
    least = max(POWER_RATIO, POWER_DEVIATIONS * spread)
    strength = (float(left[device]) - usual) / least
    saves = (1.0 - float(left[device])) / max(1.0 - usual, 1e-9)
    of_a_core = 1.0 - (1.0 - CLOCKED_SAVES) / max(1, case.inputs.cores_per_device)
    is_core = case.inputs.cores_per_device > 1 and saves > (CLOCKED_SAVES + of_a_core) / 2
    n_peers, peers = int(known.sum()) - 1, float(lower_median(now))
    of_device = CauseScore(
        "slow_core" if is_core else "throttle",
        # One that draws as much as before computes as before.
        strength if 0.0 < saves < 1.0 else 0.0,
        POWER,
        float(now[device]),
        peers,
        n_peers,
        "ratio",
        node,
        None if is_core else device,
    )
    # A slow device would stand out from this fall on.
    is_clear = (1.0 - CLOCKED_SAVES) * (1.0 - usual) >= CLEARLY * least
    of_node = CauseScore(
        "slow_core" if is_core and is_clear else "slow_compute",
        (1.0 - float(left[device])) / LESS_POWER_RATIO,
        POWER,
        peers,
        float(lower_median(was)),
        n_peers,
        "ratio",
        node,
    )
    return [of_device, of_node]


def _changed_before(case: ShareCase) -> bool:
    """Whether steps took longer shortly before the onset: then power changes for that reason."""
    steps = case.inputs.steps.reported
    until_onset = steps.ended_at_s <= case.onset_s + TINY_S
    lasted_s = work_s(steps)[until_onset]
    is_late = steps.ended_at_s[until_onset] > case.onset_s - POWER_MEAN_S
    if not is_late.any() or is_late.all():
        return False
    usual_s = middle(lasted_s[~is_late])
    return bool((lasted_s[is_late] > OTHER_STEP_RATIO * usual_s).any())


def score_power_of_node(case: ShareCase, node: str) -> CauseScore | None:
    """Score the power of a node that computes for longer; None where it is unknown."""
    scores = _score_power(case, node, *hardware_before_and_after(case, [POWER], nodes=[node]))
    return scores[-1] if scores else None


def parts(span: Span, metric: str, node: str, peer_rows: list[int], *, sign: int = 1) -> Parts:
    """Compare the parts of a node, each by its role.

    Parameters
    ----------
    peer_rows : rows of the other nodes that train
        The same part of other nodes plays the same role: in a pipeline, cores of one node may
        belong to different stages and be unlike for good.
    sign : 1 or -1
        Whether a sick part lies above the others or below.
    """
    level = mean(span.values[metric], axis=0)
    own = level[span.nodes.index(node)]
    peer_rows = [row for row in peer_rows if np.isfinite(level[row]).any()]
    role = median(level[peer_rows].T) if peer_rows else np.ones_like(own)
    ratio = np.divide(own, role, out=np.full(own.shape, np.nan), where=role > 0)
    if sign < 0:
        ratio = np.divide(1.0, ratio, out=np.full(own.shape, np.nan), where=ratio > 0)
    usual = float(lower_median(ratio))
    relative = ratio / usual if usual > 0 else np.full(own.shape, np.nan)
    return Parts(own, role, len(peer_rows), ratio, relative)


def peer_nodes(case: ShareCase, node: str) -> list[str]:
    """Other training nodes, at most ENOUGH_PEER_NODES."""
    reported = np.isfinite(case.after.phases["compute_s"]).any(axis=0)
    training = {case.inputs.node_of(case.after.workers[i]): None for i in np.flatnonzero(reported)}
    return [name for name in training if name is not None and name != node][:ENOUGH_PEER_NODES]


def _score_cores(node: str, cores: Parts, per_device: int) -> list[CauseScore]:
    """Score cores that stay busy while others wait: one, or all of an accelerator."""
    devices = Parts(
        value=cores.value.reshape(-1, per_device).mean(axis=1),
        role=cores.role.reshape(-1, per_device).mean(axis=1),
        n_peer_nodes=cores.n_peer_nodes,
        to_peer_nodes=cores.to_peer_nodes.reshape(-1, per_device).min(axis=1),
        relative=cores.relative.reshape(-1, per_device).min(axis=1),
    )
    strength = cores.strength
    whole = strength.reshape(-1, per_device).min(axis=1)
    if per_device == 1:
        throttle = _score_worst("throttle", node, devices, whole * np.nan)
    else:
        of_devices = devices.strength if devices.is_only else whole
        throttle = _score_worst("throttle", node, devices, of_devices)
        # If all cores of an accelerator are slow alike, the accelerator is slow.
        strength = np.where(np.repeat(whole, per_device) < 1, strength, 0)
    return [_score_worst("slow_core", node, cores, strength), throttle]


def _score_worst(cause: str, node: str, among: Parts, strength: FloatArray) -> CauseScore:
    is_memory = cause == "hbm_slow"
    metric, unit = (BANDWIDTH, "bytes_per_s") if is_memory else (UTILIZATION, "ratio")
    score = CauseScore(cause, 0.0, metric, np.nan, among.usual, 0, unit)
    if not np.isfinite(strength).any():
        return score
    part = int(np.nanargmax(strength))
    return replace(
        score,
        strength=float(strength[part]),
        value=float(among.value[part]),
        n_peers=among.n_peers,
        is_only_part=among.is_only,
        node=node,
        device=part,
    )
