"""The rule step_slow: steps that take longer than before, and why."""

import math
from dataclasses import replace

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.detect.causes import CAUSE_OF_PHASE, CLASSES, HARDWARE_CAUSES, UNKNOWN, Kind
from telemetry.detect.fabric import score_links
from telemetry.detect.findings import (
    CauseScore,
    Problem,
    onset_of_alert,
    score_of_alert,
    strongest,
)
from telemetry.detect.inputs import DetectionInput, node_values
from telemetry.detect.pace import (
    CLEARLY,
    HALF,
    PERSISTS_STEPS,
    RECENT_STEPS,
    STEADY,
    PhaseRise,
    busy_s,
    case_since,
    find_rise,
    n_newest,
    open_baseline,
    quickest_fifth,
    work_s,
)
from telemetry.detect.parts import (
    BANDWIDTH,
    PART_METRICS,
    POWER,
    UTILIZATION,
    score_power_of_node,
)
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import (
    training_nodes,
)
from telemetry.detect.stragglers import (
    HOST,
    MACHINE_PHASES,
    MANY_WORKERS,
    Lateness,
    lateness,
    score_workers,
)
from telemetry.statistics.change_points import noise, normal_deviations, rise
from telemetry.statistics.peers import GAUSSIAN, lower_median, mean, median, middle
from telemetry.steps import StepBatch

# Duration of the whole steps that are read, before and after.
ENOUGH_S, MOST_S = 20.0, 120.0
# At this ratio of memory traffic per step the work differs.
FEWER_BYTES = 0.94
# Up to this difference the bytes per step are the same.
SAME_WORK = 0.08
# Tolerance for cores that are as busy as before.
AS_BUSY = 0.1


def score_overall(inputs: DetectionInput, steps: StepBatch, found: PhaseRise) -> list[CauseScore]:
    """Score why all workers compute for longer: memory, then clocks.

    Notes
    -----
    What the memories moved in whole steps, before and since, tells: as many bytes a step as ever
    are the same work done more slowly, for the clock is lower; fewer are less memory. Without
    bandwidth (real nodes do not report it) the cause is unknown.
    """
    before, after = _newest_seconds(steps[: found.at]), _newest_seconds(steps[found.at :])
    began_s = before.ended_at_s[0] - before.step_s[0] if len(before) else inputs.now_s
    back_s = min(float(inputs.now_s - began_s), MOST_S + ENOUGH_S)
    span = inputs.hardware(PART_METRICS, int(back_s) + 2)
    (was_bytes, was_busy), (is_bytes, is_busy) = (
        _per_step(span, each) for each in (before, after)
    )
    kept, busier = is_bytes / was_bytes, is_busy / was_busy
    if not (np.isfinite(kept) and np.isfinite(busier)):
        return []
    # With a single node, that node is the culprit.
    node = inputs.nodes[0] if len(inputs.nodes) == 1 else None
    device = 0 if node and span.values[BANDWIDTH].shape[2] == 1 else None
    starved = (1.0 - kept) / (1.0 - FEWER_BYTES)
    is_throttled = abs(kept - 1.0) <= SAME_WORK and busier >= 1.0 - AS_BUSY
    power = score_power_of_node(case_since(inputs, steps, found.at), node) if node else None
    if power is not None and inputs.n_stages > 1 and not power.stands_out:
        # A longer stage of the only node: as many bytes, and nothing waits for a slow device.
        longer = CauseScore(
            "stage_imbalance", float(is_throttled), "compute_s", found.now, found.usual, 0, "s"
        )
        return [longer]
    return [
        CauseScore(
            "hbm_slow", starved, BANDWIDTH, is_bytes, was_bytes, 0, "bytes_per_s", node, device
        ),
        CauseScore(
            "throttle",
            float(is_throttled),
            "compute_s",
            found.now,
            found.usual,
            0,
            "s",
            node,
            device,
        ),
    ]


def _newest_seconds(steps: StepBatch) -> StepBatch:
    """Keep the newest steps that cover ENOUGH_S, at least one."""
    lasted_s = np.cumsum(steps.step_s[::-1])
    return steps.last(1 + int(np.searchsorted(lasted_s, ENOUGH_S)))


