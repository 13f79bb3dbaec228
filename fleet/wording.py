"""How figures read: seconds, shares, bytes and dollars in words; absent is a dash, never zero."""

import math
from collections.abc import Callable, Mapping
from datetime import timedelta

NBSP = "\u00a0"  # a figure never parts from its unit
ABSENT = "\u2013"
MINUS = "\u2212"

_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
# 999.6 would read 1,000 in its own unit: it belongs to the next.
NEARLY = 0.9995


def is_known(value: float | None) -> bool:
    """Whether there is a figure to write."""
    return value is not None and math.isfinite(value)


def digits(value: float) -> str:
    """Write three significant digits, thousands apart, never in powers of ten."""
    if value == 0:
        return "0"
    size = abs(value)
    n_decimals = min(6, max(0, 2 - math.floor(math.log10(size / NEARLY))))
    return f"{value:,.{n_decimals}f}"


def percent(ratio: float | None, n_decimals: int = 1) -> str:
    """Write a ratio in percent: 0.314 is 31.4 %."""
    if ratio is None or not is_known(ratio):
        return ABSENT
    return f"{100 * ratio:.{int(n_decimals)}f}{NBSP}%"


def seconds(value: float | None) -> str:
    """Write a short duration by its size: 8.41 s, 310 ms, 142 µs."""
    if value is None or not is_known(value):
        return ABSENT
    if value == 0 or abs(value) >= NEARLY:
        return f"{digits(value)}{NBSP}s"
    if abs(value) >= NEARLY * 1e-3:
        return f"{digits(value * 1e3)}{NBSP}ms"
    return f"{digits(value * 1e6)}{NBSP}µs"


def span(length: timedelta | float | None) -> str:
    """Write how long something lasts: 41 s, 3 min, 1 h 6 min, 2 d 7 h."""
    value = length.total_seconds() if isinstance(length, timedelta) else length
    if value is None or not is_known(value):
        return ABSENT
    left = max(0, int(value))
    i, (size, unit) = next((i, s) for i, s in enumerate(_SPANS) if left >= s[0] or s[0] == 1)
    text = f"{left // size}{NBSP}{unit}"
    if unit in ("d", "h") and (rest := left % size // _SPANS[i + 1][0]):
        text += f" {rest}{NBSP}{_SPANS[i + 1][1]}"
    return text


def short(value: float | None, unit: str = "") -> str:
    """Write a large figure with its prefix: 1.21 M, 2.30 TB/s."""
    if value is None or not is_known(value):
        return ABSENT
    size, prefix = next((s for s in _PREFIXES if abs(value) >= s[0] * NEARLY), (1.0, ""))
    return f"{digits(value / size)}{NBSP}{prefix}{unit}".rstrip(NBSP)


def usd(value: float | None) -> str:
    """Write dollars: cents below a hundred, whole ones above."""
    if value is None or not is_known(value):
        return ABSENT
    n_decimals = 2 if abs(value) < 100 else 0
    return f"{MINUS if value < 0 else ''}${abs(value):,.{n_decimals}f}"


def count(value: float | None) -> str:
    """Write a whole number, thousands apart."""
    return f"{value:,.0f}" if value is not None and is_known(value) else ABSENT


def counted(n: float, noun: str, plural: str = "") -> str:
    """Write a number with its noun, one or many."""
    return f"{count(n)}{NBSP}{noun if round(n) == 1 else plural or noun + 's'}"


WRITERS: Mapping[str, Callable[[float], str]] = {
    "s": seconds,
    "ratio": percent,
    "bytes": lambda value: short(value, "B"),
    "bytes_per_s": lambda value: short(value, "B/s"),
    "per_s": lambda value: short(value, "/s"),
    "count": count,
    "factor": lambda value: f"{value:.2f}{NBSP}\u00d7",
}


def figure(value: float | None, unit: str | None) -> str:
    """Write a value by the name of its unit, as metrics and evidence name it."""
    return ABSENT if value is None else WRITERS.get(unit or "", short)(value)
