"""The rule allreduce_share: too much of each step is exposed gradient communication.

1. Steps are kept, each once: share, wait and transfer. Only those that did the work of the newest
   one are compared.
2. The newest two must be above the limit. The newest m steps must then show, for some m, that
3. their middle is above the limit: likelihood of Student's distribution with the scatter and tail
   of the run's own steps, against a middle at the limit; and
4. they are so far above it more often than steps were before: many workers are late by chance.
5. Both at the level of the false-alarm budget. The same likelihood, reversed, ends it; so do a few
   steps in a row below the lower limit.
6. Its cause is a problem that makes steps wait or transfer, and that began while the share was
   still below the limit. Without one, either the exchange takes longer, or it is the layout.
"""

from dataclasses import replace

import numpy as np

from telemetry.blocks import FloatArray, mean
from telemetry.detect.causes import CLASSES, UNKNOWN
from telemetry.detect.evidence import NEWEST_STEPS, evidence_of, performance_victims
from telemetry.detect.explain import SIZES
from telemetry.detect.findings import Finding, Problem
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.quantities import Kind
from telemetry.detect.rules import RULES, SEVERITIES
from telemetry.detect.shifts import Shift
from telemetry.detect.steps import FIRST_VALUES, LEAST_S, N_BEFORE, N_SINCE, PAUSE_S
from telemetry.detect.work import alike, is_same
from telemetry.evidence import budget, student
from telemetry.evidence.noise import PRIOR_FAR, PRIOR_FAR_VALUES, BoolArray
from telemetry.evidence.sequential import YEAR_S, alarm_level
from telemetry.statistics.peers import noise
from telemetry.steps import SPARSEST_STEPS, StepBatch

SHARE, LAYOUT = "allreduce_share", "communication-bound layout"
_LIMITS = RULES[SHARE].limits
STEPS_TO_FIRE, STEPS_TO_RESOLVE = (
    int(_LIMITS[f"steps_to_{what}"]) for what in ("fire", "resolve")
)
# With single-precision input, a share of exactly the limit must not exceed it.
ROUNDING = 1e-6
# Of so many steps, two in a row that are above the limit by chance and none before are four a year
# at most, at any chance of one: the budget.
N_STEPS = 2000
# In a run whose usual share lies between both limits an alert ends by the newest steps: a minute
# of them at least (docs/rules.md), and at least so many.
SETTLED_S, SETTLED_STEPS = 60.0, 20
# In large runs only the workers that wait least are listed.
WORST_WORKERS = 64
COLUMNS = ("step", "ended_s", "step_s", "tokens", "n_workers", "share", "wait_s", "transfer_s")
STEP, ENDED, STEP_S, TOKENS, N_WORKERS, SHARE_OF, WAIT, TRANSFER = range(len(COLUMNS))


def scatter(x: FloatArray) -> tuple[float, float]:
    """Scale and degrees of freedom of Student's distribution around a middle that may jump.

    Differences of neighbours do not see jumps, as in `telemetry.statistics.peers.noise`.
    Infinite of fewer than three values. The tail is counted as in `telemetry.evidence.noise`.
    """
    if x.size < 2:
        return np.inf, 1.0
    off = np.abs(np.diff(x)) / np.sqrt(2)
    usual = max(float(np.median(off)), ROUNDING)
    n_far = float((off > 4 * usual).sum())
    share_far = (n_far + PRIOR_FAR * PRIOR_FAR_VALUES) / (off.size + PRIOR_FAR_VALUES)
    df = float(student.degrees_of_freedom(np.array(share_far)))
    return usual / float(np.interp(df, student.DEGREES, student.MEDIAN_DISTANCE)), df


