"""A schedule worked out: what the same tokens cost on each arm, with and without reuse."""

import math
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from fleet.pricing.kinds import CommonKind, PriceKinds, price_kinds
from fleet.projecting.planned import Planned, ScheduleError
from telemetry.blocks import FloatArray
from telemetry.project.breakeven import break_even, break_even_days
from telemetry.project.chance import drawn, interval
from telemetry.project.course import course, stretch
from telemetry.project.curves import Arm

TOKENS_PER_MTOK = 1e6
REUSES = (True, False)
MOST_DAYS = 3_650.0
# A run that takes so many times as long as without failures is none to plan.
MOST_STRETCH = 100.0


class Span(msgspec.Struct, frozen=True):
    """A figure as expected, and from where to where it lies in 95 of 100 cases.

    An end that is infinite, as a break-even that may never come, is None.
    """

    value: float
    low: float | None
    high: float | None


class ArmCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm costs: over the same days, and for the same tokens."""

    label: str
    run: str | None
    start_days: float
    usd_at_first_step: float
    same_days_usd: float
    same_days_tokens: Span
    usd_per_mtok: Span | None
    same_tokens_usd: Span
    same_tokens_days: Span


class Even(msgspec.Struct, frozen=True, kw_only=True):
    """When the candidate has earned back its start; ``days`` is None where it never does.

    ``reason`` says why; ``chance_ratio`` in how many draws it comes at all.
    """

    reason: str
    days: Span | None
    tokens: float | None
    chance_ratio: float


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One way to go: with compiled graphs reused, or not. The baseline is the first of two.

    ``saved_usd`` and ``extra_days`` are of the candidate against the baseline, for equal tokens.
    """

    has_reuse: bool
    arms: tuple[ArmCost, ...]
    break_even: Even | None
    saved_usd: Span | None
    extra_days: Span | None = None


