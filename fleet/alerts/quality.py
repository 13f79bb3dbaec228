"""How good alerts are: how many fired and were false, the budget, and what can be found now."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from weakref import WeakKeyDictionary

import msgspec
from django.conf import settings
from django.db.models import Count

from fleet.models import Alert
from telemetry.detect.limits import Limits, limits_of
from telemetry.detect.rules import RULES, SEVERITIES
from telemetry.detect.slowdowns import RunWatch
from telemetry.evidence.budget import Severity, per_year, share
from telemetry.store.hot import HotStore

RECENT, YEAR = timedelta(days=90), timedelta(days=365)
NOUNS: Mapping[Severity, str] = {"page": "page", "warn": "warning"}
SEVERITY_OF: Mapping[str, Severity] = {Alert.Severity.PAGE: "page", Alert.Severity.WARN: "warn"}
# What can be found is noted so often, and kept for the page of rules while nothing newer is.
LIMITS, LIMITS_DUE, NOTED_EVERY_S, KEEP_S = "watch:limits-of", "watch:limits:due", 15, 86_400
# It takes 4 ms of a run: each has a second of the minute for it.
COMPUTED_EVERY_S = 60
_COMPUTED: WeakKeyDictionary[RunWatch, tuple[int, Limits | None]] = WeakKeyDictionary()


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
        return written(self.budget)


def written(budget: float) -> str:
    return f"{budget:,.0f}" if budget >= 10 else f"{budget:.2g}"


def share_text(rule: str, severity: str) -> str:
    """Write how much of the budget a rule has: "0.4 of 6 false pages a year"."""
    pages, kind = settings.FALSE_PAGES_PER_YEAR, SEVERITY_OF[severity]
    of_rule = share(rule, kind, severities=SEVERITIES, pages_per_year=pages)
    return f"{written(of_rule)} of {written(per_year(kind, pages))} false {NOUNS[kind]}s a year"


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


class FoundNow(msgspec.Struct, frozen=True):
    """What can be found in each run, and when that was so."""

    at_s: float
    runs: dict[str, Limits]

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_s, UTC)


def note_limits(
    hot: HotStore, watches: Mapping[str, RunWatch], *, watcher: int = 0, now_s: float
) -> None:
    """Compute what can be found in each run of a watcher once a minute; note it more often."""
    for i, watch in enumerate(watches.values()):
        minute = (int(now_s) + i) // COMPUTED_EVERY_S
        if watch not in _COMPUTED or _COMPUTED[watch][0] != minute:
            _COMPUTED[watch] = minute, limits_of(watch.steps)
    due = f"{LIMITS_DUE}:{watcher}"
    if not watches or not hot.execute("SET", due, 1, "NX", "EX", NOTED_EVERY_S):
        return
    limits = ((run, _COMPUTED[watch][1]) for run, watch in watches.items())
    known = {run: each for run, each in limits if each is not None}
    found = msgspec.json.encode(FoundNow(now_s, known))
    hot.execute_all([("HSET", LIMITS, watcher, found), ("EXPIRE", LIMITS, KEEP_S)])


def limits_now(hot: HotStore) -> FoundNow | None:
    """Read what could be found last; None where nothing was noted for a day."""
    noted = [msgspec.json.decode(each, type=FoundNow) for each in hot.execute("HVALS", LIMITS)]
    if not noted:
        return None
    at_s = max(each.at_s for each in noted)
    # A watcher that notes no more is late, or there are fewer of them now.
    recent = [each for each in noted if each.at_s > at_s - 2 * NOTED_EVERY_S]
    return FoundNow(at_s, {run: each for found in recent for run, each in found.runs.items()})