def beyond(x: FloatArray, *, scale: float, df: float) -> FloatArray:
    """Nats by which the newest 1, 2, ... of x favour a middle above zero; negative: one below.

    Notes
    -----
    The likelihood of the best middle above zero, over that of the best one at or below. Middles
    that are tried are the newest values on either side: one of them is near the best.

    References
    ----------
    D. Siegmund, "Sequential Analysis" (1985): generalized likelihood ratio.

    Examples
    --------
    >>> x = np.array([-0.1, -0.1, 0.05, 0.05])
    >>> beyond(x, scale=0.003, df=3.0).round(1)
    array([ 9.1, 18.2, 13.5,  0. ])
    """
    if not np.isfinite(scale):
        return np.zeros(x.size)
    noise_of = {"scale": np.array(scale), "df": np.array(df), "band": np.array(0.0)}
    above, below = (
        np.cumsum(student.log_ratio(x[::-1, None], side[-N_SINCE:], **noise_of), axis=0)
        for side in (x[x > 0], x[x <= 0])
    )
    return np.asarray(above.max(axis=1, initial=0.0) - below.max(axis=1, initial=0.0))


def more_often(above: BoolArray, n_before: int, n_above_before: int) -> FloatArray:
    """Nats against "above as often as before", of the newest 1, 2, ... steps.

    ``m D(a / m || p)``, where D is the divergence of the share that is above from the one before;
    at most half are above where the middle is at the limit.

    References
    ----------
    H. Chernoff, "A Measure of Asymptotic Efficiency for Tests of a Hypothesis Based on the Sum of
    Observations", Ann. Math. Stat. 23 (1952), 493-507.

    Examples
    --------
    >>> more_often(np.array([False, True, True]), 97, 2).round(1)  # 2 of 97 in between
    array([3.5, 7.8, 5.9])
    """
    m = np.arange(1, above.size + 1)
    n_above = np.cumsum(above[::-1])
    others = n_before + above.size - m
    p = (n_above_before + n_above[-1:] - n_above) / np.maximum(others, 1)
    p, now = np.minimum(p, 0.5), n_above / m
    with np.errstate(divide="ignore", invalid="ignore"):
        yes = np.where(now > 0, now * np.log(now / p), 0.0)
        no = np.where(now < 1, (1 - now) * np.log((1 - now) / (1 - p)), 0.0)
    return np.asarray(np.where(now > p, m * (yes + no), 0.0))


