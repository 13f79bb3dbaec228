"""The rule allreduce_share: too much of each step is exposed gradient communication."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.detect.causes import LINK_CAUSES, UNKNOWN, default_of
from telemetry.detect.fabric import score_links
from telemetry.detect.findings import (
    LEAD_S,
    CauseScore,
    Finding,
    Problem,
    ruled_out_json,
    score_of_alert,
    strongest,
)
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.pace import (
    BASELINE_STEPS,
    HALF,
    NEWEST_STEPS,
    RECENT_STEPS,
    ExchangeKind,
    ShareCase,
    comparable_steps,
)
from telemetry.detect.rules import RULES
from telemetry.detect.stragglers import Lateness, lateness, score_workers
from telemetry.detect.symptoms import causes_json, with_best_cause
from telemetry.statistics.change_points import noise, rise
from telemetry.statistics.peers import mean, median, middle
from telemetry.steps import StepBatch

_LIMITS = RULES["allreduce_share"].limits
STEPS_TO_FIRE = int(_LIMITS["steps_to_fire"])
STEPS_TO_RESOLVE = int(_LIMITS["steps_to_resolve"])
# With single-precision input, a share of exactly the limit must not exceed it.
ROUNDING = 1e-6
# Two steps that are not higher than usual by this part of the limit may be noise: the mean of the
# last seconds must be above the limit, too.
CLEAR_RISE_RATIO, LASTS_S = 0.3, 5.0
# Two different workers are late in two neighbouring steps by chance; three in three hardly ever.
DELAYED_STEPS = 3
# If shorter steps exceed the limit that often, for at most so many in a row, more in a row are
# chance that chance lets happen this often: a month of short steps has ten millions.
SHORT_STEP_S, OFTEN_ABOVE, MOST_BY_CHANCE, ABOVE_BY_CHANCE = 2.5, 3, 6, 1e-7
# A run whose usual share lies between both limits never falls below the lower one: its alert ends
# by the mean of these newest steps, and this part of the way from the limit to the lower one.
SETTLED_S, SETTLED_STEPS, SETTLED_PART = 60.0, 20, 0.25


@dataclass(frozen=True, slots=True)
class Episode:
    """Steps ``start`` (inclusive) to the newest, in which the rule is broken.

    ``healthy_from`` is the first row after the previous episode, where a baseline may begin.
    """

    start: int
    healthy_from: int


def streaks(flags: NDArray[np.bool_], length: int) -> IntArray:
    """Rows that complete ``length`` true flags in a row."""
    total = np.concatenate([[0], np.cumsum(flags)])
    full = np.flatnonzero(total[length:] - total[:-length] == length)
    return np.asarray(full + length - 1, dtype=int)


def _recent(step_s: FloatArray, *, seconds: float, least: int) -> IntArray:
    """First row of the newest steps at each row; below 0 where the window does not reach back.

    ``step_s``: (n_steps,); they cover at least ``seconds`` and are at least ``least`` steps.
    """
    ended_s = _sums(step_s)
    begin = np.searchsorted(ended_s, ended_s[1:] - seconds + ROUNDING, side="right") - 1
    return np.asarray(np.minimum(begin, np.arange(1, step_s.size + 1) - least))


def _sums(x: NDArray[Any]) -> FloatArray:
    """Sum of the values before each row, and of all: (n + 1,)."""
    return np.concatenate([[0.0], np.cumsum(x, dtype=float)])


def _means(x: FloatArray, begin: IntArray) -> FloatArray:
    """Mean of ``x`` from each row of ``begin`` to the row itself: (n_steps,), NaN below row 0."""
    total = _sums(x)
    to = np.arange(1, x.size + 1)
    sums = total[to] - total[np.maximum(begin, 0)]
    return np.where(begin >= 0, sums / (to - begin), np.nan)


def _usual(share_ratio: FloatArray, is_above: NDArray[np.bool_]) -> float:
    """Median share of the steps that are not above the limit; infinite where all are."""
    usual = share_ratio[~is_above[: share_ratio.size]]
    return float(np.median(usual)) if usual.size else np.inf


def episode(
    share_ratio: FloatArray,
    step_s: FloatArray,
    *,
    limit_ratio: float,
    resolve_ratio: float,
    is_open: bool,
    delayed_by: IntArray | None = None,
) -> Episode | None:
    """Find the episode that lasts at the newest step.

    Parameters
    ----------
    share_ratio : (n_steps,), 0 to 1
        All-reduce share of each step, oldest first, none NaN.
    step_s : (n_steps,) seconds
    limit_ratio, resolve_ratio : 0 to 1
        Broken by two steps in a row above the first; mended by five in a row below the second.
    is_open : bool
        Whether the rule was broken when last looked at: decides where the window holds neither.
    delayed_by : (n_steps,) worker
        Whose delay alone lifts the step above the limit, as of `delays`; -1: no single one.

    Returns
    -------
    The episode that lasts at the newest step, or None.

    Notes
    -----
    A Schmitt trigger that needs no memory: of breaking and mending, the later one in the window
    holds. Asking once per step or once per hundred steps gives the same answer.

    Two neighbouring steps, each of which is above the limit for another worker's delay alone, are
    chance; a third one is not. A run whose usual share is little below the limit exceeds it by
    chance, too. There, two steps above the limit break the rule if they are clearly above what is
    usual, or if the mean of LASTS_S is above the limit; and a minute without such steps, whose
    mean is clearly below, mends it.
    """
    is_above = share_ratio > limit_ratio + ROUNDING
    fired = streaks(is_above, STEPS_TO_FIRE)
    lately = _means(share_ratio, _recent(step_s, seconds=LASTS_S, least=STEPS_TO_FIRE))
    clear = CLEAR_RISE_RATIO * limit_ratio
    is_lasting = lately > limit_ratio + ROUNDING
    is_random = np.zeros(share_ratio.size, bool)
    if delayed_by is not None:
        either = np.minimum(delayed_by[1:], delayed_by[:-1])
        is_random[1:] = (either >= 0) & (delayed_by[1:] != delayed_by[:-1])
        is_random[streaks(is_above, DELAYED_STEPS)] = False
        is_random |= _may_be_chance(is_above, step_s, delayed_by)
    broken = [
        row
        for row in fired[~is_random[fired]]
        if is_lasting[row]
        or share_ratio[row - 1 : row + 1].mean() > _usual(share_ratio[: row - 1], is_above) + clear
    ]
    fired = np.array(broken, dtype=int)
    low = streaks(share_ratio < resolve_ratio - ROUNDING, STEPS_TO_RESOLVE)
    settled_ratio = limit_ratio - SETTLED_PART * (limit_ratio - resolve_ratio)
    minute = _recent(step_s, seconds=SETTLED_S, least=SETTLED_STEPS)
    rows = np.arange(share_ratio.size)
    last_fired = np.concatenate([[-1], fired])[np.searchsorted(fired, rows, side="right")]
    is_quiet = (minute > last_fired) & ~is_above
    settled = np.flatnonzero(is_quiet & (_means(share_ratio, minute) < settled_ratio))
    mended = np.union1d(low, settled)
    last_mended = int(mended[-1]) if mended.size else -1
    since = fired[fired > last_mended]
    if since.size:
        start = int(since[0]) - STEPS_TO_FIRE + 1
        earlier = fired[fired < start]
        if not earlier.size:
            return Episode(start, 0)
        # From the first of the good steps that ended the previous episode.
        ended = int(mended[mended > earlier[-1]][0])
        return Episode(start, ended - STEPS_TO_RESOLVE + 1)
    return Episode(0, 0) if is_open and last_mended < 0 else None


def _may_be_chance(
    is_above: NDArray[np.bool_], step_s: FloatArray, delayed_by: IntArray
) -> NDArray[np.bool_]:
    """Whether so many short steps in a row may be above the limit by chance: (n_steps,).

    In a large run with short steps some worker is often late, and its delay lifts one step of ten
    above the limit. Two such steps in a row are then no news. Stretches that last do not count.
    """
    is_single = delayed_by >= 0
    # That the same worker is late again, or several are in one step, counts as two of them.
    is_again = is_single & (np.diff(delayed_by, prepend=-1) == 0)
    n_late = _sums(np.where(is_single & ~is_again, 1, 2))
    n_in_row, since = np.zeros(is_above.size), np.arange(is_above.size)
    lasting = np.zeros(is_above.size, bool)
    edges = np.flatnonzero(np.diff(is_above, prepend=False, append=False)).reshape(-1, 2)
    for first, end in edges:
        n_in_row[first:end] = n_late[first + 1 : end + 1] - n_late[first]
        since[first:end] = first
        is_long = end - first > MOST_BY_CHANCE and step_s[first:end].sum() >= LASTS_S
        lasting[first:end] = is_long
    single, others = _sums(~lasting & is_single)[since], _sums(~lasting)[since]
    # Few steps may have had fewer than usual: it counts as if there were one more.
    often = np.where(single >= OFTEN_ABOVE, (single + 1) / (others + 1), 0.0)
    is_short = middle(step_s) < SHORT_STEP_S
    return np.asarray(is_short & (often**n_in_row > ABOVE_BY_CHANCE))


def delays(steps: StepBatch, *, limit_ratio: float) -> IntArray:
    """Row of the worker for which the others waited so long that the share exceeds the limit.

    Had it been ready with the one before it, the share would be at or below the limit. (n_steps,),
    -1 where that holds of no worker. A process that stopped between its computing, to collect
    garbage say, counts as another worker each time: it may stop twice in a row by chance.
    """
    wait_s = np.where(np.isfinite(steps.phases["wait_s"]), steps.phases["wait_s"], np.inf)
    if wait_s.shape[1] < 2:
        return np.full(len(steps), -1)
    least_s = np.partition(wait_s, 1, axis=1)[:, :2]
    late_s = np.where(np.isfinite(least_s[:, 1]), least_s[:, 1] - least_s[:, 0], 0.0)
    n_workers = np.maximum(1, np.isfinite(wait_s).sum(axis=1))
    saved_s = late_s * (1.0 - 1.0 / n_workers)
    share_ratio, step_s = steps.allreduce_share_ratio, steps.step_s
    without = (share_ratio * step_s - saved_s) / np.maximum(step_s - late_s, 1e-9)
    explains = (share_ratio > limit_ratio + ROUNDING) & (without <= limit_ratio + ROUNDING)
    last = wait_s.argmin(axis=1)
    rows, paused_s = np.arange(len(steps)), np.nan_to_num(steps.phases["other_s"])
    stopped = paused_s[rows, last] - median(paused_s) >= HALF * late_s
    return np.where(explains, np.where(stopped, wait_s.shape[1] + rows, last), -1)


# Steps after the first one above the limit that help to find the onset.
SETTLING_STEPS = 8
# Minimum deviation assumed for the share of a healthy run.
SHARE_NOISE = 0.005


def open_case(inputs: DetectionInput, steps: StepBatch, episode: Episode) -> ShareCase:
    """Find the onset and the baseline.

    The onset is the likeliest rise up to shortly after the share crossed the limit: a share that
    goes from 10 % to 24 % to 26 % began with the 24 %.
    """
    first = episode.healthy_from
    share = steps.allreduce_share_ratio
    change = rise(share[first : episode.start + SETTLING_STEPS], floor=SHARE_NOISE)
    onset = episode.start if change is None else min(first + change.at, episode.start)
    before = steps[first:onset]
    # Where it was above the limit before, too, what varies is no rise.
    is_known = len(before) >= BASELINE_STEPS
    is_known = is_known and middle(before.allreduce_share_ratio) <= inputs.limit_ratio
    over = np.flatnonzero(share > inputs.limit_ratio)
    until = int(over[-1]) + 1 if over.size else len(steps)
    after = steps[onset:until]
    return ShareCase(
        inputs=inputs,
        before=before if is_known else None,
        after=after.last(RECENT_STEPS),
        newest=steps[episode.start :].last(NEWEST_STEPS),
        onset_s=float(steps.ended_at_s[onset] - steps.step_s[onset]),
    )


LAYOUT = "communication-bound layout"
# The second rise is explained only if it is at least this share of the first.
SECOND_KIND_RATIO = 0.3
# A rise below this part of the limit is normal variation.
SMALL_RISE_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``score`` is the cause that holds (None: unknown), ``ruled_out`` those that do not."""

    score: CauseScore | None
    kind: str
    lateness: Lateness
    ruled_out: tuple[CauseScore, ...] = ()

    @property
    def cause(self) -> str:
        return self.score.cause if self.score else UNKNOWN

    @property
    def is_layout(self) -> bool:
        """Whether nothing is broken: the layout of the run needs that much communication."""
        return self.kind == LAYOUT