def _per_step(span: Span, steps: StepBatch) -> tuple[float, float]:
    """Bytes moved per step, and mean core utilization; NaN where unknown."""
    is_read = all(name in span.values and span.values[name].shape[2] for name in PART_METRICS)
    if not is_read or not len(steps):
        return np.nan, np.nan
    ends = steps.ended_at_s
    edges_s = np.array([ends[0] - steps.step_s[0], ends[-1]])
    moved = _sum_between(span, BANDWIDTH, edges_s) / len(steps)
    return moved, _sum_between(span, UTILIZATION, edges_s) / float(np.diff(edges_s)[0])


def _sum_between(span: Span, metric: str, edges_s: FloatArray) -> float:
    """Integral of a rate between two moments, with partial ticks."""
    rate = mean(mean(span.values[metric].astype(float), axis=2), axis=1)
    known = np.isfinite(rate)
    if not known.any() or edges_s[0] < span.ticks[0] - 1 or edges_s[1] > span.ticks[-1] + 1:
        return float("nan")
    total = np.concatenate([[0.0], np.cumsum(np.where(known, rate, np.mean(rate[known])))])
    at_s = np.concatenate([[span.ticks[0] - 1], span.ticks])
    return float(np.diff(np.interp(edges_s, at_s, total))[0])


# Minimum rise of a phase that counts, as a share of the step.
LEAST_RATIO = RULES["step_slow"].limits["least_ratio"]
# A problem without a known cause must last longer, and rise above its variation. Now and then a
# healthy step is much longer: in simulated healthy runs, whose tail is assumed, this share of them
# by half of this rise. So many at once may happen by chance in one of so many windows.
UNKNOWN_RATIO = RULES["step_slow"].limits["unknown_ratio"]
UNKNOWN_S = 10.0
UNKNOWN_DEVIATIONS = 5.0
UNKNOWN_CHANCE = 3e-6
LONG_RISES, LONG_SHARES, LONG_MOST = (0.05, 0.10, 0.25), (0.09, 0.04, 0.001), 0.2
# A step that is longer by this many times the rise is something else.
PAUSE = 4.0
# A random delay may hit a worker twice in a row, but not by this much.
VERY_LATE_RATIO, ENOUGH_LATE = 0.12, 3
# A slow worker is late in this share of the steps since it became slow.
OFTEN_LATE = 0.75
# Random delays do not hit several workers of one stage at once.
STAGE_LATE_RATIO = 0.05
# A worker without a better past is slow by this share of a step, in this many steps.
BORN_SLOW_RATIO, BORN_SLOW_STEPS = 0.06, 16
# Executions of one node take longer than those of the others by this ratio, in both halves of so
# many seconds.
EXECUTES, EXECUTES_RATIO = "execution_latency_p50_s", 0.05
EXECUTED_S, EXECUTED_MOMENTS = 120.0, 24
# So many others are alike: the next one, and the scatter, stay below this part of the excess.
ENOUGH_PEERS, APART = 3, 0.3
# Required share of the slowdown of the steps.
EXPLAINS = 0.5
EXECUTED_REPORTS = 3
# Steps at their usual length that end an alert about whole steps.
EVEN_STEPS = 5
# Slow clocks slow each of these steps by the same factor, within this tolerance.
STEADY_STEPS, VARIES_RATIO = 3, 0.3
# Steps before a rise of one or two workers that are as short as ever.
JUMP_STEPS = 8
# This many workers slower by the same factor, within this tolerance, need only one step.
ENOUGH_ALIKE, ALIKE = 3, 0.15


def find_slow_exchange(inputs: DetectionInput, steps: StepBatch) -> list[Problem]:
    """Find transfers that take longer than before.

    The last one to arrive waits for no one: where its report is lost, the waits of the others seem
    to be transfer.
    """
    own_s = np.nan_to_num(busy_s(steps), nan=-np.inf)
    last = np.concatenate([[0], own_s.argmax(axis=1)[:-1]])
    steps = steps[np.isfinite(own_s[np.arange(len(steps)), last])]
    if not len(steps):
        return []
    found = _phase_rise(inputs, steps, median(steps.phases["transfer_s"]), "transferring")
    if found is None:
        return []
    scores = _prefer_open_cause(
        inputs, score_links(case_since(inputs, steps, found.at)), "transferring"
    )
    return _problems(inputs, steps, found, scores, "transferring")


