"""How good alerts are, by people's marks: how many fired, how many were false, and the budget."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Count

from fleet.models import Alert
from telemetry.detect.rules import RULES, SEVERITIES
from telemetry.evidence.budget import Severity, per_year, share

RECENT, YEAR = timedelta(days=90), timedelta(days=365)
NOUNS: Mapping[Severity, str] = {"page": "page", "warn": "warning"}


@dataclass(frozen=True, slots=True)
class Quality:
    """Alerts of one severity that fired within a time, without drills.

    ``budget`` is the number of false ones that is accepted a year. An alert without a mark counts
    as neither true nor false.
    """

    severity: Severity
    days: int
    n_fired: int
    n_false: int
    budget: float

    @property
    def noun(self) -> str:
        return NOUNS[self.severity]

    @property
    def n_unmarked(self) -> int:
        return self.n_fired - self.n_false

    @property
    def false_ratio(self) -> float | None:
        return self.n_false / self.n_fired if self.n_fired else None

    @property
    def is_over(self) -> bool:
        """Whether there were more false ones than accepted; of less than one, more than one."""
        return self.n_false > max(self.budget, 1.0)

    @property
    def budget_text(self) -> str:
        return f"{self.budget:,.0f}" if self.budget >= 10 else f"{self.budget:.2g}"


def quality(*, now: datetime, within: timedelta) -> list[Quality]:
    """Return pages, then warnings, of all rules."""
    counts = _counts(now=now, within=within)
    return [
        Quality(
            severity,
            within.days,
            sum(n for (_, each), (n, _) in counts.items() if each == severity),
            sum(n for (_, each), (_, n) in counts.items() if each == severity),
            per_year(severity, settings.FALSE_PAGES_PER_YEAR),
        )
        for severity in NOUNS
    ]


def quality_by_rule(*, now: datetime) -> dict[str, list[Quality]]:
    """Return for each rule its last year, by each severity that it can have."""
    counts, pages = _counts(now=now, within=YEAR), settings.FALSE_PAGES_PER_YEAR
    return {
        rule: [
            Quality(
                severity,
                YEAR.days,
                *counts.get((rule, severity), (0, 0)),
                share(rule, severity, severities=SEVERITIES, pages_per_year=pages),
            )
            for severity in NOUNS
            if severity in SEVERITIES[rule]
        ]
        for rule in RULES
    }


def _counts(*, now: datetime, within: timedelta) -> dict[tuple[str, str], tuple[int, int]]:
    """Count the alerts that fired, and those that are marked as false, by rule and severity."""
    recent = Alert.objects.filter(is_drill=False, fired_at__gt=now - within, fired_at__lte=now)
    rows = (
        recent.order_by()
        .values_list("rule", "severity")
        .annotate(n_fired=Count("pk"), n_false=Count("marked_false_at"))
    )
    return {
        (rule, Alert.Severity(severity).label): (n_fired, n_false)
        for rule, severity, n_fired, n_false in rows
    }