def diagnose_share(case: ShareCase) -> Diagnosis:
    """Find the cause of a share above its limit, and a culprit if the measurements show one.

    The larger rise, waiting or transferring, is explained first. The other one is tried where the
    first has no explanation and the other is at least SECOND_KIND_RATIO of it.
    """
    late = lateness(case.after)
    scores: list[CauseScore] = []
    rise_s = case.rise_s
    least_s = SECOND_KIND_RATIO * max(rise_s.values())
    for kind in sorted(rise_s, key=lambda kind: -rise_s[kind]):
        if rise_s[kind] < least_s:
            continue
        new = score_workers(case, late) if kind == "waiting" else score_links(case)
        scores += new
        if best := strongest(new):
            return Diagnosis(best, kind, late, _ruled_out(scores, best))
    shown = LAYOUT if _is_layout(case) else case.kind
    return Diagnosis(None, shown, late, _ruled_out(scores, None))


def _is_layout(case: ShareCase) -> bool:
    """Whether the transfer always took that long, or does since the run was changed."""
    if case.takes_no_longer:
        return True
    if case.kind == "waiting":
        return False
    always = case.share_rise_ratio < SMALL_RISE_RATIO * case.inputs.limit_ratio
    return case.before is None or always or bool(case.changed)


def _ruled_out(scores: list[CauseScore], best: CauseScore | None) -> tuple[CauseScore, ...]:
    return tuple(score for score in scores if score is not best and not score.stands_out)