def find_slow_compute(inputs: DetectionInput, steps: StepBatch) -> list[Problem]:
    """Find compute that takes even the fastest workers longer than before."""
    quickest_s = quickest_fifth(steps.phases["compute_s"])
    found = _phase_rise(inputs, steps, quickest_s, "computing")
    if found is None or not _is_steady(inputs, steps, quickest_s, found):
        return []
    scores = _prefer_open_cause(inputs, score_overall(inputs, steps, found), "computing")
    problems = _problems(inputs, steps, found, scores, "computing")
    return [_of_only_node(inputs, steps, found, each) for each in problems]


def find_slow_steps(inputs: DetectionInput, steps: StepBatch) -> list[Problem]:
    """Find steps that take longer than before where the exchange is not timed.

    Compute, wait and transfer cannot be separated then, nor a lower clock from a slower network.
    Memories that move fewer bytes per step still can. While a node is accused, the first slow step
    shows that its fault lasts.
    """
    found = _phase_rise(inputs, steps, work_s(steps), "step")
    if found is None:
        return []
    scores = [each for each in score_overall(inputs, steps, found) if each.cause != "throttle"]
    accused = any(each.node and each.cause in HARDWARE_CAUSES for each in inputs.open_problems)
    scores = _prefer_open_cause(inputs, scores, "step")
    problems = _problems(inputs, steps, found, scores, "step", is_explained=accused)
    after_s = work_s(steps)[found.at + 1 :]
    is_steady = len(after_s) > 1 and noise(after_s) <= STEADY * found.excess
    if not (is_steady and _is_one_jump(work_s(steps), found)):
        return problems
    return [_of_only_node(inputs, steps, found, each) for each in problems]


def _of_only_node(
    inputs: DetectionInput, steps: StepBatch, found: PhaseRise, problem: Problem
) -> Problem:
    """Accuse the only node of a run, which exchanges nothing with others.

    Long sequences would vary. A longer stage takes power for its work.
    """
    if len(inputs.nodes) > 1 or problem.node or problem.cause not in {UNKNOWN, *CLASSES}:
        return problem
    (node,) = inputs.nodes
    score: CauseScore | None = CauseScore(
        "slow_compute", 1.0, "compute_s", found.now, found.usual, 0, "s", node
    )
    if inputs.n_stages > 1:
        score = score_power_of_node(case_since(inputs, steps, found.at), node)
    if score is None or not score.stands_out:
        return problem
    return replace(problem, cause=score.cause, score=score)


def _is_steady(
    inputs: DetectionInput, steps: StepBatch, quickest_s: FloatArray, found: PhaseRise
) -> bool:
    """Whether a few workers compute for longer by the same amount in every step.

    With many workers the fastest fifth is enough; few may all have long sequences, and so may many
    whose sequences are known to differ much.
    """
    is_uneven = _is_uneven(inputs)
    is_open = open_baseline(inputs, steps, kind="computing") is not None
    if is_open or (len(steps.workers) >= MANY_WORKERS and not is_uneven):
        return True
    compute = steps.phases["compute_s"]
    factor = compute[-1] / median(compute[: found.at].T)
    excess = float(median(factor)) - 1.0
    is_alike = excess > 0 and float(np.ptp(factor)) <= ALIKE * excess
    if len(steps.workers) >= ENOUGH_ALIKE and is_alike:
        # All workers are slower by the same factor; sequence lengths would differ.
        return True
    if len(steps.workers) < ENOUGH_ALIKE and not _is_one_jump(quickest_s, found):
        return False
    newest = quickest_s[found.at :][-STEADY_STEPS:]
    n_steps = STEADY_STEPS if is_uneven or len(steps.workers) < ENOUGH_ALIKE else STEADY_STEPS - 1
    return len(newest) >= n_steps and float(np.ptp(newest)) <= VARIES_RATIO * found.excess


def _is_one_jump(x: FloatArray, found: PhaseRise) -> bool:
    """Whether all steps since the rise of ``x`` are long, and none of those shortly before it.

    Of one or two workers, sequences that are long by chance are so now and then.
    """
    is_long = x > found.usual + HALF * found.excess
    before = is_long[max(0, found.at - JUMP_STEPS) : found.at]
    return bool(is_long[found.at :].all() and not before.any())


def _is_uneven(inputs: DetectionInput) -> bool:
    """Whether an open alert says that the work of the workers differs from step to step."""
    return any(each.cause == "seq_imbalance" for each in inputs.open_problems)


