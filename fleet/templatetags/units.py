"""Figures for people: percent, bytes, seconds, dollars; absent is a dash, never zero."""

import math
from datetime import timedelta
from typing import TypeGuard

from django import template

register = template.Library()

ABSENT = "\u2013"
MINUS = "\u2212"
NBSP = "\u202f"  # narrow and unbreakable: a figure never parts from its unit

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _known(value: object) -> TypeGuard[float]:
    """Whether there is a figure at all: None, NaN and words are none."""
    return isinstance(value, int | float) and math.isfinite(value)


def _digits(value: float) -> str:
    """Write three significant digits, never powers of ten."""
    if value == 0:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(float(f"{value:.3g}"))))
    return f"{value:,.{min(max(decimals, 0), 6)}f}"


def _scaled(value: object, unit: str) -> str:
    if not _known(value):
        return ABSENT
    size, prefix = next(((s, p) for s, p in _PREFIXES if abs(value) >= s * 0.9995), (1.0, ""))
    return f"{_digits(value / size)}{NBSP}{prefix}{unit}".rstrip(NBSP)


@register.filter
def percent(ratio: float | None, decimals: int = 1) -> str:
    """Write a ratio in percent: 0.314 → 31.4 %."""
    return f"{ratio * 100:.{decimals}f}{NBSP}%" if _known(ratio) else ABSENT


@register.filter
def si(value: float | None) -> str:
    """Write a large number with its prefix: 1213000 → 1.21 M."""
    return _scaled(value, "")


@register.filter
def size(n_bytes: float | None) -> str:
    """Write bytes: 96e9 → 96.0 GB."""
    return _scaled(n_bytes, "B")


@register.filter
def rate(bytes_per_s: float | None) -> str:
    """Write bytes per second: 1.8e12 → 1.80 TB/s."""
    return _scaled(bytes_per_s, "B/s")


@register.filter
def seconds(value: float | None) -> str:
    """Write a duration by its size: 8.41 s, 310 ms, 142 µs."""
    if not _known(value):
        return ABSENT
    if value == 0 or abs(value) >= 0.9995:
        return f"{_digits(value)}{NBSP}s"
    if abs(value) >= 0.9995e-3:
        return f"{_digits(value * 1e3)}{NBSP}ms"
    return f"{_digits(value * 1e6)}{NBSP}µs"


@register.filter
def usd(value: float | None) -> str:
    """Write dollars: whole ones above a hundred, cents below, tenths of a cent below ten."""
    if not _known(value):
        return ABSENT
    decimals = 0 if abs(value) >= 100 else 2 if abs(value) >= 0.0995 or not value else 3
    return f"{MINUS if value < 0 else ''}${abs(value):,.{decimals}f}"


@register.filter
def count(value: float | None) -> str:
    """Write a whole number, thousands apart: 18204 → 18,204."""
    return f"{value:,.0f}" if _known(value) else ABSENT


@register.filter
def duration(value: float | timedelta | None) -> str:
    """Write how long something lasted: 41 s, 3 min, 1 h 6 min, 2 d 7 h."""
    total = value.total_seconds() if isinstance(value, timedelta) else value
    if not _known(total):
        return ABSENT
    whole = max(0, int(total))
    days, hours, minutes = whole // 86_400, whole // 3_600, whole // 60
    if days:
        return f"{days}{NBSP}d {hours % 24}{NBSP}h"
    if hours:
        return f"{hours}{NBSP}h {minutes % 60}{NBSP}min"
    return f"{minutes}{NBSP}min" if minutes else f"{whole}{NBSP}s"
