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
    return ScheduleRequest(
        days=days_of(given.get("days", "")),
        porting_usd=porting_of(given.get("porting_usd", "")),
        has_reuse=_one_of("reuse", given.get("reuse", ""), ("yes", "no")) == "yes",
        by=_one_of("by", given.get("by", ""), CHARTS),
        candidate=given.get("candidate", ""),
        tokens=tokens_of(given["tokens"]) if given.get("tokens") else None,
        failures=failures_of(given["failures"]) if given.get("failures") else None,
        **{field: engineers_of(field, given.get(field, "")) for field in ENGINEERS},
    )


def days_of(text: str | float) -> float:
    days = DAYS if text == "" else _number("days", text)
    if not LEAST_DAYS <= days <= MOST_DAYS:
        raise FieldError("days", f"choose {LEAST_DAYS:g} to {MOST_DAYS:g}")
    return days


def porting_of(text: str | float) -> float:
    """Parse the cost of porting in dollars."""
    usd = 0.0 if text == "" else _number("porting_usd", text)
    if not 0 <= usd <= MOST_USD:
        raise FieldError("porting_usd", f"give dollars, 0 to {MOST_USD:,.0f}")
    return usd


def tokens_of(text: str | float) -> float:
    tokens = _number("tokens", text)
    if not 1 <= tokens <= MOST_TOKENS:
        raise FieldError("tokens", "give how many to train on, 1 or more, such as 300e9")
    return tokens


def failures_of(text: str | float) -> float:
    """Parse failures per node and day."""
    rate = _number("failures", text)
    if not 0 <= rate <= MOST_FAILURES:
        raise FieldError(
            "failures",
            f"give failures per node and day, 0 to {MOST_FAILURES:g}, or none",
        )
    return rate


def engineers_of(field: str, text: str | float) -> float:
    """Parse one of ENGINEERS: days, a number of people, or dollars."""
    number = 0.0 if text == "" else _number(field, text)
    if not 0 <= number <= ENGINEERS[field]:
        raise FieldError(field, f"give 0 to {ENGINEERS[field]:,.0f}")
    return number


def _number(field: str, text: str | float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise FieldError(field, f"{str(text)[:40]!r} is no number; write it like 14 or 2500")
    return number


def _one_of(field: str, text: str, known: tuple[str, ...]) -> str:
    if text and text not in known:
        raise FieldError(field, f"{text[:40]!r} is not known; choose {' or '.join(known)}")
    return text or known[0]