def find_late_workers(inputs: DetectionInput, steps: StepBatch) -> list[Problem]:
    """Find workers that compute or rest for longer than their peers, step after step.

    Notes
    -----
    Rests between executions have no input time in a runtime trace: a stuck loader or a slow link
    to the host looks like them. Without a busier host their cause is unknown.
    The worker that waits least is late. Its own time is compared with that
    of its peers, and with how late it used to be: a stage that always took longer is a layout.
    """
    if len(steps.workers) < 2 or len(steps) < 2:
        return []
    newest = steps[-n_newest(steps) :]
    late, is_open = lateness(newest), open_baseline(inputs, steps, kind="waiting") is not None
    if late.pattern != "steady" and is_open:
        # A random delay of another worker does not end an alert.
        late = lateness(_since_onset(inputs, steps)[-RECENT_STEPS:])
    # Of few workers with uneven work, one is the last in several steps by chance.
    is_chance = _is_uneven(inputs) and not lateness(steps[-RECENT_STEPS:]).is_steady
    if late.pattern != "steady" or late.phase not in MACHINE_PHASES or is_chance:
        return []
    own = busy_s(steps)
    lag_s = own[:, late.worst] - lower_median(own)
    found = _lag(inputs, steps, lag_s, len(newest))
    if found is None or _comes_and_goes(lag_s, newest, found, late, is_open=is_open):
        return []
    scores = score_workers(case_since(inputs, steps, found.at), late)
    node = inputs.node_of(steps.workers[late.worst])
    if found.at < ENOUGH_LATE:
        scores = _prefer_open_cause(inputs, scores, "waiting", nodes=(node, None))
    # Only steady rests beyond chance accuse a node. An open alert needs less.
    held = {alert.node for alert in inputs.open_problems if alert.rule == "step_slow"} - {None}
    if late.phase != "compute_s" and strongest(scores) is None and node not in held:
        return []
    is_alone = inputs.n_stages == 1 and late.is_steady and len(late.late) == 1
    ratio = found.excess / middle(work_s(steps))
    is_born_slow = is_alone and ratio >= BORN_SLOW_RATIO and len(steps) >= BORN_SLOW_STEPS
    best = _known_cause(scores)
    is_accused = best is not None and best.node is not None
    # A worker without a better past may always have had more work. Without stages all workers have
    # the same work: one clearly later than all others in each of many steps is slow.
    may_be_layout = found.at < ENOUGH_LATE and not is_accused and not is_born_slow
    may_be = may_be_layout or _may_be_chance(steps, found, late, scores)
    if may_be and not is_open:
        return []
    names = tuple(steps.workers[i] for i in late.late)
    return _problems(inputs, steps, found, scores, "waiting", late=names)


def _since_onset(inputs: DetectionInput, steps: StepBatch) -> StepBatch:
    """Return the steps since an open alert about waiting began; all if none ended since."""
    held = [each for each in inputs.open_problems if each.evidence.get("kind") == "waiting"]
    since_s = min((onset_of_alert(each, inputs.now_s) for each in held), default=-np.inf)
    since = steps.ended_at_s > since_s
    return steps[since] if since.any() else steps


def _comes_and_goes(
    lag_s: FloatArray, newest: StepBatch, found: PhaseRise, late: Lateness, *, is_open: bool
) -> bool:
    """Whether a worker is late in some steps only, or for another reason each time.

    With uneven work some worker is late several times in a row, and not before. One that waits for
    data in a step and collects garbage in the next one is late by chance.
    """
    since_s = lag_s[found.at :][-RECENT_STEPS:] - found.usual
    if not is_open and (since_s >= HALF * found.excess).mean() < OFTEN_LATE:
        return True
    lost_s = newest.phases[late.phase]
    each_s = lost_s[:, late.worst] - lower_median(lost_s)
    return late.phase != "compute_s" and float(each_s.min()) < HALF * HALF * found.excess


