"""The chart of a schedule: dollars of two arms, over days or over tokens, and where they cross."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fleet.formatting import si
from fleet.trials.schedule import Projection, arms_of
from fleet.trials.schedule_arms import Planned
from fleet.trials.schedule_forms import ScheduleRequest
from fleet.trials.schedule_text import days as days_text
from telemetry.blocks import FloatArray
from telemetry.statistics.break_even import Curve, Curves, over_days, over_tokens

N_POINTS = 57


def schedule_figure(
    found: Projection, planned: tuple[Planned, ...], request: ScheduleRequest
) -> dict[str, Any]:
    """Return what the page's script draws: lines over numbers, each with its 95 % band.

    A line whose role is low or high bounds the one named before it.
    """
    points = _points(found, planned, request)
    by_days = request.by != "tokens"
    at = points.days if by_days else points.tokens
    if request.by == "saved":
        lines = _lines(
            "saved",
            Curve(
                points.baseline.usd - points.candidate.usd,
                points.baseline.low - points.candidate.usd,
                points.baseline.high - points.candidate.usd,
            ),
        )
    else:
        lines = [
            *_lines(planned[-1].label, points.candidate),
            *_lines(f"{planned[0].label}{', same tokens' if by_days else ''}", points.baseline),
        ]
    return {
        "t": at.tolist(),
        "labels": [_label(each, by_days=by_days) for each in at.tolist()],
        "x_unit": "days" if by_days else "tokens",
        "unit": "usd",
        "series": lines,
        "events": _events(found, request),
    }


def _points(found: Projection, planned: tuple[Planned, ...], request: ScheduleRequest) -> Curves:
    baseline, candidate = arms_of(
        planned, days=found.days, porting_usd=found.porting_usd, has_reuse=request.has_reuse
    )
    if request.by != "tokens":
        return over_days(baseline, candidate, np.linspace(0, found.days, N_POINTS))
    return over_tokens(baseline, candidate, np.linspace(0, found.tokens, N_POINTS))


def _lines(label: str, curve: Curve) -> list[dict[str, Any]]:
    lines = [_line(label, curve.usd, None)]
    if np.array_equal(curve.low, curve.high):
        return lines
    return [
        *lines,
        _line(f"{label}, at least", curve.low, "low"),
        _line(f"{label}, at most", curve.high, "high"),
    ]


def _line(label: str, values: FloatArray, role: str | None) -> dict[str, Any]:
    return {"label": label, "values": np.round(values, 2).tolist(), "role": role}


def _label(at: float, *, by_days: bool) -> str:
    return f"day {at:.2f}" if by_days else f"{si(at)} tokens"


def _events(found: Projection, request: ScheduleRequest) -> Sequence[tuple[float, str, str]]:
    even = found.scenario(has_reuse=request.has_reuse).break_even
    if even is None or even.days is None or even.tokens is None:
        return []
    at = even.tokens if request.by == "tokens" else even.days.value
    is_shown = at <= (found.tokens if request.by == "tokens" else found.days)
    words = f"earned back after {days_text(even.days.value)}"
    return [(at, words, "break-even")] if is_shown and even.tokens else []
