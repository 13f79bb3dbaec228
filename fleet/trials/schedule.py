"""Schedules: what long runs will cost on each arm of a trial, and when a move is earned back."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import numpy as np

from fleet.models import ObservedRun, Run, Trial, TrialArm
from fleet.trials.observed import Observed, observe
from fleet.trials.schedule_arms import Planned, planned_of, with_failures
from fleet.trials.schedule_forms import ScheduleRequest
from fleet.trials.verdict import CommonKind, PriceKinds, price_kinds
from telemetry.blocks import FloatArray
from telemetry.errors import FieldError
from telemetry.statistics.break_even import ArmForecast, break_even, break_even_days
from telemetry.statistics.forecast import HOURS_PER_DAY, course, drawn, interval, stretch
from telemetry.store.reading import Source
from telemetry.units import TOKENS_PER_MTOK

REUSES = (True, False)
MOST_DAYS = 3_650.0
# A run that failures make this many times as long cannot be planned.
MOST_STRETCH = 100.0


class Range(msgspec.Struct, frozen=True):
    """An expected figure with its 95 % interval.

    An infinite end is None, for example that of a break-even that may never come.
    """

    value: float
    low: float | None
    high: float | None


class ArmCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one arm: over the same days, and for the same tokens."""

    label: str
    run: str | None
    start_days: float
    usd_at_first_step: float
    same_days_usd: float
    same_days_tokens: Range
    usd_per_mtok: Range | None
    same_tokens_usd: Range
    same_tokens_days: Range


class BreakEvenPoint(msgspec.Struct, frozen=True, kw_only=True):
    """When savings repay the candidate's one-time costs; ``days`` is None if they never do.

    ``reason`` says why. ``chance_ratio`` is the share of draws in which they do.
    """

    reason: str
    days: Range | None
    tokens: float | None
    chance_ratio: float