def find_slow_executions(
    inputs: DetectionInput, steps: StepBatch, longer: Problem
) -> list[Problem]:
    """Find a node whose executions take longer than those of all others.

    ``longer``: the steps that became longer; executions are compared for at most EXECUTED_S.

    Without stages all nodes execute the same graph on as much data. Where each execution exchanges
    gradients, all take as long as the slowest, and none stands out. Nor do any say who is slow
    where their work differs.
    """
    differs = inputs.n_stages > 1 or _is_uneven(inputs)
    if differs or inputs.hardware_at is None or len(steps) < BORN_SLOW_STEPS:
        return []
    # A random delay makes one step of one node longer.
    if (steps.ended_at_s > longer.onset_s).sum() < PERSISTS_STEPS:
        return []
    # A report may hold executions of before.
    back_s = min(EXECUTED_S, inputs.now_s - longer.onset_s - inputs.report_every_s)
    if back_s < EXECUTED_REPORTS * inputs.report_every_s:
        return []
    ages_s = np.linspace(back_s, 0, EXECUTED_MOMENTS).astype(int).tolist()
    span = inputs.hardware_at([EXECUTES], ages_s).of(training_nodes(inputs, steps))
    latency_s = node_values(span, EXECUTES)
    typical_s = median(latency_s.T)
    if len(span.nodes) <= ENOUGH_PEERS or not np.isfinite(typical_s).all():
        return []
    usual_s = float(lower_median(typical_s))
    excess = np.sort(typical_s / usual_s - 1.0)
    node = span.nodes[int(np.argmax(typical_s))]
    own = latency_s[:, int(np.argmax(typical_s))] / usual_s - 1.0
    own = own[np.isfinite(own)]
    is_open = any(a.node == node and a.rule == "step_slow" for a in inputs.open_problems)
    least = EXECUTES_RATIO * (HALF if is_open else 1.0)
    is_lasting = min(middle(half) for half in np.array_split(own, 2)) >= least
    scatter = GAUSSIAN * middle(np.abs(own - middle(own)))
    is_apart = max(float(excess[-2]), scatter) <= APART * excess[-1]
    # One that takes a little longer does not explain steps that take much longer.
    now_s, before_s = (longer.extra.get(key) for key in ("phase_s", "baseline_phase_s"))
    rise = now_s / before_s - 1.0 if now_s and before_s else 0.0
    is_enough = float(excess[-1]) >= EXPLAINS * (HALF if is_open else 1.0) * rise
    if not (is_lasting and is_apart and is_enough):
        return []
    value_s, n_peers = float(typical_s.max()), len(span.nodes) - 1
    strength = float(excess[-1]) / EXECUTES_RATIO
    score = CauseScore("slow_compute", strength, EXECUTES, value_s, usual_s, n_peers, "s", node)
    began_s = max(float(span.ticks[0]), float(steps.ended_at_s[0] - steps.step_s[0]))
    # Whole steps, and what was usual for them, show later that it lasts.
    extra = {**longer.extra, "kind": longer.kind}
    return [Problem("slow_compute", score, "waiting", began_s, strength, extra=extra)]


def find_late_worker(inputs: DetectionInput, timed: StepBatch, longer: Problem) -> list[Problem]:
    """Find the worker for which all others wait since their steps became ``longer``.

    ``timed``: the steps with a known wait: one in twenty, or those that a requested trace covers.

    None of them need be older than the fault, and a worker that is always late may have more work.
    One that is late by what the steps became longer by is slow. Uneven work would make the others
    unlike, too.
    """
    began_s = timed.ended_at_s - timed.step_s
    since = timed[began_s >= longer.onset_s].last(RECENT_STEPS)
    is_open = any(each.node and each.rule == "step_slow" for each in inputs.open_problems)
    if len(timed.workers) < 2 or len(since) < PERSISTS_STEPS:
        return []
    late = lateness(since)
    node = inputs.node_of(since.workers[late.worst])
    is_machine = late.is_steady and late.phase in MACHINE_PHASES
    if node is None or not is_machine or len(late.late) != 1 or _is_stage(inputs, late.worst):
        return []
    own = busy_s(since)
    delay_s = middle(own[:, late.worst] - lower_median(own))
    others_s = np.delete(own, late.worst, axis=1) - lower_median(own)[:, None]
    is_apart = others_s.shape[1] >= ENOUGH_PEERS and bool(
        (np.nanmax(others_s, axis=1) <= APART * delay_s).all()
    )
    if not (is_apart or late.is_beyond_chance):
        return []
    now_s, before_s = (longer.extra.get(key) for key in ("phase_s", "baseline_phase_s"))
    rise_s = now_s - before_s if now_s and before_s else 0.0
    if delay_s < EXPLAINS * (HALF if is_open else 1.0) * rise_s:
        return []
    best = _known_cause(score_workers(case_since(inputs, since, 0), late))
    if best is not None and best.node != node:
        return []
    value_s, usual_s = float(late.own_s[late.worst]), float(lower_median(late.own_s))
    cause = CAUSE_OF_PHASE.get(late.phase, UNKNOWN)
    strength = delay_s / (LEAST_RATIO * middle(work_s(since)))
    score = best or CauseScore(cause, strength, "own_s", value_s, usual_s, late.n_peers, "s", node)
    # Whole steps, and what was usual for them, show later that it lasts.
    extra = {**longer.extra, "kind": longer.kind}
    names = (since.workers[late.worst],)
    return [
        Problem(score.cause, score, "waiting", longer.onset_s, strength, late=names, extra=extra)
    ]