# In a large run, only the workers that wait least are listed.
WORST_WORKERS = 64


def share_evidence(case: ShareCase, verdict: Diagnosis) -> dict[str, Any]:
    """Evidence of the rule allreduce_share; docs/rules.md lists the keys."""
    after, inputs, score = case.after, case.inputs, verdict.score
    wait_s: FloatArray = mean(after.phases["wait_s"], axis=0)
    shown = sorted(int(i) for i in np.argsort(wait_s)[:WORST_WORKERS] if np.isfinite(wait_s[i]))
    reported = np.isfinite(after.phases["wait_s"]).any(axis=0)
    wait = float(case.newest.wait_ratio.mean())
    transfer = float(case.newest.transfer_ratio.mean())
    return {
        "share_ratio": wait + transfer,
        "wait_ratio": wait,
        "transfer_ratio": transfer,
        "limit_ratio": inputs.limit_ratio,
        "resolve_ratio": inputs.resolve_ratio,
        "kind": verdict.kind,
        "step": int(after.step[-1]),
        # Of single steps; the figures above and below are of the newest few.
        "share_scatter_ratio": noise(after.allreduce_share_ratio),
        "step_scatter_s": noise(after.step_s),
        "step_s": middle(case.newest.step_s),
        "baseline_step_s": middle(case.before.step_s)
        if case.before is not None and not case.changed
        else None,
        "changed": list(case.changed),
        "culprit": score.figure() if score else None,
        "wait_by_worker": {after.workers[i]: float(wait_s[i]) for i in shown},
        "late_workers": [after.workers[i] for i in verdict.lateness.late],
        "unreported": [after.workers[i] for i in np.flatnonzero(~reported)],
        "ruled_out": ruled_out_json(verdict.ruled_out),
        "onset_s": case.onset_s,
        "window": [case.onset_s - LEAD_S, inputs.now_s],
        "charts": score.charts if score else [],
    }