class Shares:
    """Fold over the steps of one run with timed exchanges, and whether its share is too high.

    While it is, ``onset_s`` is since when, ``before`` the usual step before, None if unknown, and
    ``is_news`` whether anything but the rest of the step has changed.
    """

    def __init__(self) -> None:
        self.rows: FloatArray = np.zeros((0, len(COLUMNS)))
        # Steps of a problem that is over are no past to compare with.
        self.is_calm: BoolArray = np.zeros(0, bool)
        self.is_open, self.is_news, self.onset_s = False, True, np.nan
        # When it began: certainty, and what was needed.
        self.nats = self.level_nats = np.nan
        self.before: FloatArray | None = None
        # The longer exchange that lifted it above its limit.
        self.shifts: list[Shift] = []
        # The newest step when it began.
        self.first: FloatArray = np.zeros(len(COLUMNS))
        # Its processes began later; steps before the other were reported, but not timed: a trace
        # that an alert requests times those of some minutes, each time.
        self.started_s = -np.inf
        self.timed_since_s = -np.inf
        self.limit_ratio = 0.0

    def update(self, inputs: DetectionInput, timed: StepBatch, *, is_open: bool) -> None:
        """Take the new steps, and see whether an alert begins or ends with the newest one.

        ``is_open`` is what is known of a run that this process has not seen before.
        """
        self.limit_ratio, is_first = inputs.limit_ratio, not len(self.rows)
        if is_first and inputs.earlier is not None and len(timed):
            lasted_s = N_STEPS * float(np.median(timed.step_s))
            self._take(inputs.earlier(inputs.now_s - lasted_s).reported.timed, inputs.started_s)
        last, longest_gap = (
            (self.rows[-1, STEP], self.longest_gap) if not is_first else (-np.inf, 0)
        )
        n_earlier = int((self.rows[:, ENDED] < timed.ended_at_s.min(initial=np.inf)).sum())
        # What was read as earlier may hold all of them.
        if not self._take(timed, inputs.started_s) and not (is_first and len(self.rows)):
            return
        self._note_timing(inputs.steps, last, longest_gap)
        same = alike(*self.rows[:, [STEP, ENDED, STEP_S, TOKENS, N_WORKERS]].T)
        newest = self.rows[-1]
        if not same[-1]:
            # It is one of the first of a process.
            return
        if self.is_open and changes(self.first, newest):
            self._close()
        if is_first and is_open:
            self.nats = self.level_nats = _level(inputs, float(np.median(self.rows[same, STEP_S])))
            self._open(same)
        elif is_first and n_earlier >= FIRST_VALUES and self.was_above(timed.ended_at_s[0]):
            # It was like this before, without an alert.
            self.is_open, self.is_news, self.first = True, False, newest
        level = _level(inputs, float(np.median(self.rows[same, STEP_S])))
        if self.is_open and self._has_ended(inputs, same, level):
            self._close()
        elif not self.is_open and self._begins(same, level):
            self._open(same)

    def _take(self, steps: StepBatch, started_s: float | None) -> bool:
        """Keep steps that were not seen yet; return whether there are any."""
        last, ended_s = self.rows[-1, [STEP, ENDED]] if len(self.rows) else (-np.inf, np.inf)
        if started_s is not None and ended_s <= started_s < steps.ended_at_s.max(initial=-np.inf):
            # Its numbers go on.
            self.rows, self.is_calm = self.rows[:0], self.is_calm[:0]
            self.started_s, ended_s = started_s, np.inf
        if ((steps.step <= last) & (steps.ended_at_s > ended_s + PAUSE_S)).any():
            # It began again from a checkpoint.
            self.rows, self.is_calm = self.rows[:0], self.is_calm[:0]
            self.started_s, last = ended_s, -np.inf
        is_new = (steps.step > last) & (steps.ended_at_s > self.started_s)
        if not is_new.any():
            return False
        new = steps[is_new]
        columns = (
            new.step,
            new.ended_at_s,
            new.step_s,
            np.nan_to_num(new.tokens, posinf=0.0, neginf=0.0),
            np.isfinite(new.phases["compute_s"]).sum(axis=1),
            new.allreduce_share_ratio,
            mean(new.phases["wait_s"], 1),
            mean(new.phases["transfer_s"], 1),
        )
        rows = np.stack(columns, axis=1).astype(float)
        share = rows[:, SHARE_OF]
        rows = rows[np.isfinite(rows).all(axis=1) & (share >= 0) & (share <= 1)]
        self.rows = np.concatenate([self.rows, rows])[-N_STEPS:]
        self.is_calm = np.append(self.is_calm, np.full(len(rows), not self.is_open))[-N_STEPS:]
        return len(rows) > 0

    def _note_timing(self, steps: StepBatch, last: float, longest_gap: float) -> None:
        """Note since when steps are timed, if more were reported without than sampling leaves."""
        first = self.rows[self.rows[:, STEP] > last][:1]
        untimed = (steps.step > last) & (steps.step < first[:, STEP, None]).any(axis=0)
        if untimed.sum() > longest_gap:
            self.timed_since_s = float(first[0, ENDED] - first[0, STEP_S])

    def _begins(self, same: BoolArray, level: float) -> bool:
        over = self.rows[same, SHARE_OF] - self.limit_ratio - ROUNDING
        calm = self.is_calm[same]
        if len(over) < STEPS_TO_FIRE or not (over[-STEPS_TO_FIRE:] > 0).all():
            return False
        # Only what came since the last alert may be the next one.
        n = int(np.logical_and.accumulate(calm[::-1]).sum())
        past, new = over[: len(over) - n][calm[: len(over) - n]], over[len(over) - n :]
        scale, df = scatter(np.append(past, new))
        # Half as far above as the newest ones: what is just above proves nothing against these.
        far = new[-STEPS_TO_FIRE:].min(initial=np.inf) / 2
        nats = np.minimum(
            beyond(new, scale=scale, df=df),
            more_often(new > far, len(past), int((past > far).sum())),
        )
        self.nats = float(nats[STEPS_TO_FIRE - 1 :].max(initial=-np.inf))
        self.level_nats = level
        return self.nats >= level

    def _open(self, same: BoolArray) -> None:
        """Find since when: half of the rise was over, and at latest where evidence begins."""
        rows = np.flatnonzero(same & self.is_calm)
        share = self.rows[rows, SHARE_OF]
        scale, df = scatter(share)
        start = (
            len(share) - 1 - int(np.argmax(beyond(share - self.limit_ratio, scale=scale, df=df)))
        )
        earlier = share[max(0, start - N_BEFORE) : start + 1]
        half = (np.median(share[start:]) + np.median(earlier)) / 2
        usual = np.flatnonzero(share[: start + 1] <= half)
        at = rows[min(int(usual[-1]) + 1, start) if usual.size else start]
        began_s = self.rows[:, ENDED] - self.rows[:, STEP_S]
        self.is_open, self.onset_s, self.first = True, float(began_s[at]), self.rows[-1]
        before = self.rows[:at][self.is_calm[:at]][-N_BEFORE:]
        self.before = np.median(before, axis=0) if len(before) >= FIRST_VALUES else None
        self.is_calm &= began_s < self.onset_s
        wait_s, transfer_s = self.longer_s()
        self.is_news = not self.changed or wait_s + transfer_s > 0.0
        if self.before is not None and not self.changed and wait_s + transfer_s > 0.0:
            name = "share of wait" if wait_s > transfer_s else "share of transfer"
            size = (wait_s + transfer_s) / float(self.before[STEP_S])
            self.shifts = [Shift(name, None, None, self.onset_s, size, self.nats, self.level_nats)]

    def forget(self, since_s: float) -> None:
        """Take the steps since then for those of a problem that is over."""
        if not self.is_open:
            self.is_calm &= self.rows[:, ENDED] - self.rows[:, STEP_S] < since_s

    def _close(self) -> None:
        self.is_open, self.is_news, self.onset_s, self.before = False, True, np.nan, None
        self.shifts = []

    def _has_ended(self, inputs: DetectionInput, same: BoolArray, level: float) -> bool:
        is_earlier = self.rows[:, ENDED] - self.rows[:, STEP_S] < self.onset_s
        rows = self.rows[same & ~self.is_calm & ~is_earlier]
        share = rows[:, SHARE_OF]
        above = np.flatnonzero(share > inputs.limit_ratio + ROUNDING)
        since = share[above[-1] + 1 if above.size else 0 :]
        if longest(since < inputs.resolve_ratio - ROUNDING) >= STEPS_TO_RESOLVE:
            return True
        scale, df = scatter(share)
        nats = -beyond(share - inputs.limit_ratio, scale=scale, df=df)
        lasted_s = (rows[-1:, ENDED] - rows[:, ENDED] + rows[:, STEP_S])[::-1]
        is_minute = (lasted_s > SETTLED_S - ROUNDING) & (np.arange(len(nats)) >= SETTLED_STEPS - 1)
        # Of shorter stretches none says it more clearly.
        return bool(nats[is_minute].max(initial=0.0) >= nats.max(initial=level))

    def now(self, until_s: float = np.inf) -> FloatArray:
        """Return the usual one of the newest steps since the onset, and before a moment."""
        rows = self.rows[self.rows[:, ENDED] > self.onset_s]
        rows = rows if len(rows) else self.rows[-1:]
        earlier = rows[rows[:, ENDED] <= until_s]
        return np.asarray(np.median((earlier if len(earlier) else rows)[-N_SINCE:], axis=0))

    @property
    def changed(self) -> list[str]:
        """What was changed on purpose at the onset."""
        if self.before is None:
            return []
        return changes(self.before, self.now())

    def longer_s(self, until_s: float = np.inf) -> tuple[float, float]:
        """By how much longer than before the usual step waits and transfers: seconds.

        Both are 0 where that is less than what matters, or would not exceed the limit had the rest
        of the step stayed as it was.
        """
        if self.before is None:
            return 0.0, 0.0
        was, now = self.before, self.now(until_s)
        wait_s, transfer_s = (float(now[i] - was[i]) for i in (WAIT, TRANSFER))
        exchange_s = now[WAIT] + now[TRANSFER]
        rest_s = was[STEP_S] - was[WAIT] - was[TRANSFER]
        is_lifted = exchange_s > self.limit_ratio * (exchange_s + rest_s)
        matters = wait_s + transfer_s >= float(SIZES[0]) * was[STEP_S]
        return (wait_s, transfer_s) if is_lifted and matters else (0.0, 0.0)

    @property
    def longest_gap(self) -> float:
        """Steps from one timed one to the next that sampling explains."""
        gaps = np.diff(self.rows[-N_BEFORE:, STEP])
        return max(2.0, 2.0 * (float(np.median(gaps)) if gaps.size else SPARSEST_STEPS))

    def was_above(self, at_s: float) -> bool:
        """Whether the share was above the limit before a moment, apart from what is over."""
        ended_s = self.rows[:, ENDED]
        counts = self.is_calm | (ended_s > self.onset_s)
        before = self.rows[counts & (ended_s <= at_s), SHARE_OF][-N_BEFORE:]
        return len(before) > 0 and float(np.median(before)) > self.limit_ratio + ROUNDING


