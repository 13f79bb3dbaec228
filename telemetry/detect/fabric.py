"""Unhealthy EFA devices by the reports of all nodes of a run: slow, lossy or down."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span
from telemetry.detect.causes import LINK_CAUSES
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
    newest_measurements,
    part_values,
    recent,
)
from telemetry.detect.pace import ShareCase, hardware_before_and_after
from telemetry.detect.parts import HALF, PAST_AGES_S, PERSISTS_S, RECENT_S
from telemetry.detect.rules import RULES
from telemetry.statistics.peers import GAUSSIAN, lower_median, mean, median, total

LATENCY, BYTES = "efa_latency_s", "efa_tx_bytes_per_s"
PACKETS, RETRANSMITS, IMPAIRED = (
    "efa_tx_packets_per_s",
    "efa_retransmits_per_s",
    "efa_impaired_per_s",
)
# With fewer nodes than this, or up to this share of all, nodes fail independently.
EVERYWHERE_ENOUGH_NODES, MOST = 3, 0.5
METRICS = (LATENCY, BYTES, PACKETS, RETRANSMITS, IMPAIRED)


@dataclass(frozen=True)
class EfaReadings:
    """The EFA devices of a run over some seconds; each array (n_ticks, n_nodes, n_efa)."""

    span: Span
    latency_s: FloatArray
    bytes_per_s: FloatArray
    packets_per_s: FloatArray
    retransmits_per_s: FloatArray
    impaired_per_s: FloatArray

    @cached_property
    def typical_s(self) -> FloatArray:
        """Median over time of the latency of each device: (n_nodes, n_efa)."""
        return lower_median(np.moveaxis(self.latency_s, 0, -1))

    @cached_property
    def usual_s(self) -> float:
        """Median latency of all devices of the run."""
        return float(lower_median(self.typical_s.ravel()))

    @cached_property
    def reports(self) -> NDArray[np.bool_]:
        """Ticks with new counters, by node: (n_ticks, n_nodes, 1).

        An idle or loss-free device repeats its counters. If all devices of a node repeat them, no
        report arrived.
        """
        moved = [new_measurements(each) for each in (self.bytes_per_s, self.packets_per_s)]
        return np.asarray((moved[0] | moved[1]).any(axis=2, keepdims=True))

    @cached_property
    def probed(self) -> NDArray[np.bool_]:
        """Ticks with a new probe, by device: (n_ticks, n_nodes, n_efa)."""
        return new_measurements(self.latency_s)

    @property
    def is_probed_rarely(self) -> NDArray[np.bool_]:
        """Devices probed less often than every second: (n_nodes, n_efa)."""
        return np.asarray(self.probed.sum(axis=0) < PERSISTS_S)

    @cached_property
    def latency_ratio(self) -> FloatArray:
        """Latency over the usual device in the same second: (n_ticks, n_nodes, n_efa)."""
        n_ticks = len(self.latency_s)
        usual = lower_median(self.latency_s.reshape(n_ticks, -1))
        return np.asarray(self.latency_s / usual[:, None, None])

    @cached_property
    def typical_ratio(self) -> FloatArray:
        """Median over time of the latency ratio of each device: (n_nodes, n_efa)."""
        return lower_median(np.moveaxis(self.latency_ratio, 0, -1))


def efa_readings(span: Span) -> EfaReadings | None:
    """None where no node has an EFA device."""
    shapes = {v.shape for n, v in span.values.items() if n in METRICS and v.shape[2]}
    if not shapes or not len(span.ticks):
        return None
    unknown = np.full(max(shapes), np.nan)
    value = {
        n: v if v is not None and v.shape[2] else unknown
        for n in METRICS
        for v in [span.values.get(n)]
    }
    return EfaReadings(span, *(value[name] for name in METRICS))


@dataclass(frozen=True, slots=True)
class EfaScores:
    """Devices judged for one cause: value, and badness over ``limit`` (n_nodes, n_efa).

    ``score`` has the cause, the metric and the usual value. ``everywhere`` is how bad all devices
    are together, over the limit of that.
    """

    score: CauseScore
    value: FloatArray
    badness: FloatArray
    limit: float = 1.0
    everywhere: float = 0.0


def symptoms_of(
    now: EfaReadings,
    scores: EfaScores,
    unhealthy: NDArray[np.bool_],
    above: NDArray[np.bool_],
) -> list[Problem]:
    """Name the worst device of each unhealthy node; ``above`` (n_ticks, ...) shows the onset."""
    found = []
    for row in np.flatnonzero(unhealthy.any(axis=1)):
        score, device = _worst_device(now, scores, int(row), unhealthy[row])
        first = int(np.argmax(above[:, row, device]))
        found.append(problem_of(score, float(now.span.ticks[first]) - 1.0))
    return found


def _worst_device(
    now: EfaReadings, scores: EfaScores, row: int, unhealthy: NDArray[np.bool_]
) -> tuple[CauseScore, int]:
    """Name the worst device of a node; only the node where most of its devices are unhealthy."""
    among = unhealthy if unhealthy.any() else np.isfinite(scores.badness[row])
    device = int(np.argmax(np.where(among, scores.badness[row], -np.inf)))
    most = unhealthy.size > 2 and float(unhealthy.mean()) > MOST
    score = replace(
        scores.score,
        strength=float(scores.badness[row, device]),
        value=float(scores.value[row, device]),
        n_peers=int(np.isfinite(scores.value).sum()) - 1,
        node=now.span.nodes[row],
        device=None if most else device,
    )
    return score, device


def score_links(case: ShareCase) -> list[CauseScore]:
    """Score a down, a lossy and a slow EFA device in slow steps; none where nodes have no EFA."""
    before, since = (efa_readings(span) for span in hardware_before_and_after(case, METRICS))
    if since is None:
        return []
    few = since.probed.sum(axis=0) < ENOUGH_IN_STEPS
    used_to_s = np.nan if before is None else before.usual_s
    latency = judge_latency(since, used_to_s, slower_by=np.where(few, SLOWER_AT_ONCE, SLOWER_BY))
    loss = judge_loss(since)
    judged = (
        judge_down(since),
        # Bursts of loss slow no steps: little of it must be known to last.
        _where(loss, (loss.value >= BURST_RATIO) | (loss.everywhere >= 1.0), case, since),
        # A node in another rack always answers later: that slows no steps.
        _where(latency, _is_new(before, since.typical_ratio), case, since),
    )
    return [_score_of(case.inputs, since, scores) for scores in judged]


def _where(
    scores: EfaScores, may_be: NDArray[np.bool_], case: ShareCase, now: EfaReadings
) -> EfaScores:
    """Clear the devices that cannot be the reason, except those of nodes with an open alert."""
    held = {a.node for a in case.inputs.open_problems if a.cause == scores.score.cause}
    is_held = np.array([name in held for name in now.span.nodes])[:, None]
    return replace(scores, badness=np.where(may_be | is_held, scores.badness, 0.0))


def _score_of(inputs: DetectionInput, now: EfaReadings, scores: EfaScores) -> CauseScore:
    """Name the device that stands out most, else the fabric if all devices are bad.

    A node that an open alert accuses stays accused while it stands out: of several alike, chance
    decides which one is worst.
    """
    if not np.isfinite(scores.badness).any():
        return scores.score
    row = int(np.nanargmax(scores.badness)) // scores.badness.shape[1]
    held = [a for a in inputs.open_problems if a.cause == scores.score.cause]
    for alert in sorted(held, key=lambda a: a.rule != "allreduce_share"):
        if alert.node in now.span.nodes:
            place = now.span.nodes.index(alert.node)
            if (scores.badness[place] >= 1.0).any():
                row = place
                break
    worst, _ = _worst_device(now, scores, row, scores.badness[row] >= 1.0)
    if worst.strength < 1.0 <= scores.everywhere:
        return replace(worst, strength=scores.everywhere, node=None, device=None)
    return worst


# Required deviations, and ratio of the latency to the peers. One probe in a thousand is slow by
# chance, so with fewer probes than this in slow steps the ratio must be high.
DEVIATIONS, SLOWER_BY, SLOWER_AT_ONCE, ENOUGH_IN_STEPS = 5.0, 1.15, 4.0, 2
# Retransmit ratio that a healthy fabric does not reach, and the share of the traffic of the other
# devices of its node below which a device is down.
LOSS_RATIO = RULES["efa_degraded"].limits["loss_ratio"]
DEAD_RATIO = RULES["efa_degraded"].limits["dead_ratio"]
# This many retransmits are not chance. A down device is judged while the others of its node carry
# this much.
MIN_RETRANSMITS = RULES["efa_degraded"].limits["least_again"]
AT_WORK_BYTES_PER_S = RULES["efa_degraded"].limits["at_work_bytes_per_s"]

# Healthy links lose packets in bursts, also while steps are longer for another reason. Loss below
# this ratio must be there so many seconds ago, too: for longer than two bursts in a row, of which
# up to 30 s and 0.3 % are assumed.
BURST_RATIO, BURST_AGES_S = 0.005, tuple(range(56, 0, -RECENT_S))
# On a link with little traffic losses are counted for this many seconds; the last part must show
# them too.
QUIET_S, RECENT_PART = 300, 4


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """NaN where the whole is zero or unknown."""
    ratio = np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)
    return np.asarray(ratio)


def judge_loss(now: EfaReadings) -> EfaScores:
    """Compare the share of retransmits with the run's usual one.

    A loss of all devices does not begin and end in the same report of each node: what is usual is
    taken from the second in which most devices lose most.
    """
    retransmits, sent = mean(now.retransmits_per_s, axis=0), mean(now.packets_per_s, axis=0)
    ratio = _ratio(retransmits, sent)
    usual, spread = _usual_and_spread(ratio)
    score = CauseScore("efa_loss", 0.0, RETRANSMITS, np.nan, usual, 0, "ratio")
    each_s = _ratio(now.retransmits_per_s, now.packets_per_s)
    most = float(np.fmax.reduce(lower_median(each_s.reshape(len(each_s), -1)), initial=0.0))
    limit = max(LOSS_RATIO, usual + DEVIATIONS * spread, 2 * usual, 2 * most)
    return EfaScores(score, ratio, ratio / limit, limit, _zero_if_unknown(usual / LOSS_RATIO))


def find_loss(now: EfaReadings) -> list[Problem]:
    """Devices that retransmit more than any healthy path does."""
    ratio = _ratio(mean(now.retransmits_per_s, axis=0), mean(now.packets_per_s, axis=0))
    if not (ratio >= LOSS_RATIO).any():
        # No limit is below this one: nearly always that settles it, without what is usual.
        return []
    scores = judge_loss(now)
    usual, is_lossy = scores.score.peers_median, scores.badness >= 1.0
    if not (is_lossy.any() or scores.everywhere >= 1.0):
        return []
    n_retransmits = np.nansum(now.retransmits_per_s, axis=0)
    above, above_floor = (
        now.retransmits_per_s > HALF * least * now.packets_per_s
        for least in (scores.limit, LOSS_RATIO)
    )
    enough, enough_above_floor = (
        (n_retransmits >= MIN_RETRANSMITS)
        & is_persistent(each, now.reports, least=PERSISTS_S)
        & each[-3:].any(axis=0)
        for each in (above, above_floor)
    )
    found = symptoms_of(now, scores, is_lossy & enough, above)
    if scores.everywhere >= 1.0 and float(enough_above_floor.mean()) > MOST:
        score = replace(scores.score, strength=scores.everywhere, value=usual, peers_median=0.0)
        first = int(np.argmax(above_floor.mean(axis=(1, 2)) > MOST))
        found.append(problem_of(score, float(now.span.ticks[first]) - 1.0))
    return found


def _without_bursts(inputs: DetectionInput, found: list[Problem]) -> list[Problem]:
    """Drop losses that may be bursts: little is lost, for a short time."""
    held = {each.node for each in inputs.open_problems if each.cause == "efa_loss"}
    faint = [
        each
        for each in found
        if each.score is not None and each.score.value < BURST_RATIO and each.node not in held
    ]
    if not faint:
        return found
    lasting = {each.node for each in faint}
    for ago_s in BURST_AGES_S:
        # A burst may follow another one on the same link.
        past = efa_readings(recent(inputs.ago(ago_s), METRICS, RECENT_S)) if lasting else None
        lasting &= {each.node for each in find_loss(past)} if past else set()
    return [each for each in found if each not in faint or each.node in lasting]


def _usual_and_spread(values: FloatArray) -> tuple[float, float]:
    """Median and robust deviation of all devices of the run; NaN of none."""
    known = values[np.isfinite(values)]
    if not known.size:
        return np.nan, np.nan
    usual = float(lower_median(known))
    return usual, GAUSSIAN * float(lower_median(np.abs(known - usual)))


def _zero_if_unknown(strength: float) -> float:
    return strength if np.isfinite(strength) else 0.0


def find_rare_loss(inputs: DetectionInput, now: EfaReadings) -> list[Problem]:
    """Devices with so few packets that proof of loss takes minutes."""
    retransmits, sent = total(now.retransmits_per_s), total(now.packets_per_s)
    held = {alert.node for alert in inputs.open_problems if alert.cause == "efa_loss"}
    faint = (
        (retransmits > 0) & (retransmits < MIN_RETRANSMITS) & (retransmits >= LOSS_RATIO * sent)
    )
    rows = faint.any(axis=1)
    if held:
        rows |= np.array([node in held for node in now.span.nodes])
    if not rows.any():
        return []
    nodes = [now.span.nodes[row] for row in np.flatnonzero(rows)]
    history = efa_readings(inputs.hardware((PACKETS, RETRANSMITS), QUIET_S).of(nodes))
    if history is None:
        return []
    retransmits, sent = total(history.retransmits_per_s), total(history.packets_per_s)
    ratio = np.nan_to_num(_ratio(retransmits, sent))
    above = history.retransmits_per_s > HALF * LOSS_RATIO * history.packets_per_s
    lost, passed = (
        np.nansum(each[-QUIET_S // RECENT_PART :], axis=0)
        for each in (history.retransmits_per_s, history.packets_per_s)
    )
    # A healthy link retransmits at times: one retransmit does not make an earlier loss last.
    lasts = (lost > 0) & (lost >= HALF * LOSS_RATIO * passed)
    enough = (retransmits >= MIN_RETRANSMITS) & (above.sum(axis=0) >= PERSISTS_S) & lasts
    at_s = np.where(above, history.span.ticks[:, None, None].astype(float), np.nan)
    first_s, last_s = np.fmin.reduce(at_s, axis=0), np.fmax.reduce(at_s, axis=0)
    third_s = (last_s - first_s) / 3
    # Two bursts leave the time between them free of loss.
    between = ((at_s >= first_s + third_s) & (at_s <= last_s - third_s)).any(axis=0)
    enough &= (ratio >= BURST_RATIO) | (between & (3 * third_s >= BURST_AGES_S[0]))
    usual = float(lower_median(ratio.ravel()))
    score = CauseScore("efa_loss", 0.0, RETRANSMITS, np.nan, usual, 0, "ratio")
    scores = EfaScores(score, ratio, ratio / LOSS_RATIO)
    return symptoms_of(history, scores, enough & (ratio >= LOSS_RATIO), above)


def judge_down(now: EfaReadings) -> EfaScores:
    """Compare what a device carries with the other devices of its node."""
    moved = mean(now.bytes_per_s, axis=0)
    siblings = _carried_by_siblings(moved)
    left = _ratio(moved, siblings)
    usual = float(median(moved.ravel()))
    score = CauseScore("efa_down", 0.0, BYTES, np.nan, usual, 0, "bytes_per_s")
    return EfaScores(score, moved, DEAD_RATIO / np.maximum(left, DEAD_RATIO / 100))


def _carried_by_siblings(moved: FloatArray) -> FloatArray:
    """Usual bytes of the devices of each node; of all nodes if they have one device."""
    siblings = median(moved)[:, None] if moved.shape[1] > 1 else median(moved.ravel())
    return np.broadcast_to(siblings, moved.shape)


def find_down(inputs: DetectionInput, now: EfaReadings) -> list[Problem]:
    """Find idle devices on a busy node that were busy before, or are reported impaired."""
    moved = mean(now.bytes_per_s, axis=0)
    usual = _carried_by_siblings(moved)
    if not (_ratio(moved, usual) < DEAD_RATIO).any():
        return []
    scores = judge_down(now)
    unhealthy = (scores.badness > 1.0) & (usual >= AT_WORK_BYTES_PER_S)
    if not unhealthy.any():
        return []
    quiet = now.bytes_per_s < DEAD_RATIO * usual
    unhealthy &= is_persistent(quiet, now.reports, least=PERSISTS_S) & quiet[-2:].any(axis=0)
    if not unhealthy.any():
        return []
    missed = np.nansum(now.impaired_per_s, axis=0) > 0
    answers = np.isfinite(now.latency_s[-PERSISTS_S:]).any(axis=0)
    unanswered = ~answers & (answers.mean(axis=1, keepdims=True) > HALF)
    carried_before = np.zeros(unhealthy.shape, dtype=bool)
    past = inputs.hardware_at and efa_readings(inputs.hardware_at([BYTES], PAST_AGES_S))
    if past and past.bytes_per_s.shape[1:] == unhealthy.shape:
        before = mean(past.bytes_per_s, axis=0)
        carried_before = before >= HALF * median(before)[:, None]
    return symptoms_of(now, scores, unhealthy & (missed | unanswered | carried_before), quiet)


# Required ratio of the latency to before, and to peers where the past is unknown: a node in
# another rack answers up to 1.5 times later.
CHANGED_BY, FAR_RATIO = 1.20, 2.0
# Of three answers in a row the middle one is early by chance only if two are.
ENOUGH_ANSWERS = 3
LATENCY_AGES_S = tuple(
    age + s for age in PAST_AGES_S[::2] for s in reversed(range(ENOUGH_ANSWERS))
)
# The same for rare probes, of which the late ones are compared with the others.
PROBES_CHANGED_BY = 1.25
# For rare probes: seconds between two reads, how many of the newest count, and how many must be
# late.
PROBES_APART_S, NEWEST_PROBES, ENOUGH_PROBES = 15, 5, 3
# An agent's probe is the least of three rounds: it begins so many seconds before.
PROBE_S = 10
PROBE_AGES_S = tuple(range(405, -1, -PROBES_APART_S))
# Required ratio of the latency of all devices to before.
ALL_SLOWER_BY = 1.3
# A probe is held for up to a minute: ages at which packets that were lost explain that it is late.
HELD_AGES_S = (20, 40, 60)


def find_efa_symptoms(inputs: DetectionInput) -> list[Problem]:
    """Unhealthy EFA devices, one per node, and an unhealthy fabric.

    Notes
    -----
    The most special evidence comes first: a dead device answers no probes, and one that loses
    packets answers late besides.

    References
    ----------
    L. Shalev et al., "A Cloud-Optimized Transport Protocol for Elastic and Scalable HPC",
    IEEE Micro 40(6), 2020: what latency and loss say of a path.
    """
    now = efa_readings(recent(inputs, METRICS, RECENT_S))
    if now is None:
        return []
    found: dict[str | None, Problem] = {}
    groups = (
        find_down(inputs, now),
        _without_bursts(inputs, find_loss(now)),
        find_rare_loss(inputs, now),
        _find_latency(inputs, now),
    )
    for group in groups:
        for each in group:
            found.setdefault(each.node, each)
    late = {node for node, each in found.items() if each.cause == "efa_latency"}
    late -= {alert.node for alert in inputs.open_problems if alert.cause == "efa_latency"}
    if late and now.is_probed_rarely.all():
        # A lossy path answers late: a probe from then outlasts the loss.
        pasts = (efa_readings(recent(inputs.ago(s), METRICS, RECENT_S)) for s in HELD_AGES_S)
        lossy = {each.node for past in pasts if past for each in find_loss(past)}
        found = {n: each for n, each in found.items() if n not in late & lossy}
    for alert in inputs.open_problems:
        if alert.cause in LINK_CAUSES and alert.node not in found:
            kept = _still_open(inputs, now, alert)
            if kept is not None:
                found[alert.node] = kept
    if None in found:
        # While most devices have a problem, it is not that of the node that has most of it.
        fabric = found.pop(None)
        found = {node: each for node, each in found.items() if each.cause != fabric.cause}
        if len(found) > MOST * len(now.span.nodes):
            return [fabric]
        found[None] = fabric
    return merge_common(list(found.values()), n_nodes=len(now.span.nodes))


def merge_common(found: Sequence[Problem], *, n_nodes: int) -> list[Problem]:
    """Merge symptoms that most nodes show at the same part.

    Nodes fail one at a time. The same cause at the same EFA device of most nodes is their shared
    rail: one problem of the run. C4 tells one slow connection from all of a node by the filled row
    of a matrix: J. Dong et al., arXiv:2406.04594.
    """
    groups: dict[tuple[str, int | None], list[Problem]] = defaultdict(list)
    for each in found:
        groups[each.cause, each.device].append(each)
    kept: list[Problem] = []
    for (_, device), group in groups.items():
        nodes = {each.node for each in group} - {None}
        if device is None or len(nodes) < EVERYWHERE_ENOUGH_NODES or len(nodes) <= MOST * n_nodes:
            kept += group
            continue
        worst = max(group, key=lambda each: each.strength)
        onset_s = min(each.onset_s for each in group)
        score = worst.score and replace(worst.score, node=None)
        kept.append(replace(worst, score=score, onset_s=onset_s))
    return kept


def judge_latency(
    now: EfaReadings, used_to_s: float, *, slower_by: FloatArray | float = SLOWER_BY
) -> EfaScores:
    """Compare devices with each other in each second, and all of them with before.

    When all devices change together, none stands out.
    """
    usual = now.usual_s
    typical = now.typical_ratio
    _, spread = _usual_and_spread(typical)
    limit = np.fmax(slower_by - 1.0, DEVIATIONS * spread)
    everywhere = _zero_if_unknown(usual / used_to_s / ALL_SLOWER_BY)
    score = CauseScore("efa_latency", 0.0, LATENCY, np.nan, usual, 0, "s")
    return EfaScores(
        score, typical * usual, (typical - 1.0) / limit, float(np.min(limit)), everywhere
    )


def _find_latency(inputs: DetectionInput, now: EfaReadings) -> list[Problem]:
    """Devices that answer later than their peers and than before."""
    if not np.isfinite(now.usual_s):
        return []
    held = now.is_probed_rarely
    past, history, used_to_s = None, None, np.nan
    if held.all():
        history = _probes(inputs)
        used_to_s = _past_latency_s(inputs, history, now_s=now.usual_s)
    elif inputs.hardware_at is not None:
        past = efa_readings(inputs.hardware_at([LATENCY], LATENCY_AGES_S))
        used_to_s = np.nan if past is None else _of_same_devices(past, now)
    everywhere = _zero_if_unknown(now.usual_s / used_to_s / ALL_SLOWER_BY)
    if everywhere < 1.0 and not _may_be_late(now):
        return []
    scores = judge_latency(now, used_to_s)
    is_late, found = scores.badness >= 1.0, list[Problem]()
    if (is_late & ~held).any():
        typical = scores.value / now.usual_s
        above = now.latency_ratio - 1.0 >= HALF * np.maximum(typical - 1.0, scores.limit)
        lasts = (above.sum(axis=0) >= PERSISTS_S) & above[-2:].any(axis=0)
        is_new = _is_new(past, typical)
        since_s = _slow_since_s(inputs)
        if since_s is not None and inputs.hardware_at is not None:
            # What was not measured at the onset of an alert is compared with before that onset.
            ages_s = [int(inputs.now_s - since_s) + age for age in LATENCY_AGES_S]
            is_new |= _is_new(efa_readings(inputs.hardware_at([LATENCY], ages_s)), typical)
        unhealthy = is_late & lasts & is_new & ~held
        found = symptoms_of(now, scores, unhealthy, above)
    if (held & is_late).any():
        # A probe repeated for a minute is one measurement.
        history = _probes(inputs) if history is None else history
        found = _by_probes(inputs, history, scores, held=held) + found
    if scores.everywhere >= 1.0:
        before_s = now.usual_s / scores.everywhere / ALL_SLOWER_BY
        late = now.latency_s >= before_s * (1 + HALF * (ALL_SLOWER_BY - 1))
        first = int(np.argmax(late.mean(axis=(1, 2)) > HALF * np.isfinite(now.latency_s).mean()))
        score = replace(
            scores.score, strength=scores.everywhere, value=now.usual_s, peers_median=before_s
        )
        found.append(problem_of(score, float(now.span.ticks[first]) - 1.0))
    return found


def _of_same_devices(past: EfaReadings, now: EfaReadings) -> float:
    """Usual latency before, of those devices that answer now: far nodes may be all that report."""
    typical_s = past.typical_s
    if typical_s.shape == now.typical_s.shape:
        typical_s = typical_s[np.isfinite(now.typical_s)]
    return float(lower_median(typical_s.ravel()))


def _may_be_late(now: EfaReadings) -> bool:
    """Whether any device reaches the lowest limit of `judge_latency`: nearly always none does.

    A median is above a limit only if half of its values are.
    """
    least = np.float64(SLOWER_BY - 1.0)
    n_late = (now.latency_ratio - 1.0 >= least).sum(axis=0)
    if not (2 * n_late >= np.maximum(np.isfinite(now.latency_s).sum(axis=0), 1)).any():
        return False
    return bool((now.typical_ratio - 1.0 >= least).any())


def _probes(inputs: DetectionInput) -> EfaReadings | None:
    """Seconds of the last minutes, close enough together to see every probe of a minute.

    Without the first ones of a run, in which few devices were probed: they are no measure. Nodes
    that have not reported the newest second still hold the probe before it.
    """
    if inputs.hardware_at is None:
        return None
    span = inputs.hardware_at([LATENCY], PROBE_AGES_S)
    known = np.isfinite(part_values(span, LATENCY)).sum(axis=(1, 2))
    is_enough = known >= HALF * known.max(initial=0)
    span = span.at(span.ticks[np.argmax(is_enough) :].tolist())
    latency_s = part_values(span, LATENCY).copy()
    if len(latency_s) > 1:
        latency_s[-1] = np.where(np.isfinite(latency_s[-1]), latency_s[-1], latency_s[-2])
    return efa_readings(replace(span, values={LATENCY: latency_s}))


def _newest_ratios(history: EfaReadings, n: int) -> FloatArray:
    """Latency ratio of the newest probes: (n, n_nodes, n_efa)."""
    latency_ratio = np.where(history.probed, history.latency_ratio, np.nan)
    # The ratio changes with the other devices while the probe is the same.
    return newest_measurements(latency_ratio, n)


def _past_latency_s(inputs: DetectionInput, history: EfaReadings | None, *, now_s: float) -> float:
    """Earlier latency of all devices, where the newest probes in a row are above it; else NaN.

    ``now_s`` is the usual latency now.

    While steps take longer, one probe of each device is enough.
    """
    if history is None:
        return float("nan")
    least_s = float(np.fmin.reduce(history.latency_s, axis=None, initial=np.inf))
    if now_s / least_s / ALL_SLOWER_BY < 1.0:
        # Whatever was usual before, now is not that much slower.
        return float("nan")
    probes = newest_measurements(history.latency_s, 2 * ENOUGH_PROBES)
    usual = lower_median(probes.reshape(len(probes), -1))
    before = float(lower_median(usual[:ENOUGH_PROBES]))
    is_slow = _longer_steps_since_s(inputs) is not None
    newest = usual[-1:] if is_slow else usual[ENOUGH_PROBES:]
    is_so = bool((newest >= ALL_SLOWER_BY * before).all())
    return before if is_so else float("nan")


def _slow_since_s(inputs: DetectionInput) -> float | None:
    """Return when the oldest open problem of steps began; None without one."""
    slow = [a for a in inputs.open_problems if "kind" in a.evidence]
    return min((onset_of_alert(each, inputs.now_s) for each in slow), default=None)


def _longer_steps_since_s(inputs: DetectionInput) -> float | None:
    """Latest time at which what an open alert about whole steps without a node says began.

    The onset is when the first longer step began; by its usual end the reason was there.
    """
    held = (a for a in inputs.open_problems if a.node is None and a.evidence.get("kind") == "step")
    alert = next(held, None)
    if alert is None:
        return None
    usual_s = alert.evidence.get("baseline_step_s") or 0.0
    return onset_of_alert(alert, inputs.now_s) + float(usual_s)


def _is_new(past: EfaReadings | None, typical: FloatArray) -> NDArray[np.bool_]:
    """Devices that answer later than before, as far as that is known."""
    if past is None or past.latency_s.shape[1:] != typical.shape:
        return _is_later(typical, np.full(typical.shape, np.nan))
    is_known = np.isfinite(past.latency_ratio).sum(axis=0) >= ENOUGH_ANSWERS
    usual = lower_median(np.moveaxis(past.latency_ratio, 0, -1))
    return _is_later(typical, np.where(is_known, usual, np.nan))


def _is_later(
    typical: FloatArray, before: FloatArray, *, changed_by: float = CHANGED_BY
) -> NDArray[np.bool_]:
    """Whether devices answer later than before, both as ratios to the usual one.

    A node in another rack always answers later. Without a past only what no rack explains counts.
    """
    is_far_later = typical >= FAR_RATIO
    return np.where(np.isfinite(before), typical >= changed_by * before, is_far_later)


def stand_out_of_node(
    ratio: FloatArray, *, by: float, usually: FloatArray | float = 1.0
) -> NDArray[np.bool_]:
    """Whether devices answer later than most of their node, or than any distance explains.

    ``ratio``: to the run's usual latency, (..., n_nodes, n_devices), ``usually`` before; ``by``:
    the required ratio.
    """
    is_far_later = ratio >= FAR_RATIO * usually
    return np.asarray((ratio >= by * lower_median(ratio)[..., None]) | is_far_later)


def _still_open(inputs: DetectionInput, now: EfaReadings, alert: OpenProblem) -> Problem | None:
    """Keep an open problem while it lasts, or while no data contradicts it."""
    if alert.node is None:
        return _still_open_everywhere(now, alert)
    if alert.node not in now.span.nodes:
        return None
    row = now.span.nodes.index(alert.node)
    device = slice(None) if alert.device is None else slice(alert.device, alert.device + 1)
    bad = _is_still_bad(now, alert.cause)[:, row, device]
    is_probed = np.isfinite(now.latency_s[:, row, device]).any()
    if alert.cause == "efa_latency" and is_probed and now.is_probed_rarely[row, device].all():
        # Two healthy probes in a row end the alert.
        history = _probes(inputs)
        if history is not None and history.latency_s.shape[1] == len(now.span.nodes):
            last = _newest_ratios(history, 2)[:, row, device]
            well = last <= 1 + HALF * (SLOWER_BY - 1)
            if well.all(axis=0).mean() > HALF:
                return None
        return problem_of(score_of_alert(alert), onset_of_alert(alert, now.span.ticks[0]))
    # A healthy device is late at times. A lossy one loses packets only at times.
    is_late = alert.cause == "efa_latency" and bool((bad.mean(axis=0) > HALF).any())
    is_bad = is_late or (alert.cause != "efa_latency" and bool(bad[-PERSISTS_S:].any()))
    known = np.isfinite(now.bytes_per_s[-PERSISTS_S:, row, device])
    if known.any() and not is_bad:
        return None
    return problem_of(score_of_alert(alert), onset_of_alert(alert, now.span.ticks[0]))


def _by_probes(
    inputs: DetectionInput,
    history: EfaReadings | None,
    scores: EfaScores,
    *,
    held: NDArray[np.bool_],
) -> list[Problem]:
    """Judge devices by their newest probes, each counted once.

    A device is late if three of five probes are, the newest two among them, and if it is later
    than before; if all devices of its node are as late, four of five: probes of a node meet
    traffic together. While steps take longer for no known reason, the newest two are enough: that
    both are late by chance at such a time has a probability of about one in a million per device.
    Then one is enough if it is so late that chance is as rare.
    """
    if history is None or history.latency_s.shape[1:] != held.shape:
        return []
    limit, usual_s = scores.limit, scores.score.peers_median
    above = history.probed & (history.latency_ratio - 1.0 >= limit)
    since_s = _longer_steps_since_s(inputs)
    if since_s is None and above.sum(axis=0).max() < ENOUGH_PROBES:
        return []
    probes = _newest_ratios(history, NEWEST_PROBES)
    # A node that is far away is late in most of its earlier probes, too, if not in all.
    before = lower_median(np.moveaxis(probes[:-2], 0, -1))
    usually = np.fmax(before, 1.0)
    late = (probes - 1.0 >= limit) & (probes >= SLOWER_BY * usually)
    # If most devices probed since then are late, the others have not been probed yet.
    ticks = history.span.ticks[:, None, None]
    probed_s = np.where(history.probed, ticks - PROBES_APART_S - PROBE_S, -np.inf).max(axis=0)
    is_slow = probed_s >= (np.inf if since_s is None else since_s)
    is_slow &= late[-1][is_slow].sum() <= MOST * is_slow.sum()
    # Probes of all devices of a node meet traffic together.
    newest = stand_out_of_node(probes[-2:], by=PROBES_CHANGED_BY, usually=usually)
    stands_out = newest.all(axis=0)
    stands_out |= late.shape[2] == 1
    n_least = np.where(stands_out, ENOUGH_PROBES - is_slow, ENOUGH_PROBES + 1)
    is_lasting = (late.sum(axis=0) >= n_least) & late[-2:].all(axis=0)
    unhealthy = held & (is_lasting | (is_slow & (probes[-1] >= SLOWER_AT_ONCE)))
    if not unhealthy.any():
        return []
    typical = lower_median(np.moveaxis(np.where(late, probes, np.nan), 0, -1))
    unhealthy &= _is_later(typical, before, changed_by=PROBES_CHANGED_BY)
    # The first late probe in view is the onset.
    judged = replace(scores, value=typical * usual_s, badness=(typical - 1.0) / limit)
    return symptoms_of(history, judged, unhealthy, above)


def _is_still_bad(now: EfaReadings, cause: str) -> NDArray[np.bool_]:
    """Seconds in which a device is above the lower limit that resolves an alert."""
    if cause == "efa_latency":
        return np.asarray(now.latency_ratio > 1 + HALF * (SLOWER_BY - 1))
    if cause == "efa_loss":
        return np.asarray(now.retransmits_per_s > HALF * LOSS_RATIO * now.packets_per_s)
    siblings = median(now.bytes_per_s)[..., None]
    return np.asarray(now.bytes_per_s < 2 * DEAD_RATIO * siblings)


def _still_open_everywhere(now: EfaReadings, alert: OpenProblem) -> Problem | None:
    score = score_of_alert(alert)
    device = slice(None) if alert.device is None else slice(alert.device, alert.device + 1)
    if alert.cause == "efa_latency" and np.isfinite(score.peers_median):
        typical = lower_median(now.latency_s[-PERSISTS_S:, :, device].ravel())
        if typical < score.peers_median * (1 + HALF * (ALL_SLOWER_BY - 1)):
            return None
    elif not _is_still_bad(now, alert.cause)[-PERSISTS_S:, :, device].any(axis=0).mean() > HALF:
        return None
    return problem_of(score, onset_of_alert(alert, now.span.ticks[0]))
