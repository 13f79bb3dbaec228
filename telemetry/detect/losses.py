"""What a run loses a little at a time: recurring long steps, and cost that drifts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.detect.causes import CAUSE_OF_PHASE, UNKNOWN
from telemetry.detect.findings import CauseScore, Problem
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.pace import (
    HALF,
    busy_s,
    comparable_steps,
    quickest_fifth,
    work_s,
)
from telemetry.detect.rules import RULES
from telemetry.detect.slow import STEADY_STEPS, UNKNOWN_S
from telemetry.detect.stragglers import UNEVEN_WORK, steps_beyond_chance
from telemetry.statistics.change_points import noise
from telemetry.statistics.peers import chance_of_sum, median, middle
from telemetry.steps import PHASES, StepBatch

# A step is long from this excess on, as a share of the usual step and in deviations.
LONG_RATIO, LONG_DEVIATIONS = 0.15, 6.0
# At most this share of the steps is long; more is another pace.
MOST_LONG_RATIO = 0.35
# The cumulative sum grows by the excess of each step over this share of the usual step. At this
# many usual steps it is a problem; at fewer if the same worker is late each time, and at half if
# steps have an open alert already.
ALLOWED_RATIO, LIMIT_STEPS, LIMIT_OF_WORKER_STEPS = 0.02, 1.5, 0.5
# Such delays last as long in runs with short steps: where no worker stands out, so much is lost.
LIMIT_S = 5.0
# Less of the time than this is no problem where no worker is accused.
LEAST_LOST_RATIO = 0.05
# Of many workers, some wait for a batch or collect garbage now and then, and that adds up. Where
# no worker stands out, what so many seconds before lost in that way is usual.
EARLIER_S, ENOUGH_EARLIER_S = 840.0, 60.0
# Chance makes a run lose that much more than usual this often. Long steps that are alike and come
# at even intervals are hardly chance, even if little is known of the past.
CHANCES_OF_LOSS = {"uneven": 1e-6, "even": 0.1}
# A step that loses so much, and takes twice as long, is a standstill.
STANDSTILL_S = 30.0
OPEN_KINDS = ("waiting", "computing", "step")
MOST_TIMES = 3.0
# Long steps in a row count once. So many such episodes, over so long, are neither chance nor the
# start of something lasting; one more where no worker stands out.
EPISODES, SPREAD_S = 3, 30.0
# It is over after this many times the usual time between episodes.
OVER_TIMES = 2.5
# In this share of the long steps the same worker takes longest, by this share of the excess.
SAME_RATIO, OWN_RATIO = 0.75, 0.5
# Pauses hit the same worker again by chance this often, where they last alike and where not. A
# run has thousands of them a day.
CHANCES, ALIKE_RATIO = (1e-3, 1e-5), 0.35
# The phases that one worker may spend longer in. A process that stops may have many causes.
LONG_PHASES = ("compute_s", "input_s", "other_s")


@dataclass(frozen=True, slots=True)
class LongSteps:
    """Steps of which some took longer, while those in between are as fast as before.

    ``lasted_s`` and ``excess_s`` (n_steps,) seconds, the second over ``usual_s``; ``counted``
    (n_steps,) what counts of it, in usual steps; ``rows`` are those of the long steps, and
    ``episodes`` the first ones of those in a row.
    """

    steps: StepBatch
    usual_s: float
    lasted_s: FloatArray
    excess_s: FloatArray
    counted: FloatArray
    rows: IntArray
    episodes: IntArray

    @property
    def began_s(self) -> float:
        """When the first long step began: Unix seconds."""
        return float(self.steps.ended_at_s[self.rows[0]] - self.steps.step_s[self.rows[0]])

    @property
    def spread_s(self) -> float:
        """Time from the first episode to the last."""
        first, last = self.steps.ended_at_s[self.episodes[[0, -1]]]
        return float(last - first)

    @property
    def every_s(self) -> float:
        """Mean time between two episodes."""
        return self.spread_s / (len(self.episodes) - 1)


def find_intermittent_loss(inputs: DetectionInput, steps: StepBatch) -> list[Problem]:
    """Find steps that take long again and again, while most are as fast as before.

    A node is accused where the same one is late in nearly all of the long steps.

    References
    ----------
    E. S. Page, "Continuous Inspection Schemes", Biometrika 41 (1954), 100-115: the cumulative
    sum.
    """
    found = _recurring(steps)
    if found is None:
        return []
    steps, rows = found.steps, found.rows
    late = _late_in_each(steps, rows, found.excess_s)
    usual = int(np.bincount(late + 1).argmax()) - 1
    worker = usual if usual >= 0 and (late == usual).mean() >= SAME_RATIO else None
    node = None if worker is None else inputs.node_of(steps.workers[worker])
    # With uneven work some worker is late again and again: the same one, by chance.
    is_uneven = any(each.cause == UNEVEN_WORK for each in inputs.open_problems)
    is_few = _may_hit_same(found.excess_s[rows[late == usual]], len(steps.workers))
    if is_uneven and (worker is None or is_few or (late != usual).any()):
        return []
    held = [each for each in inputs.open_problems if each.evidence.get("kind") in OPEN_KINDS]
    # Between two long steps the sum falls: an alert stays open until the next one is overdue.
    is_open = any("every_s" in each.evidence for each in inputs.open_problems)
    is_open |= any(each.node == node is not None for each in held)
    limit = LIMIT_OF_WORKER_STEPS
    if worker is None:
        limit = max(LIMIT_STEPS, LIMIT_S / found.usual_s)
    total = float(cumulative_sum(found.counted - ALLOWED_RATIO)[-1])
    strength = total / (limit * (HALF if is_open or held else 1.0))
    if worker is None and not is_open and strength >= 1 and _is_usual(inputs, found):
        strength = 0.0
    # Long steps of another problem that is over are not a new one.
    most_s = found.every_s * (OVER_TIMES if is_open else 1.0)
    is_over = inputs.now_s - float(steps.ended_at_s[rows[-1]]) > most_s
    strength = max(strength, float(is_open))
    # If another worker makes the newest steps long, the earlier loss is over.
    newest = late[rows >= found.episodes[-1]]
    is_over |= not is_open and worker is not None and worker not in newest
    score = None if worker is None else _score_late_phase(inputs, steps, rows, worker, strength)
    # Of few workers one waits for data, or stops, a few times in a row by chance. What stops a
    # process may count as compute; it makes one step long, not several in a row.
    is_single = len(rows) == len(found.episodes)
    is_chance = score is not None and is_few and not is_open
    is_chance &= is_single or (score is not None and score.metric != "compute_s")
    if strength < 1 or is_over or is_chance or found.spread_s < SPREAD_S:
        return []
    return [
        Problem(
            cause=UNKNOWN if score is None else score.cause,
            score=score,
            kind="step" if score is None else "waiting",
            onset_s=found.began_s,
            strength=strength,
            late=() if worker is None else (steps.workers[worker],),
            extra={
                "step_s": middle(found.lasted_s[rows]),
                "baseline_step_s": found.usual_s,
                "every_s": found.every_s,
            },
        )
    ]


def _recurring(steps: StepBatch) -> LongSteps | None:
    """Return the long steps since the cumulative sum was last zero; None of too few."""
    lasted_s = work_s(steps)
    stood = np.flatnonzero(_stands_still(lasted_s))
    if len(stood):
        # After a standstill that has ended, another time begins.
        steps, lasted_s = steps[stood[-1] + 1 :], lasted_s[stood[-1] + 1 :]
    usual_s, excess_s, is_long = _long_steps(lasted_s)
    if is_long.sum() < EPISODES:
        return None
    # The longest one may be by chance: it counts as the second longest. Those that are longer than
    # most by far may be of another problem.
    most_s = min(np.sort(excess_s[is_long])[-2], MOST_TIMES * middle(excess_s[is_long]))
    counted = np.where(is_long, np.minimum(excess_s, most_s), 0.0) / usual_s
    reset = np.flatnonzero(cumulative_sum(counted - ALLOWED_RATIO) <= 0)
    rows = np.flatnonzero(is_long)
    rows = rows[rows > reset[-1]] if len(reset) else rows
    episodes = rows[np.diff(rows, prepend=-2) > 1]
    if len(episodes) < EPISODES:
        return None
    # In between, steps are as fast as ever, or another pace has begun.
    since_s = lasted_s[rows[0] :]
    is_short = since_s < usual_s + HALF * middle(excess_s[rows])
    slower_s = middle(since_s[is_short]) - float(quickest_fifth(lasted_s[None])[0])
    if is_short.mean() < HALF or slower_s > HALF * middle(excess_s[rows]):
        return None
    return LongSteps(steps, usual_s, lasted_s, excess_s, counted, rows, episodes)


def _may_hit_same(own_s: FloatArray, n_workers: int) -> bool:
    """Whether pauses of these lengths may hit one of the workers by chance, some time in a day."""
    chance = CHANCES[0 if _is_alike(own_s) else 1]
    return len(own_s) < steps_beyond_chance(n_workers, chance=chance)


def _long_steps(lasted_s: FloatArray) -> tuple[float, FloatArray, NDArray[np.bool_]]:
    """Usual step time (seconds), the excess of each step (seconds), and which ones are long.

    None are if so many are that it is another pace.
    """
    usual_s = middle(lasted_s)
    excess_s = lasted_s - usual_s
    is_long = excess_s >= max(LONG_RATIO * usual_s, LONG_DEVIATIONS * noise(lasted_s))
    # Steps that stay long are a lasting problem, which other rules find. It may have begun before.
    edges = np.flatnonzero(np.diff(is_long, prepend=False, append=False))
    for first, end in edges.reshape(-1, 2):
        is_lasting = first == 0 or lasted_s[first:end].sum() >= UNKNOWN_S
        if end - first >= STEADY_STEPS and is_lasting:
            is_long[first:end] = False
    is_long &= is_long.sum() <= MOST_LONG_RATIO * len(lasted_s)
    return usual_s, excess_s, is_long


def _stands_still(lasted_s: FloatArray) -> NDArray[np.bool_]:
    """Whether the run stood still in a step: a hang, say, which other rules find."""
    return np.asarray(lasted_s - middle(lasted_s) >= max(STANDSTILL_S, middle(lasted_s)))


def _is_usual(inputs: DetectionInput, found: LongSteps) -> bool:
    """Whether long steps of no worker in particular may be what a run loses anyway.

    Only now it is worth reading the past. The newest long step may be the first of many.
    """
    rows = found.rows
    lost_ratio = float(found.excess_s[rows].sum()) / float(inputs.now_s - found.began_s)
    is_few = len(found.episodes) <= EPISODES or lost_ratio < LEAST_LOST_RATIO
    if is_few or rows[-1] == len(found.steps) - 1:
        return True
    is_even = _is_even(found.excess_s[rows], found.steps.ended_at_s[rows])
    chance = _chance_of_loss(inputs, found.counted[rows[0] :], found.began_s)
    return chance > CHANCES_OF_LOSS["even" if is_even else "uneven"]


def _is_even(excess_s: FloatArray, ended_at_s: FloatArray) -> bool:
    """Whether long steps last alike and come at even intervals, small ones left aside."""
    is_large = excess_s >= HALF * np.sort(excess_s)[-2]
    if is_large.sum() <= EPISODES:
        return False
    return _is_alike(excess_s[is_large]) and _is_alike(np.diff(ended_at_s[is_large]))


def _is_alike(x: FloatArray) -> bool:
    return float(np.ptp(x)) <= ALIKE_RATIO * middle(x)


def _chance_of_loss(inputs: DetectionInput, lost: FloatArray, began_s: float) -> float:
    """How likely a run loses so much by chance, by what it lost before: 1 if it is too young.

    Parameters
    ----------
    lost : (n_steps,) loss by long steps, in usual steps
    began_s : when the first of them began, Unix seconds
    """
    if inputs.earlier is None:
        return 0.0
    past = inputs.earlier(inputs.now_s - EARLIER_S).reported
    past = past[past.ended_at_s < began_s]
    if not len(past) or began_s - past.ended_at_s[0] < ENOUGH_EARLIER_S:
        return 1.0
    usual_s, excess_s, is_long = _long_steps(lasted_s := work_s(comparable_steps(past)))
    before = np.where(is_long & ~_stands_still(lasted_s), excess_s, 0.0) / usual_s
    # A short past that has none proves little.
    before = np.append(before, lost.max())
    return chance_of_sum(float(lost.sum()), n=len(lost), past=before)


def cumulative_sum(x: FloatArray) -> FloatArray:
    """Sum that starts again at zero wherever it would become negative: (n,)."""
    total = np.cumsum(x)
    return np.asarray(total - np.minimum(np.minimum.accumulate(total), 0.0))


def _late_in_each(steps: StepBatch, rows: IntArray, excess_s: FloatArray) -> IntArray:
    """Worker that makes each long step long: (n_rows,); -1 where none does, or it is unknown.

    Without a timed exchange it is unknown who waits.
    """
    own_s = busy_s(steps)
    if len(steps.workers) < 2 or not np.isfinite(own_s[rows]).any(axis=1).all():
        return np.full(len(rows), -1)
    own_excess_s = np.nan_to_num(own_s[rows] - median(own_s.T), nan=-np.inf)
    is_late = own_excess_s.max(axis=1) >= OWN_RATIO * excess_s[rows]
    return np.where(is_late, own_excess_s.argmax(axis=1), -1)


def _score_late_phase(
    inputs: DetectionInput, steps: StepBatch, rows: IntArray, worker: int, strength: float
) -> CauseScore:
    """Score the phase in which the worker loses the most time."""
    phases = {name: steps.phases[name][:, worker] for name in LONG_PHASES}
    long_s = {name: middle(values[rows]) for name, values in phases.items()}
    usual_s = {name: middle(values) for name, values in phases.items()}
    phase = max(phases, key=lambda name: np.nan_to_num(long_s[name] - usual_s[name]))
    return CauseScore(
        cause=CAUSE_OF_PHASE.get(phase, UNKNOWN),
        strength=strength,
        metric=phase,
        value=long_s[phase],
        peers_median=usual_s[phase],
        n_peers=len(steps.workers) - 1,
        unit="s",
        node=inputs.node_of(steps.workers[worker]),
    )


DRIFT = "cost_drift"
DRIFT_LIMITS = RULES[DRIFT].limits
# Planned pauses are not part of the pace.
PLANNED = ("checkpoint_s", "other_s")


@dataclass(frozen=True, slots=True)
class MinutePace:
    """The pace of a run, minute by minute.

    ``began_s`` (n,) Unix seconds; ``cost`` (n,) node-seconds per token, NaN where no step ended;
    ``tokens`` and ``n_active`` (n,) tokens and active workers of the usual step.
    """

    began_s: FloatArray
    cost: FloatArray
    tokens: FloatArray
    n_active: FloatArray

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def layout(self) -> tuple[float, float]:
        """Tokens per step and active workers, by the later half of the minutes."""
        late = len(self) // 2
        return float(np.nanmedian(self.tokens[late:])), float(np.median(self.n_active[late:]))


@dataclass(frozen=True, slots=True)
class Drift:
    """``ratio``: excess over the expected cost, in the half of the window with the lower cost."""

    ratio: float
    cost: float
    expected: float


def pace_of(minutes: StepBatch, *, nodes_per_worker: float) -> MinutePace:
    """Compute the pace from the average step of each minute.

    Notes
    -----
    ``cost = nodes at work * (step_s less checkpoints and evaluation) / tokens``. It is dollars
    per token at any price, and stays as it is where the batch grows or nodes leave.
    """
    reported = np.stack([minutes.phases[phase] for phase in PHASES], axis=-1)
    known = np.isfinite(reported)
    filled = np.where(known, reported, 0.0)
    planned = sum(filled[..., PHASES.index(phase)] for phase in PLANNED)
    # A step without phases counts as work.
    is_divided = known[..., : PHASES.index("checkpoint_s")].any(axis=-1)
    work = filled.sum(axis=-1) - np.where(is_divided, planned, 0.0)
    active = known.any(axis=-1)
    n_active = active.sum(axis=1)
    step_s = np.where(active, work, 0.0).sum(axis=1) / np.maximum(n_active, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = n_active * nodes_per_worker * step_s / minutes.tokens
    cost = np.where((step_s > 0) & np.isfinite(cost), cost, np.nan)
    return MinutePace(minutes.ended_at_s, cost, minutes.tokens, n_active.astype(float))


def unexplained_minutes(pace: MinutePace, explained: FloatArray) -> NDArray[np.bool_]:
    """Minutes with a known cost outside all explained spans (m, 2): (n,) flags."""
    inside = (pace.began_s[:, None] >= explained[:, 0]) & (
        pace.began_s[:, None] <= explained[:, 1]
    )
    return np.asarray(~inside.any(axis=1) & np.isfinite(pace.cost))


def is_same_layout(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether two layouts have the same tokens per step and the same number of workers."""
    return all(
        abs(a - b) <= DRIFT_LIMITS["alike_ratio"] * abs(b) for a, b in zip(one, other, strict=True)
    )


def drift(
    pace: MinutePace, explained: FloatArray, *, expected: float, limit_ratio: float
) -> Drift | None:
    """Return the excess of the cost over the expected cost; None where it is not certain.

    Notes
    -----
    Both halves of the window must be above the limit by their medians, each by enough minutes
    that no other alert explains, of the layout that the run has now.
    """
    layout = pace.layout
    same = np.abs(pace.tokens - layout[0]) <= DRIFT_LIMITS["alike_ratio"] * layout[0]
    usable = unexplained_minutes(pace, explained) & same & (pace.n_active == layout[1])
    middle = (pace.began_s[0] + pace.began_s[-1]) / 2
    halves = [pace.cost[usable & side] for side in (pace.began_s < middle, pace.began_s >= middle)]
    if min(map(len, halves)) < DRIFT_LIMITS["least_minutes"] / 2:
        return None
    cost = min(float(np.median(half)) for half in halves)
    ratio = cost / expected - 1
    return Drift(ratio, cost, expected) if ratio > limit_ratio else None
