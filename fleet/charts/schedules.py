"""The chart of a schedule: dollars of two arms, over days or over tokens, and where they cross."""

from typing import Any

import numpy as np

from fleet.formatting import si
from fleet.trials.schedule import Projection, forecasts_of
from fleet.trials.schedule_arms import Planned
from fleet.trials.schedule_forms import ScheduleRequest
from fleet.trials.schedule_text import days as days_text
from telemetry.blocks import FloatArray
from telemetry.statistics.break_even import Curve, over_days, over_tokens

N_POINTS = 57


def schedule_figure(
    found: Projection, planned: tuple[Planned, ...], request: ScheduleRequest
) -> dict[str, Any]:
    """Return what the page's script draws: lines over numbers, each with its 95 % band.

    A line whose role is low or high bounds the one named before it.
    """
    baseline, candidate = forecasts_of(found, planned, has_reuse=request.has_reuse)
    by_days = request.by != "tokens"
    if by_days:
        points = over_days(baseline, candidate, np.linspace(0, found.days, N_POINTS))
        at = points.days.tolist()
        labels = [f"day {each:.2f}" for each in at]
    else:
        points = over_tokens(baseline, candidate, np.linspace(0, found.tokens, N_POINTS))
        at = points.tokens.tolist()
        labels = [f"{si(each)} tokens" for each in at]
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
    events: list[tuple[float, str, str]] = []
    even = found.scenario(has_reuse=request.has_reuse).break_even
    if even is not None and even.days is not None and even.tokens:
        even_at = even.days.value if by_days else even.tokens
        if even_at <= (found.days if by_days else found.tokens):
            text = f"earned back after {days_text(even.days.value)}"
            events.append((even_at, text, "break-even"))
    return {
        "t": at,
        "labels": labels,
        "x_unit": "days" if by_days else "tokens",
        "unit": "usd",
        "series": lines,
        "events": events,
    }


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