SHARE = "allreduce_share"
# Earlier steps are read this far before the window.
LOOKBACK_S = 300.0
# A problem that begins this much later than the share rose is not its cause.
UNRELATED_AFTER_S = 60.0


def apply_share_rule(
    inputs: DetectionInput, steps: StepBatch, problems: list[Problem], *, is_open: bool
) -> tuple[Finding | None, list[Problem]]:
    """Apply the rule allreduce_share.

    Parameters
    ----------
    problems : by steps and hardware

    Returns
    -------
    The finding, if the share is above its limit, and the problems it does not cover. None where
    the run was changed and the all-reduce takes no longer than before: a smaller batch makes any
    share larger, which is not a fault.
    """
    since = _episode(inputs, steps, is_open=is_open)
    # The steps of an intended change that is over do not count.
    if since is None or _episode(inputs, comparable_steps(steps), is_open=is_open) is None:
        return None, problems
    case = open_case(inputs, steps, since)
    open_shares = [alert for alert in inputs.open_problems if alert.rule == SHARE]
    verdict = diagnose_share(case)
    score = verdict.score
    if score and any(
        alert.node is None
        and alert.device is not None
        and (alert.cause, alert.device) == (score.cause, score.device)
        for alert in open_shares
    ):
        # The open alert accuses the same device of most nodes.
        verdict = replace(verdict, score=replace(score, node=None))
    chosen = _choose_problem(inputs, verdict, problems)
    is_ending = float(steps.allreduce_share_ratio[-1]) <= inputs.limit_ratio
    ending = [alert for alert in open_shares if alert.cause != UNKNOWN]
    if chosen is None and is_ending and ending:
        # Healthy steps show no culprit: until its end the alert keeps the one that it had.
        verdict = replace(verdict, score=score_of_alert(ending[0]))
    began_s = inputs.now_s if chosen is None else chosen.onset_s
    # The open alert may say that the layout needs that much communication. A problem that begins
    # much later gets its own alert.
    layout_s = next(
        (
            float(alert.evidence["onset_s"])
            for alert in open_shares
            if alert.cause == UNKNOWN
            and alert.evidence.get("kind") == LAYOUT
            and alert.evidence.get("onset_s") is not None
        ),
        None,
    )
    if layout_s is not None and began_s - layout_s > UNRELATED_AFTER_S:
        case = replace(case, onset_s=min(case.onset_s, layout_s))
        return _share_finding(case, replace(verdict, score=None, kind=LAYOUT)), problems
    is_known = chosen is not None or verdict.score is not None or is_open
    if not is_known and (
        case.is_from_shorter_step or (verdict.is_layout and _predates_window(case, steps))
    ):
        return None, problems
    held: Mapping[str, Any] = {}
    if chosen is not None and chosen.score is not None:
        # The culprit of the problem replaces that of the diagnosis.
        kind = "transferring" if chosen.cause in LINK_CAUSES else "waiting"
        ruled_out = tuple(score for score in verdict.ruled_out if score.cause != chosen.cause)
        verdict = replace(verdict, score=chosen.score, kind=kind, ruled_out=ruled_out)
        held = chosen.extra if chosen.extra.get("kind", chosen.kind) == kind else held
    rest = [p for p in problems if p is not chosen and not _is_explained(p, verdict)]
    finding = _share_finding(case, verdict, held)
    return _named(inputs, steps, finding, verdict, rest), rest


