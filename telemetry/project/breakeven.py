"""When a candidate has earned back what its start cost: as a moment, or why there is none."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.project.course import Course


class Reason(StrEnum):
    """Why there is a break-even, or none."""

    EARNED_BACK = "earned back"
    FROM_THE_START = "ahead from the start"
    DEARER = "dearer per token"
    AHEAD_AT_FIRST = "dearer per token, ahead at first"


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The moment from the candidate's start, and the tokens by then; None where there is none."""

    reason: Reason
    days: float | None
    tokens: float | None


def break_even(baseline: Course, candidate: Course) -> BreakEven:
    """Return when the candidate has cost less than the baseline would for the same tokens.

    Parameters
    ----------
    baseline, candidate : of single numbers

    Notes
    -----
    Both pay for their start, then for every token. The candidate is ahead from

        tokens = (start of candidate - start of baseline) / (baseline - candidate, per token)

    on, in dollars and dollars per token. Where it is dearer per token it never gets there.

    Examples
    --------
    The baseline costs $2 per token, the candidate $1 and $10 for porting; it trains on 5 tokens
    a day. Ten tokens earn the $10 back, and take two days:

    >>> baseline = Course(0.0, 2.0, 0.0, 1.0)
    >>> candidate = Course(10.0, 5.0, 0.0, 5.0)
    >>> found = break_even(baseline, candidate)
    >>> found.days, found.tokens
    (2.0, 10.0)
    """
    owed = float(candidate.usd_at_first_step - baseline.usd_at_first_step)
    gained = float(baseline.usd_per_token - candidate.usd_per_token)
    if gained <= 0:
        return BreakEven(Reason.DEARER if owed >= 0 else Reason.AHEAD_AT_FIRST, None, None)
    if owed <= 0:
        return BreakEven(Reason.FROM_THE_START, float(candidate.start_days), 0.0)
    tokens = owed / gained
    return BreakEven(Reason.EARNED_BACK, float(candidate.days_for(tokens)), tokens)


def break_even_days(baseline: Course, candidate: Course) -> FloatArray:
    """Return the moment of every draw: (n_draws,) days, infinity where it never comes."""
    owed = np.asarray(candidate.usd_at_first_step - baseline.usd_at_first_step, dtype=float)
    gained = np.asarray(baseline.usd_per_token - candidate.usd_per_token, dtype=float)
    is_ahead = gained > 0
    tokens = np.maximum(owed, 0.0) / np.where(is_ahead, gained, 1.0)
    return np.where(is_ahead, candidate.days_for(tokens), np.inf)