class Saved(msgspec.Struct, frozen=True):
    """What reusing compiled graphs saves one arm, for the same tokens."""

    label: str
    usd: Span
    days: Span


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule of ``days``; ``tokens`` is the work that every cost is told for."""

    days: float
    porting_usd: float
    tokens: float
    is_by_tokens: bool
    scenarios: tuple[Scenario, ...]
    reuse_saves: tuple[Saved, ...]

    def scenario(self, *, has_reuse: bool) -> Scenario:
        """Return one of the two ways to go."""
        return next(each for each in self.scenarios if each.has_reuse == has_reuse)


@dataclass(frozen=True, slots=True)
class Arms:
    """The arms of a schedule, the candidate last, under one way to go."""

    planned: tuple[Planned, ...]
    arms: tuple[Arm, ...]

    @property
    def candidate(self) -> Arm:
        """The arm that is asked about."""
        return self.arms[-1]


def arms_of(
    planned: tuple[Planned, ...], *, days: float, porting_usd: float, has_reuse: bool
) -> Arms:
    """Return the arms as they would go; with and without reuse they meet the same chances."""
    arms = []
    for place, each in enumerate(planned):
        usd = porting_usd if place == len(planned) - 1 else 0.0
        rng = np.random.default_rng([each.seed, place])
        could = drawn(each.habits, each.doubt, days=days, rng=rng)
        arms.append(
            Arm(
                course(each.habits, has_reuse=has_reuse, porting_usd=usd),
                course(could, has_reuse=has_reuse, porting_usd=usd),
            )
        )
    return Arms(planned, tuple(arms))


def length_of(
    planned: tuple[Planned, ...], *, days: float, tokens: float | None
) -> tuple[float, float]:
    """Return days and tokens of a schedule: where tokens are asked for, as long as they take.

    Raises
    ------
    ScheduleError
        Where an arm would hardly train for failures, or the candidate would not come to its
        first step, or takes lifetimes.
    """
    for each in planned:
        if float(stretch(each.habits, has_reuse=True)) > MOST_STRETCH:
            raise ScheduleError(
                "failures", f"so many keep {each.label} from ever getting on; choose fewer"
            )
    candidate = course(planned[-1].habits, has_reuse=True)
    if tokens is None:
        work = float(candidate.tokens_by(days))
        if work <= 0:
            start = f"{float(candidate.start_days):.2f}"
            raise ScheduleError("days", f"the first step comes after {start} days; choose more")
        return days, work
    needed = float(candidate.days_for(tokens))
    if needed > MOST_DAYS:
        raise ScheduleError("tokens", f"they take {needed:,.0f} days; choose fewer")
    return needed, tokens


def project(
    planned: tuple[Planned, ...], *, days: float, porting_usd: float, tokens: float | None = None
) -> Projection:
    """Project a schedule of a baseline and a candidate, or of one arm alone.

    Parameters
    ----------
    planned : the baseline and the candidate, or only the latter
    days : length of the candidate's schedule
    porting_usd : what moving the model to the candidate costs
    tokens : instead of days: as long as the candidate trains on so many, with reuse

    Raises
    ------
    ScheduleError
        Where the candidate would not come to its first step.
    """
    days, work = length_of(planned, days=days, tokens=tokens)
    ways = {
        has_reuse: arms_of(planned, days=days, porting_usd=porting_usd, has_reuse=has_reuse)
        for has_reuse in REUSES
    }
    return Projection(
        days=days,
        porting_usd=porting_usd,
        tokens=work,
        is_by_tokens=tokens is not None,
        scenarios=tuple(_scenario(ways[r], has_reuse=r, days=days, work=work) for r in REUSES),
        reuse_saves=tuple(
            _saved(each, ways[True].arms[i], ways[False].arms[i], work)
            for i, each in enumerate(planned)
        ),
    )


def _scenario(arms: Arms, *, has_reuse: bool, days: float, work: float) -> Scenario:
    pairs = zip(arms.planned, arms.arms, strict=True)
    costs = tuple(_cost(planned, arm, days=days, work=work) for planned, arm in pairs)
    if len(arms.arms) < 2:
        return Scenario(has_reuse=has_reuse, arms=costs, break_even=None, saved_usd=None)
    baseline, candidate = arms.arms
    saved = baseline.expected.usd_for(work) - candidate.expected.usd_for(work)
    could = baseline.could.usd_for(work) - candidate.could.usd_for(work)
    later = candidate.expected.days_for(work) - baseline.expected.days_for(work)
    could_later = candidate.could.days_for(work) - baseline.could.days_for(work)
    return Scenario(
        has_reuse=has_reuse,
        arms=costs,
        break_even=_even(baseline, candidate),
        saved_usd=_span(saved, could),
        extra_days=_span(later, could_later),
    )


def kinds_of(planned: tuple[Planned, ...]) -> PriceKinds | None:
    """Return on which terms two arms are paid; None of one arm, or where nobody said of any."""
    if len(planned) < 2 or not any(each.price_basis for each in planned):
        return None
    baseline, candidate = planned
    return price_kinds(
        baseline.instance_type,
        candidate.instance_type,
        baseline_bases=(baseline.price_basis,),
        candidate_bases=(candidate.price_basis,),
    )


def at_equal_kinds(
    found: Projection, planned: tuple[Planned, ...]
) -> tuple[tuple[CommonKind, Projection], ...]:
    """Return a schedule again at list prices of each kind that both arms have, where unlike.

    Nothing where the arms are paid on the same terms: then the schedule itself is of one kind.
    """
    kinds = kinds_of(planned)
    if kinds is None or kinds.is_alike:
        return ()
    return tuple(
        (
            common,
            project(
                tuple(
                    replace(
                        each,
                        habits=replace(each.habits, usd_per_hour=price.usd * each.habits.n_nodes),
                    )
                    for each, price in zip(
                        planned, (common.baseline, common.candidate), strict=True
                    )
                ),
                days=found.days,
                porting_usd=found.porting_usd,
                tokens=found.tokens if found.is_by_tokens else None,
            ),
        )
        for common in kinds.common
    )


def _cost(planned: Planned, arm: Arm, *, days: float, work: float) -> ArmCost:
    spent = float(arm.expected.usd_by(days))
    done, could = arm.expected.tokens_by(days), arm.could.tokens_by(days)
    per_mtok = None
    if float(done) > 0:
        with np.errstate(divide="ignore"):
            per_mtok = _span(
                spent / done * TOKENS_PER_MTOK, spent / np.asarray(could) * TOKENS_PER_MTOK
            )
    return ArmCost(
        label=planned.label,
        run=planned.run,
        start_days=float(arm.expected.start_days),
        usd_at_first_step=float(arm.expected.usd_at_first_step),
        same_days_usd=spent,
        same_days_tokens=_span(done, could),
        usd_per_mtok=per_mtok,
        same_tokens_usd=_span(arm.expected.usd_for(work), arm.could.usd_for(work)),
        same_tokens_days=_span(arm.expected.days_for(work), arm.could.days_for(work)),
    )


def _even(baseline: Arm, candidate: Arm) -> Even:
    found = break_even(baseline.expected, candidate.expected)
    could = break_even_days(baseline.could, candidate.could)
    return Even(
        reason=found.reason,
        days=None if found.days is None else _span(found.days, could),
        tokens=found.tokens,
        chance_ratio=float(np.isfinite(could).mean()),
    )


def _saved(planned: Planned, kept: Arm, lost: Arm, work: float) -> Saved:
    def more(of: str) -> Span:
        expected = getattr(lost.expected, of)(work) - getattr(kept.expected, of)(work)
        could = getattr(lost.could, of)(work) - getattr(kept.could, of)(work)
        return _span(expected, could)

    return Saved(planned.label, more("usd_for"), more("days_for"))


def _span(expected: float | FloatArray, could: float | FloatArray) -> Span:
    low, high = interval(np.atleast_1d(np.asarray(could, dtype=float)))
    ends = (end if math.isfinite(end) else None for end in (low, high))
    return Span(float(expected), *ends)