class ReuseScenario(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule with compiled graphs reused, or without. The baseline is the first of two arms.

    ``saved_usd`` and ``extra_days`` are of the candidate against the baseline, for equal tokens.
    """

    has_reuse: bool
    arms: tuple[ArmCost, ...]
    break_even: BreakEvenPoint | None
    saved_usd: Range | None
    extra_days: Range | None = None


class Saved(msgspec.Struct, frozen=True):
    """What reusing compiled graphs saves one arm, for the same tokens."""

    label: str
    usd: Range
    days: Range


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule of ``days``; ``tokens`` is the work that all costs refer to.

    ``porting_usd`` and ``waiting_usd_per_day`` contain the engineers' time.
    """

    days: float
    porting_usd: float
    waiting_usd_per_day: float
    tokens: float
    is_by_tokens: bool
    scenarios: tuple[ReuseScenario, ...]
    reuse_saves: tuple[Saved, ...]

    def scenario(self, *, has_reuse: bool) -> ReuseScenario:
        return next(scenario for scenario in self.scenarios if scenario.has_reuse == has_reuse)


def arms_of(
    planned: tuple[Planned, ...],
    *,
    days: float,
    porting_usd: float,
    waiting_usd_per_day: float,
    has_reuse: bool,
) -> tuple[ArmForecast, ...]:
    """Forecast the arms in one scenario. Both scenarios use the same random draws."""
    arms = []
    for place, each in enumerate(planned):
        usd = porting_usd if place == len(planned) - 1 else 0.0
        # Engineers who wait for the run cost by the day, like its nodes.
        habits = replace(
            each.habits,
            usd_per_hour=each.habits.usd_per_hour + waiting_usd_per_day / HOURS_PER_DAY,
        )
        rng = np.random.default_rng([each.seed, place])
        could = drawn(habits, each.doubt, days=days, rng=rng)
        arms.append(
            ArmForecast(
                course(habits, has_reuse=has_reuse, porting_usd=usd),
                course(could, has_reuse=has_reuse, porting_usd=usd),
            )
        )
    return tuple(arms)


def forecasts_of(
    found: Projection, planned: tuple[Planned, ...], *, has_reuse: bool
) -> tuple[ArmForecast, ...]:
    return arms_of(
        planned,
        days=found.days,
        porting_usd=found.porting_usd,
        waiting_usd_per_day=found.waiting_usd_per_day,
        has_reuse=has_reuse,
    )


def length_of(
    planned: tuple[Planned, ...], *, days: float, tokens: float | None
) -> tuple[float, float]:
    """Compute days and tokens of a schedule; the days follow from the tokens if given.

    Raises FieldError where failures keep an arm from training, the candidate does not reach its
    first step, or the tokens take too long.
    """
    for each in planned:
        if float(stretch(each.habits, has_reuse=True)) > MOST_STRETCH:
            raise FieldError(
                "failures", f"so many keep {each.label} from making progress; choose fewer"
            )
    candidate = course(planned[-1].habits, has_reuse=True)
    if tokens is None:
        work = float(candidate.tokens_by(days))
        if work <= 0:
            start = f"{float(candidate.start_days):.2f}"
            raise FieldError("days", f"the first step comes after {start} days; choose more")
        return days, work
    needed = float(candidate.days_for(tokens))
    if needed > MOST_DAYS:
        raise FieldError("tokens", f"they take {needed:,.0f} days; choose fewer")
    return needed, tokens


def project(
    planned: tuple[Planned, ...],
    *,
    days: float,
    porting_usd: float,
    tokens: float | None = None,
    waiting_usd_per_day: float = 0.0,
) -> Projection:
    """Project a schedule of a baseline and a candidate, or of one arm alone.

    Parameters
    ----------
    planned : the baseline and the candidate, or only the latter
    days : length of the candidate's schedule
    porting_usd : what moving the model to the candidate costs
    tokens : instead of days: as long as the candidate trains on so many, with reuse
    waiting_usd_per_day : what engineers cost who wait for the run, on either arm

    Raises FieldError where the candidate does not reach its first step.
    """
    days, work = length_of(planned, days=days, tokens=tokens)
    scenarios = {
        has_reuse: arms_of(
            planned,
            days=days,
            porting_usd=porting_usd,
            waiting_usd_per_day=waiting_usd_per_day,
            has_reuse=has_reuse,
        )
        for has_reuse in REUSES
    }
    return Projection(
        days=days,
        porting_usd=porting_usd,
        waiting_usd_per_day=waiting_usd_per_day,
        tokens=work,
        is_by_tokens=tokens is not None,
        scenarios=tuple(
            _scenario(planned, scenarios[r], has_reuse=r, days=days, work=work) for r in REUSES
        ),
        reuse_saves=tuple(
            _saved(each, kept, lost, work)
            for each, kept, lost in zip(planned, scenarios[True], scenarios[False], strict=True)
        ),
    )


def project_request(
    planned: tuple[Planned, ...], asked: ScheduleRequest
) -> tuple[tuple[Planned, ...], Projection]:
    """Project what was asked for; also return the arms, with the asked failures.

    Raises FieldError as `project` does.
    """
    if asked.failures is not None:
        planned = tuple(with_failures(each, asked.failures) for each in planned)
    return planned, project(
        planned,
        days=asked.days,
        porting_usd=asked.total_porting_usd,
        tokens=asked.tokens,
        waiting_usd_per_day=asked.waiting_usd_per_day,
    )


def _scenario(
    planned: tuple[Planned, ...],
    arms: tuple[ArmForecast, ...],
    *,
    has_reuse: bool,
    days: float,
    work: float,
) -> ReuseScenario:
    costs = []
    for each, arm in zip(planned, arms, strict=True):
        spent = float(arm.expected.usd_by(days))
        done, could = arm.expected.tokens_by(days), arm.could.tokens_by(days)
        per_mtok = None
        if float(done) > 0:
            with np.errstate(divide="ignore"):
                per_mtok = _span(
                    spent / done * TOKENS_PER_MTOK, spent / np.asarray(could) * TOKENS_PER_MTOK
                )
        costs.append(
            ArmCost(
                label=each.label,
                run=each.run,
                start_days=float(arm.expected.start_days),
                usd_at_first_step=float(arm.expected.usd_at_first_step),
                same_days_usd=spent,
                same_days_tokens=_span(done, could),
                usd_per_mtok=per_mtok,
                same_tokens_usd=_span(arm.expected.usd_for(work), arm.could.usd_for(work)),
                same_tokens_days=_span(arm.expected.days_for(work), arm.could.days_for(work)),
            )
        )
    if len(arms) < 2:
        return ReuseScenario(
            has_reuse=has_reuse, arms=tuple(costs), break_even=None, saved_usd=None
        )
    baseline, candidate = arms
    even = break_even(baseline.expected, candidate.expected)
    could_days = break_even_days(baseline.could, candidate.could)
    return ReuseScenario(
        has_reuse=has_reuse,
        arms=tuple(costs),
        break_even=BreakEvenPoint(
            reason=even.reason,
            days=None if even.days is None else _span(even.days, could_days),
            tokens=even.tokens,
            chance_ratio=float(np.isfinite(could_days).mean()),
        ),
        saved_usd=_more("usd_for", baseline, candidate, work),
        extra_days=_more("days_for", candidate, baseline, work),
    )


def kinds_of(planned: tuple[Planned, ...]) -> PriceKinds | None:
    """Compare the price kinds of two arms; None for one arm, or where none is known."""
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
    """Project a schedule at list prices of each kind that both arms have.

    Empty where both arms pay prices of one kind: the schedule itself is comparable then.
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
                waiting_usd_per_day=found.waiting_usd_per_day,
            ),
        )
        for common in kinds.common
    )


def _saved(planned: Planned, kept: ArmForecast, lost: ArmForecast, work: float) -> Saved:
    more = [_more(of, lost, kept, work) for of in ("usd_for", "days_for")]
    return Saved(planned.label, *more)


def _more(of: str, one: ArmForecast, other: ArmForecast, work: float) -> Range:
    """Compute by how much one arm's dollars or days for the same work exceed another's."""
    expected = getattr(one.expected, of)(work) - getattr(other.expected, of)(work)
    could = getattr(one.could, of)(work) - getattr(other.could, of)(work)
    return _span(expected, could)


def _span(expected: float | FloatArray, could: float | FloatArray) -> Range:
    low, high = interval(np.atleast_1d(np.asarray(could, dtype=float)))
    ends = (end if math.isfinite(end) else None for end in (low, high))
    return Range(float(expected), *ends)


OBSERVE_EVERY = timedelta(minutes=5)


def update_observed_runs(hot: Source, *, now: datetime) -> int:
    """Observe the runs of trials every five minutes; return how many were due.

    A trial that has ended is observed once more, at its end.
    """
    due = {
        arm.run: trial.until(now)
        for trial in Trial.objects.with_arms().order_by("pk")
        for arm in trial.arms.all()
    }
    kept = dict(ObservedRun.objects.values_list("run_id", "observed_at"))
    n = 0
    for run, until in due.items():
        last = kept.get(run.pk)
        if last is None or (last < until and now - last >= OBSERVE_EVERY):
            store_observed(hot, run, until=until)
            n += 1
    return n


def store_observed(hot: Source, run: Run, *, until: datetime) -> Observed:
    seen = observe(hot, run, until=until)
    figures = msgspec.to_builtins(seen)
    ObservedRun.objects.update_or_create(
        run=run, defaults={"figures": figures, "observed_at": until}
    )
    return seen


def stored_observations(runs: Iterable[Run]) -> dict[int, tuple[Observed, datetime]]:
    """Read the stored observations of runs with their times, by the run's key."""
    rows = ObservedRun.objects.filter(run__in=list(runs))
    return {row.run_id: (msgspec.convert(row.figures, Observed), row.observed_at) for row in rows}


MOST_RUNS = 2


def pair_of(trial: Trial, *, candidate: str) -> tuple[TrialArm, TrialArm]:
    """Find a trial's baseline and a candidate, by the name of its run; default: the first.

    Raises FieldError where the trial has no such candidate, or one arm only.
    """
    arms = trial.compared_arms
    baseline = next((arm for arm in arms if arm.is_baseline), None)
    candidates = [arm for arm in arms if not arm.is_baseline]
    if baseline is None or not candidates:
        raise FieldError("trial", f"{trial} has one arm only; a schedule compares two")
    chosen = next((arm for arm in candidates if candidate in ("", arm.run.name)), None)
    if chosen is None:
        names = ", ".join(arm.run.name for arm in candidates)
        raise FieldError(
            "candidate", f"{candidate[:60]!r} is not a candidate of {trial}. Choose {names}"
        )
    return baseline, chosen


def stored_pair(trial: Trial, *, candidate: str) -> tuple[tuple[Planned, ...], datetime] | None:
    """Derive a trial's arms from stored observations, with their time; None without any.

    Raises FieldError where an arm has no price or too few steps, or there is no such candidate.
    """
    arms = pair_of(trial, candidate=candidate)
    kept = stored_observations(arm.run for arm in arms)
    if any(arm.run.pk not in kept for arm in arms):
        return None
    observed = [kept[arm.run.pk] for arm in arms]
    planned = [
        planned_of(arm.run, seen, label=arm.label, field="trial")
        for arm, (seen, _) in zip(arms, observed, strict=True)
    ]
    return tuple(planned), min(at for _, at in observed)


def pair_now(hot: Source, trial: Trial, *, candidate: str, now: datetime) -> tuple[Planned, ...]:
    """Observe a trial's arms now.

    Raises FieldError as `stored_pair` does.
    """
    return tuple(
        planned_of(
            arm.run, observe(hot, arm.run, until=trial.until(now)), label=arm.label, field="trial"
        )
        for arm in pair_of(trial, candidate=candidate)
    )


def runs_now(hot: Source, names: Sequence[str], *, now: datetime) -> tuple[Planned, ...]:
    """Observe runs now: one, or a baseline and a candidate.

    Raises FieldError where a run does not exist, or it has no price or too few steps.
    """
    if len(names) > MOST_RUNS or len(set(names)) < len(names):
        raise FieldError("run", "give one run, or two different ones")
    known = Run.objects.in_bulk(list(names), field_name="name")
    for name in names:
        if name not in known:
            raise FieldError("run", f"no run is called {name[:60]!r}")
    return tuple(planned_of(known[name], observe(hot, known[name], until=now)) for name in names)
