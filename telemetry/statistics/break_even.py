"""Cost of two arms over days or tokens, and their break-even, with intervals."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.statistics.forecast import ENDS, Course


class Reason(StrEnum):
    """Why there is a break-even, or none."""

    EARNED_BACK = "earned back"
    FROM_THE_START = "ahead from the start"
    COSTS_MORE = "dearer per token"
    AHEAD_AT_FIRST = "dearer per token, ahead at first"


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Days from the start of the candidate, and tokens by then; None without one."""

    reason: Reason
    days: float | None
    tokens: float | None


def break_even(baseline: Course, candidate: Course) -> BreakEven:
    """Find when the candidate has cost less than the baseline for the same tokens.

    Both arms (courses of single numbers) pay for their start, then for every token. The candidate
    is ahead from

        tokens = (start of candidate - start of baseline) / (baseline - candidate, per token)

    on, in dollars and dollars per token; never if it costs more per token.

    The baseline costs $2 per token, the candidate $1 and $10 for porting, at 5 tokens a day:

    >>> baseline = Course(0.0, 2.0, 0.0, 1.0)
    >>> candidate = Course(10.0, 5.0, 0.0, 5.0)
    >>> found = break_even(baseline, candidate)
    >>> found.days, found.tokens
    (2.0, 10.0)
    """
    owed = float(candidate.usd_at_first_step - baseline.usd_at_first_step)
    gained = float(baseline.usd_per_token - candidate.usd_per_token)
    if gained <= 0:
        return BreakEven(Reason.COSTS_MORE if owed >= 0 else Reason.AHEAD_AT_FIRST, None, None)
    if owed <= 0:
        return BreakEven(Reason.FROM_THE_START, float(candidate.start_days), 0.0)
    tokens = owed / gained
    return BreakEven(Reason.EARNED_BACK, float(candidate.days_for(tokens)), tokens)


def break_even_days(baseline: Course, candidate: Course) -> FloatArray:
    """Break-even of every draw: (n_draws,) days, infinity without one."""
    owed = np.asarray(candidate.usd_at_first_step - baseline.usd_at_first_step, dtype=float)
    gained = np.asarray(baseline.usd_per_token - candidate.usd_per_token, dtype=float)
    is_ahead = gained > 0
    tokens = np.maximum(owed, 0.0) / np.where(is_ahead, gained, 1.0)
    return np.where(is_ahead, candidate.days_for(tokens), np.inf)


@dataclass(frozen=True, slots=True)
class Curve:
    """Dollars at each point with a 95 % interval: (n_points,) each."""

    usd: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, slots=True)
class Curves:
    """Cost of the candidate, and of the baseline for the same tokens.

    ``days`` (n_points,) from the candidate's start, ``tokens`` (n_points,) it has trained by then.
    """

    days: FloatArray
    tokens: FloatArray
    candidate: Curve
    baseline: Curve


@dataclass(frozen=True, slots=True)
class ArmForecast:
    """The expected course of an arm, and draws of it (n_draws,)."""

    expected: Course
    could: Course


def over_days(baseline: ArmForecast, candidate: ArmForecast, days: FloatArray) -> Curves:
    """Cost of the candidate by day, and of the baseline for the same tokens."""
    tokens = np.asarray(candidate.expected.tokens_by(days))
    could = np.asarray(_columns(candidate.could).tokens_by(days[:, None]))
    spent = np.asarray(candidate.expected.usd_by(days))
    return Curves(
        days,
        tokens,
        candidate=Curve(spent, spent, spent),
        baseline=_curve(
            np.asarray(baseline.expected.usd_for(tokens)),
            np.asarray(_columns(baseline.could).usd_for(could)),
        ),
    )


def over_tokens(baseline: ArmForecast, candidate: ArmForecast, tokens: FloatArray) -> Curves:
    curves = [
        _curve(
            np.asarray(arm.expected.usd_for(tokens)),
            np.asarray(_columns(arm.could).usd_for(tokens[:, None])),
        )
        for arm in (baseline, candidate)
    ]
    days = np.asarray(candidate.expected.days_for(tokens))
    return Curves(days, tokens, candidate=curves[1], baseline=curves[0])


def _columns(could: Course) -> Course:
    """Reshape so that draws vary along the second axis, and points along the first."""
    return Course(
        *(
            np.atleast_1d(np.asarray(value, dtype=float))[None, :]
            for value in (
                could.fixed_usd,
                could.usd_per_day,
                could.start_days,
                could.tokens_per_day,
            )
        )
    )


def _curve(expected: FloatArray, could: FloatArray) -> Curve:
    low, high = np.quantile(could, ENDS, axis=1)
    return Curve(expected, low, high)