def _is_stage(inputs: DetectionInput, worker: int) -> bool:
    """Whether a worker is a pipeline stage of its own: its work may differ from all others'."""
    return inputs.n_stages > 1 and bool((inputs.stage == inputs.stage[worker]).sum() < 2)


def _lag(
    inputs: DetectionInput, steps: StepBatch, excess: FloatArray, n_now: int
) -> PhaseRise | None:
    """Rise of the delay of the latest worker."""
    least_s = LEAST_RATIO * middle(work_s(steps))
    held_s = open_baseline(inputs, steps, kind="waiting")
    calm = excess - (held_s or 0.0) < HALF * least_s
    # One step in between may be healthy: another worker was delayed.
    quiet = np.flatnonzero(calm[1:] & calm[:-1])
    at = int(quiet[-1]) + 2 if quiet.size else 0
    # If steps vary all the time, the likeliest change defines the usual value.
    change = rise(excess, floor=least_s / 6) if at < ENOUGH_LATE and held_s is None else None
    at = change.at if change is not None else at
    usual = max(0.0, middle(excess[:at])) if at >= ENOUGH_LATE else held_s or 0.0
    found = PhaseRise(usual, middle(excess[-n_now:]), min(at, len(steps) - 1))
    enough_s = least_s * (1.0 if held_s is None else HALF)
    newest = excess[-min(2, len(steps) - found.at) :]
    # Each of the newest steps must confirm it. A random delay of a worker that is always a little
    # late does not. An open alert lasts through one step in which another worker is delayed.
    least = float(newest.min() if held_s is None else newest.max())
    if found.excess < enough_s or least - found.usual < HALF * least_s:
        return None
    return found


def _may_be_chance(
    steps: StepBatch, found: PhaseRise, late: Lateness, scores: list[CauseScore]
) -> bool:
    """Whether a single delay may be chance, without a hardware symptom.

    Delays are rare, but workers are many: a single worker must be late in three steps, or very
    late in two. Several late workers of one stage are not chance.
    """
    best = _known_cause(scores)
    # A single value of power may be of a pause that begins; a host may be busy by chance.
    is_weak = best is not None and best.metric in (POWER, HOST) and best.device is None
    if best is not None and best.node is not None and not is_weak:
        return False
    n_steps, ratio = _n_alike(steps[found.at :], late), found.excess / middle(work_s(steps))
    very = ratio >= VERY_LATE_RATIO
    if best is not None and best.cause == "stage_imbalance" and len(late.late) > 1:
        return n_steps < ENOUGH_LATE and ratio < STAGE_LATE_RATIO
    return n_steps < (ENOUGH_LATE - 1 if very else ENOUGH_LATE)


def _n_alike(steps: StepBatch, late: Lateness) -> int:
    """Count the steps in which the latest worker is late by the phase in which it mostly is."""
    of_step, of_phase = (
        values[:, late.worst] - lower_median(values)
        for values in (busy_s(steps), steps.phases[late.phase])
    )
    return int((of_phase >= HALF * of_step).sum())


def _known_cause(scores: list[CauseScore]) -> CauseScore | None:
    """Return the strongest score, if it names a cause."""
    best = strongest(scores)
    return best if best is not None and best.cause != UNKNOWN else None