def _level(inputs: DetectionInput, step_s: float) -> float:
    """Nats of an alarm: one look per step, and the share of the budget that this rule has."""
    pages = inputs.false_pages_per_year
    pages = budget.PAGES_PER_YEAR if pages is None else pages
    of_rule = budget.share(SHARE, "page", severities=SEVERITIES, pages_per_year=pages)
    return float(alarm_level(np.array(YEAR_S / max(step_s, LEAST_S)), of_rule))


def changes(was: FloatArray, now: FloatArray) -> list[str]:
    """Name what was changed on purpose between two steps."""
    names = {"batch": is_same(was[TOKENS], now[TOKENS])}
    names["scale"] = is_same(was[N_WORKERS], now[N_WORKERS], least=1.0)
    return [name for name, same in names.items() if not same]


def longest(flags: BoolArray) -> int:
    """Return the most flags in a row.

    Examples
    --------
    >>> longest(np.array([True, False, True, True]))
    2
    """
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def find_share(
    shares: Shares, inputs: DetectionInput, timed: StepBatch, problems: list[Problem]
) -> tuple[Finding | None, list[Problem]]:
    """Return the finding while the share is too high, and the problems that it does not name."""
    if not shares.is_open:
        return None, problems
    held = {a.node or a.cause for a in inputs.open_problems if a.rule == SHARE}
    # A trace that an alert requested is evidence about that one, and says nothing once it is over.
    is_of_another = any(p.onset_s < shares.timed_since_s for p in problems)
    newest = shares.rows[-1:, STEP].max(initial=-np.inf)
    is_over = inputs.steps.step[-1] > newest + shares.longest_gap
    if not held and (is_of_another or is_over):
        return None, problems
    able = [p for p in problems if _delays(p)]
    later = [p for p in able if shares.was_above(p.onset_s)]
    longer = shares.longer_s(min((p.onset_s for p in later), default=np.inf))
    kind: Kind = "waiting" if longer[0] > longer[1] else "transferring"
    chosen = max(
        (
            p
            for p in able
            if p not in later and (not any(longer) or _has(p, kind) or (p.node or p.cause) in held)
        ),
        key=lambda p: ((p.node or p.cause) in held, p.cause != UNKNOWN, p.strength),
        default=None,
    )
    if chosen is None and not shares.is_news:
        return None, problems
    problem = Problem(UNKNOWN, None, kind, shares.onset_s, 1.0)
    if chosen is not None:
        kind = "transferring" if _has(chosen, "transferring") else "waiting"
        onset_s = min(chosen.onset_s, shares.onset_s)
        problem = replace(chosen, kind=kind, onset_s=onset_s)
    is_layout = chosen is None and (not any(longer) or bool(shares.changed))
    rest = [p for p in problems if p is not chosen and (is_layout or not _is_vague(p, kind))]
    return _finding(shares, inputs, timed, problem, is_layout=is_layout), rest


