"""Parse and check the parameters of a schedule, from a URL or a command line."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from telemetry.errors import FieldError

DAYS, MOST_DAYS, LEAST_DAYS = 14.0, 365.0, 0.5
MOST_USD = 1e9
MOST_TOKENS = 1e18
MOST_FAILURES = 24.0
# Fields about engineers, with the most of each.
ENGINEERS = {"porting_days": 10_000.0, "waiting_engineers": 1_000.0, "engineer_usd": 100_000.0}
# The least and the most of each number, and the rule for people.
NUMBERS: Mapping[str, tuple[float, float, str]] = {
    "days": (LEAST_DAYS, MOST_DAYS, f"choose {LEAST_DAYS:g} to {MOST_DAYS:g}"),
    "porting_usd": (0.0, MOST_USD, f"give dollars, 0 to {MOST_USD:,.0f}"),
    "tokens": (1.0, MOST_TOKENS, "give how many to train on, 1 or more, such as 300e9"),
    "failures": (
        0.0,
        MOST_FAILURES,
        f"give failures per node and day, 0 to {MOST_FAILURES:g}, or none",
    ),
    **{field: (0.0, most, f"give 0 to {most:,.0f}") for field, most in ENGINEERS.items()},
}
# What a chart shows: cost saved by day, or the cost of both arms over days or tokens.
CHARTS = ("saved", "days", "tokens")


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """A schedule's length, the cost of porting, whether graphs are reused, and its chart.

    ``tokens`` instead of ``days`` projects until they are trained. ``failures`` per node and day
    replace the observed rate. Porting takes ``porting_days`` of one engineer, and
    ``waiting_engineers`` do nothing else until the run is done, at ``engineer_usd`` a day each.
    """

    days: float = DAYS
    porting_usd: float = 0.0
    has_reuse: bool = True
    by: str = CHARTS[0]
    candidate: str = ""
    tokens: float | None = None
    failures: float | None = None
    porting_days: float = 0.0
    waiting_engineers: float = 0.0
    engineer_usd: float = 0.0

    def __post_init__(self) -> None:
        for field in ("porting_days", "waiting_engineers"):
            if getattr(self, field) and not self.engineer_usd:
                raise FieldError("engineer_usd", f"give it with {field}: dollars per day of one")

    @property
    def total_porting_usd(self) -> float:
        """Dollars of porting, with the engineers' time."""
        return self.porting_usd + self.porting_days * self.engineer_usd

    @property
    def waiting_usd_per_day(self) -> float:
        """Dollars per day of the engineers who wait."""
        return self.waiting_engineers * self.engineer_usd

    @property
    def options(self) -> str:
        """The request as options of ``manage.py project``."""
        options = [
            f"--days {self.days:g}" if self.tokens is None else f"--tokens {self.tokens:.12g}"
        ]
        if self.porting_usd:
            options.append(f"--porting-usd {self.porting_usd:.12g}")
        if self.failures is not None:
            options.append(f"--failures {self.failures:.12g}")
        options.extend(
            f"--{field.replace('_', '-')} {value:.12g}"
            for field in ENGINEERS
            if (value := getattr(self, field))
        )
        return " ".join(options)

    @property
    def query(self) -> str:
        """The request as the query of a URL, without defaults."""
        values = {
            "days": "" if self.days == DAYS else f"{self.days:g}",
            "porting_usd": f"{self.porting_usd:.12g}" if self.porting_usd else "",
            "reuse": "" if self.has_reuse else "no",
            "by": "" if self.by == CHARTS[0] else self.by,
            "candidate": self.candidate,
            "tokens": "" if self.tokens is None else f"{self.tokens:.12g}",
            "failures": "" if self.failures is None else f"{self.failures:.12g}",
            **{
                field: f"{value:.12g}" if (value := getattr(self, field)) else ""
                for field in ENGINEERS
            },
        }
        return urlencode({name: value for name, value in values.items() if value})


def parse_request(given: Mapping[str, str]) -> ScheduleRequest:
    """Read the query of a URL; what it leaves out has its default.

    Raises FieldError where a field is invalid.
    """
    numbers = {field: _number(field, text) for field in NUMBERS if (text := given.get(field))}
    return ScheduleRequest(
        has_reuse=_one_of("reuse", given.get("reuse", ""), ("yes", "no")) == "yes",
        by=_one_of("by", given.get("by", ""), CHARTS),
        candidate=given.get("candidate", ""),
        **numbers,
    )


def _number(field: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise FieldError(field, f"{text[:40]!r} is no number; write it like 14 or 2500")
    least, most, rule = NUMBERS[field]
    if not least <= number <= most:
        raise FieldError(field, rule)
    return number


def _one_of(field: str, text: str, known: tuple[str, ...]) -> str:
    if text and text not in known:
        raise FieldError(field, f"{text[:40]!r} is not known; choose {' or '.join(known)}")
    return text or known[0]