def _phase_rise(
    inputs: DetectionInput, steps: StepBatch, x: FloatArray, kind: Kind
) -> PhaseRise | None:
    """Rise of a phase over the past of the run, or over the baseline of an open alert."""
    least_s = LEAST_RATIO * middle(work_s(steps))
    usual = open_baseline(inputs, steps, kind=kind)
    # Whole steps vary: a few short ones do not end an alert.
    n_to_resolve, n_since = PERSISTS_STEPS, 0
    if kind == "step":
        held = [each for each in inputs.open_problems if each.evidence.get("kind") == kind]
        onset_s = max((onset_of_alert(each, inputs.now_s) for each in held), default=inputs.now_s)
        n_to_resolve, n_since = EVEN_STEPS, int((steps.ended_at_s > onset_s).sum())
    return find_rise(
        x,
        least=least_s,
        n_now=n_newest(steps),
        usual=usual,
        n_to_resolve=n_to_resolve,
        n_since=n_since,
    )


def _prefer_open_cause(
    inputs: DetectionInput,
    scores: list[CauseScore],
    kind: Kind,
    *,
    nodes: tuple[str | None, ...] = (),
) -> list[CauseScore]:
    """Keep the cause of an open alert: hardware recovers before slow steps end.

    ``nodes``: only of an alert that accuses one of them; empty: of any.
    """
    for alert in inputs.open_problems:
        held = alert.evidence
        is_known = held.get("kind") == kind and held.get("baseline_phase_s") is not None
        if is_known and alert.cause != UNKNOWN and (not nodes or alert.node in nodes):
            same = [e for e in scores if (e.cause, e.node) == (alert.cause, alert.node)]
            return [each for each in same if each.stands_out] or [score_of_alert(alert)]
    return scores


def _problems(
    inputs: DetectionInput,
    steps: StepBatch,
    found: PhaseRise,
    scores: list[CauseScore],
    kind: Kind,
    *,
    late: tuple[str, ...] = (),
    is_explained: bool = False,
) -> list[Problem]:
    """Name the cause; without one, only a lasting and large rise is a problem.

    ``is_explained``: an open alert of a node explains it anyway.
    """
    best = strongest(scores)
    after = steps[found.at :]
    step_s = middle(work_s(steps))
    ratio = found.excess / step_s
    is_open = open_baseline(inputs, steps, kind=kind) is not None
    has_cause = is_explained or is_open or _known_cause(scores) is not None
    if not has_cause and not _is_certain(steps, found, kind):
        return []
    tokens = float(steps.tokens[-1])
    return [
        Problem(
            cause=best.cause if best else UNKNOWN,
            score=best,
            kind=kind,
            onset_s=float(after.ended_at_s[0] - after.step_s[0]),
            strength=ratio / LEAST_RATIO,
            late=late,
            ruled_out=tuple(x for x in scores if x is not best and not x.stands_out),
            extra={
                "phase_s": found.now,
                "baseline_phase_s": found.usual,
                "tokens": tokens if np.isfinite(tokens) else None,
            },
        )
    ]


def _is_certain(steps: StepBatch, found: PhaseRise, kind: Kind) -> bool:
    """Whether a rise without a known cause is long, large and beyond chance."""
    work, at = work_s(steps), found.at
    step_s = middle(work)
    ratio = found.excess / step_s
    # A checkpoint between two steps makes neither of them last.
    if float(work[at:].sum()) < UNKNOWN_S:
        return False
    if kind == "transferring" and found.now >= CLEARLY * found.usual:
        # Transfers alone vary little: where they take twice as long, that is the network.
        return True
    if ratio < UNKNOWN_RATIO:
        return False
    if not at:
        return True
    # Much longer steps are of a pause, or of an earlier problem.
    before = work[:at][work[:at] - middle(work[:at]) <= PAUSE * found.excess]
    deviations = normal_deviations(before, work[at:], floor=LEAST_RATIO * step_s / 6)
    return (
        deviations >= UNKNOWN_DEVIATIONS and _chance_of_long(work, found, ratio) <= UNKNOWN_CHANCE
    )


def _chance_of_long(work: FloatArray, found: PhaseRise, ratio: float) -> float:
    """Probability of so many long steps since the onset, if steps are as long as before."""
    longer_s = work - middle(work[: found.at])
    is_long = longer_s > HALF * found.excess
    before, since = is_long[: found.at], is_long[found.at :]
    # A pause, as for a new graph, is no long step.
    before = before & (longer_s[: found.at] <= PAUSE * found.excess)
    healthy = np.exp(np.interp(ratio, LONG_RISES, np.log(LONG_SHARES)))
    often = max(healthy, min(LONG_MOST, before.mean()))
    n = since.size
    return math.fsum(
        math.comb(n, k) * often**k * (1.0 - often) ** (n - k) for k in range(since.sum(), n + 1)
    )