def _delays(problem: Problem) -> bool:
    """Whether others wait for what a problem is about, or transfers take longer."""
    is_of_node = problem.node is not None and problem.kind in ("input", "step")
    return is_of_node or problem.kind in ("waiting", "transferring")


def _has(problem: Problem, kind: Kind) -> bool:
    """Whether a problem makes this longer; any but a slow exchange makes others wait."""
    return (problem.kind == "transferring") == (kind == "transferring")


def _is_vague(problem: Problem, kind: Kind) -> bool:
    """Whether a problem may be another view of what raises the share."""
    is_unknown = problem.cause in (UNKNOWN, *CLASSES) and problem.node is None
    return is_unknown and problem.kind in (kind, "step")


def _finding(
    shares: Shares, inputs: DetectionInput, timed: StepBatch, problem: Problem, *, is_layout: bool
) -> Finding:
    """Return the finding; docs/rules.md lists the keys of its evidence."""
    evidence = evidence_of(inputs, timed, problem)
    since = timed[timed.ended_at_s > problem.onset_s].last(N_SINCE)
    since = since if len(since) else timed.last(1)
    share = timed.allreduce_share_ratio
    above, good = share > inputs.limit_ratio, share < inputs.resolve_ratio - ROUNDING
    newest = float(since.last(NEWEST_STEPS).allreduce_share_ratio.mean())
    wait_s = mean(since.phases["wait_s"], 0)
    is_known = np.isfinite(wait_s)
    shown = sorted(int(i) for i in np.argsort(wait_s)[:WORST_WORKERS] if is_known[i])
    evidence |= {
        "share_ratio": newest,
        "limit_ratio": inputs.limit_ratio,
        "resolve_ratio": inputs.resolve_ratio,
        "step": int(timed.step[np.flatnonzero(above)[-1:]].max(initial=timed.step[0])),
        "share_scatter_ratio": noise(since.allreduce_share_ratio),
        "changed": shares.changed,
        "wait_by_worker": {since.workers[i]: float(wait_s[i]) for i in shown},
        "unreported": [since.workers[i] for i in np.flatnonzero(~is_known)],
    }
    if is_layout:
        evidence["kind"] = LAYOUT
    if shares.changed:
        evidence["baseline_step_s"] = None
    if good[-1]:
        n_good = int(np.logical_and.accumulate(good[::-1]).sum())
        evidence["healthy_steps"] = min(n_good, STEPS_TO_RESOLVE)
        evidence["steps_to_resolve"] = STEPS_TO_RESOLVE
    return Finding(
        rule=SHARE,
        cause=problem.cause,
        # A layout, or a change of the run, is no reason to wake a person.
        severity="warn" if is_layout else RULES[SHARE].severity,
        run=inputs.run,
        node=problem.node,
        device=problem.device,
        onset_s=problem.onset_s,
        score=newest / inputs.limit_ratio,
        victims=performance_victims(inputs, timed, problem),
        evidence=evidence,
    )
