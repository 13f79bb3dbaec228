"""Figures in a probe's table: plain, with k and m behind them, or absent."""

import math
import re

MICRO = 1e-6
MEGA = 1e6
GIGA = 1e9
GIBI = 2.0**30
KIBI = 1024.0
SCALES = {"": 1.0, "k": KIBI, "m": KIBI**2, "g": KIBI**3}
FIGURE = re.compile(r"[=^]?([0-9]{1,18}(?:\.[0-9]{0,9})?(?:e[-+]?[0-9]{1,3})?)([kmg]?)", re.I)
ABSENT = ("n/a", "-", "nan")


def figure(word: str) -> float | None:
    """Return a figure, NaN where it says that there is none, None where it is no figure."""
    if word.lower() in ABSENT:
        return math.nan
    match = FIGURE.fullmatch(word)
    if match is None:
        return None
    value = float(match[1]) * SCALES[match[2].lower()]
    return value if math.isfinite(value) else math.nan


def above_zero(value: float | None) -> float:
    """Return a time or a size, NaN where it is none."""
    return value if value is not None and value > 0 else math.nan