def _episode(inputs: DetectionInput, steps: StepBatch, *, is_open: bool) -> Episode | None:
    return episode(
        steps.allreduce_share_ratio,
        steps.step_s,
        limit_ratio=inputs.limit_ratio,
        resolve_ratio=inputs.resolve_ratio,
        is_open=is_open,
        delayed_by=delays(steps, limit_ratio=inputs.limit_ratio),
    )


def _named(
    inputs: DetectionInput,
    steps: StepBatch,
    finding: Finding,
    verdict: Diagnosis,
    others: list[Problem],
) -> Finding:
    """Let the table of causes name the finding, and add the table to its evidence."""
    if verdict.is_layout:
        return finding
    kind: ExchangeKind = "transferring" if verdict.kind == "transferring" else "waiting"
    problem = Problem(verdict.cause, verdict.score, kind, finding.onset_s, finding.score)
    problem = with_best_cause(inputs, steps, problem, others)
    table = causes_json(inputs, steps, problem, others)
    evidence = {**finding.evidence, **table}
    return replace(finding, cause=problem.cause, device=problem.device, evidence=evidence)


def _predates_window(case: ShareCase, steps: StepBatch) -> bool:
    """Whether the run was like this before the window, without an alert."""
    if case.before is not None or case.inputs.earlier is None:
        return False
    earlier = case.inputs.earlier(float(steps.ended_at_s[0]) - LOOKBACK_S)
    return bool((earlier.ended_at_s < steps.ended_at_s[0] - 1.0).sum() >= BASELINE_STEPS)


