"""Figures in a log's text: how they are written, and which of them can be believed."""

import math
import re

EXPONENT = r"(?:e[-+]?\d{1,4})?"
NUMBER = (
    rf"[-+]?(?:\d{{1,18}}(?:,\d{{3}})*(?:\.\d*)?{EXPONENT}"
    rf"|\.\d{{1,18}}{EXPONENT}|nan|inf(?:inity)?)"
)
PAIR = re.compile(rf"([\w/.-]{{1,60}})=({NUMBER})", re.ASCII | re.IGNORECASE)
HIGHEST_STEP = 2_000_000_000
LONGEST_STEP_S = 1e6


def figure(text: str | None) -> float:
    """Return a figure; what is missing or not finite is NaN."""
    if text is None:
        return math.nan
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def positive(text: str | None, *, most: float = 1e15) -> float:
    """Return a figure that only makes sense above zero; NaN where it does not."""
    value = figure(text)
    return value if 0 < value <= most else math.nan


def step_number(text: str | None) -> int | None:
    """Return the number of a step, which may be written as 29.0; None where it is none."""
    value = figure(text)
    if not 0 <= value <= HIGHEST_STEP or value != int(value):
        return None
    return int(value)


def step_seconds(text: str | None) -> float:
    """Return how long a step took; NaN where that cannot be."""
    return positive(text, most=LONGEST_STEP_S)


def clock_seconds(text: str) -> float:
    """Return what a progress bar's clock says: 12:34, or 1:02:03."""
    parts = text.split(":")
    if not 1 < len(parts) <= 3 or not all(part.isdecimal() and len(part) < 8 for part in parts):
        return math.nan
    total = 0
    for part in parts:
        total = 60 * total + int(part)
    return float(total)
