"""Two arms side by side as they go on: dollars over days or tokens, with what chance may do."""

from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.project.chance import ENDS
from telemetry.project.course import Course


@dataclass(frozen=True, slots=True)
class Curve:
    """Dollars at each point, from ``low`` to ``high`` in 95 of 100 cases: each (n_points,)."""

    usd: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, slots=True)
class Curves:
    """What the candidate has cost, and what the baseline would for the same tokens.

    ``days`` (n_points,) from the candidate's start, ``tokens`` (n_points,) it has trained on by
    then. Where points are days, ``tokens`` is what is expected.
    """

    days: FloatArray
    tokens: FloatArray
    candidate: Curve
    baseline: Curve


@dataclass(frozen=True, slots=True)
class Arm:
    """An arm as it is expected to go, and as it could: draws of (n_draws,)."""

    expected: Course
    could: Course


def over_days(baseline: Arm, candidate: Arm, days: FloatArray) -> Curves:
    """Return what the candidate has cost by each day, beside the baseline for the same tokens."""
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


def over_tokens(baseline: Arm, candidate: Arm, tokens: FloatArray) -> Curves:
    """Return what each arm costs until it has trained on so many tokens."""
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
    """Let draws run along the second axis, points along the first."""
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