def _choose_problem(
    inputs: DetectionInput, verdict: Diagnosis, problems: list[Problem]
) -> Problem | None:
    """Return the problem behind the share: the one with the same culprit, else the strongest.

    The problem of the open alert comes first while it lasts, so that the alert does not alternate
    between two culprits.
    """
    reported = [p for p in problems if p.score is not None]
    # A bad link makes transfers longer, all else makes workers wait. Between two of its long
    # steps, a node that is late at times leaves the share as before.
    possible = [
        p
        for p in reported
        if p.kind not in {"computing", "checkpoint", "step"}
        and (
            (verdict.is_layout and p.node is not None)
            or (p.cause in LINK_CAUSES) == (verdict.kind != "waiting")
        )
    ]
    held = {
        (default_of(alert.cause), alert.node)
        for alert in inputs.open_problems
        if alert.rule == SHARE or "share_ratio" in alert.evidence
    }
    if verdict.score is not None and verdict.score.node is None:
        # What makes all workers wait has an alert already: now and then it exceeds the limit.
        held |= {
            (default_of(alert.cause), None)
            for alert in inputs.open_problems
            if alert.node is None and alert.evidence.get("kind") == verdict.kind
        }
    # An accused node stays accused if a stronger problem of another kind appears, and a known
    # cause stays known.
    candidates = possible + [p for p in reported if p.node is not None or p.cause != UNKNOWN]
    if (same := next((p for p in candidates if (p.cause, p.node) in held), None)) is not None:
        return same
    if verdict.score is not None:
        # The accused node may be what the diagnosis takes for a long stage.
        late = {inputs.node_of(inputs.steps.workers[i]) for i in verdict.lateness.late}
        is_late_stage = verdict.cause == "stage_imbalance" and len(late) == 1 and None not in late
        matching = (
            p
            for p in possible
            if _has_same_culprit(p, verdict) or (is_late_stage and p.node in late)
        )
        chosen = next(matching, None)
        if chosen is not None or verdict.cause != UNKNOWN:
            return chosen
    return max(possible, key=lambda p: p.strength, default=None)


def _has_same_culprit(problem: Problem, verdict: Diagnosis) -> bool:
    """Whether a problem has the culprit of the diagnosis, or neither has one."""
    score = verdict.score
    if score is None:
        return False
    if score.node is None or problem.node is None:
        return problem.cause == score.cause
    return problem.node == score.node


def _is_explained(problem: Problem, verdict: Diagnosis) -> bool:
    """Whether a problem is another view of what raises the share."""
    if _has_same_culprit(problem, verdict):
        # A node can have both a bad link and a late worker.
        if (problem.cause in LINK_CAUSES) != (verdict.kind != "waiting"):
            return False
        devices = {problem.device, verdict.score.device if verdict.score else None}
        return None in devices or len(devices) == 1 or problem.cause == verdict.cause
    is_symptom = problem.score is None or (problem.node is None and bool(problem.late))
    return is_symptom and problem.kind == verdict.kind


def _share_finding(
    case: ShareCase, verdict: Diagnosis, held: Mapping[str, Any] = MappingProxyType({})
) -> Finding:
    """Return the finding; ``held`` is what its problem keeps of the usual steps.

    The usual steps leave the window long before a fault of hours is over.
    """
    share = float(case.newest.allreduce_share_ratio.mean())
    score = verdict.score
    return Finding(
        rule=SHARE,
        cause=verdict.cause,
        # A layout or a change of the run does not justify a page.
        severity="warn" if verdict.is_layout else RULES[SHARE].severity,
        run=case.inputs.run,
        node=score.node if score else None,
        device=score.device if score else None,
        onset_s=case.onset_s,
        score=share / case.inputs.limit_ratio,
        victims=_share_victims(case, verdict),
        evidence={**share_evidence(case, verdict), **held},
    )


def _share_victims(case: ShareCase, verdict: Diagnosis) -> tuple[str, ...]:
    """Training nodes that are slowed without being the cause."""
    node_of, workers = case.inputs.node_of, case.after.workers
    culprits = {verdict.score.node} if verdict.score else set()
    if verdict.cause == "stage_imbalance":
        culprits = {node_of(workers[i]) for i in verdict.lateness.late}
    reported = np.isfinite(case.after.phases["wait_s"]).any(axis=0)
    training = {node_of(workers[i]) for i in np.flatnonzero(reported)}
    return tuple(node for node in case.inputs.nodes if node in training - culprits)
