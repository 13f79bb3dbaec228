"""How figures read inside a sentence: a number with its noun, a value by its unit's name."""

from collections.abc import Callable, Mapping, Sequence

from fleet.templatetags.units import ABSENT, NBSP, count, percent, rate, seconds, si, size, usd


def counted(n: float, noun: str, plural: str = "") -> str:
    """Write a number with its noun, one or many."""
    return f"{count(n)}{NBSP}{noun if round(n) == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = 24) -> str:
    """Write names one after another; of very many the first, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {count(len(names) - most)} more"


WRITERS: Mapping[str, Callable[[float], str]] = {
    "s": seconds,
    "ratio": percent,
    "bytes": size,
    "bytes_per_s": rate,
    "per_s": lambda value: f"{si(value)}{NBSP}/s",
    "count": count,
    "usd": usd,
    "factor": lambda value: f"{value:.2f}{NBSP}\u00d7",
}


def figure(value: float | None, unit: str | None) -> str:
    """Write a value by the name of its unit, as metrics and evidence name it."""
    return ABSENT if value is None else WRITERS.get(unit or "", si)(value)


def unit_of(name: str) -> str | None:
    """Return the unit that a name ends with: ``quiet_s`` is in seconds; None where it has none."""
    units = sorted(WRITERS, key=len, reverse=True)
    return next((unit for unit in units if name.endswith(f"_{unit}")), None)
