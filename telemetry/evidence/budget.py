"""The error budget: how many false alarms a year each rule may raise."""

from collections.abc import Collection, Mapping
from typing import Literal

Severity = Literal["page", "warn"]
# A person's setting: the default of TRNWATCH_FALSE_PAGES_PER_YEAR.
PAGES_PER_YEAR = 6.0
# Part of what that setting means (docs/operations.md): a page costs a person sleep, a warning a
# look in working hours.
WARNINGS_PER_PAGE = 10.0


def per_year(severity: Severity, pages_per_year: float = PAGES_PER_YEAR) -> float:
    """Return the false alarms of a severity that the whole fleet may have a year.

    Examples
    --------
    >>> per_year("page"), per_year("warn")
    (6.0, 60.0)
    """
    return pages_per_year * (WARNINGS_PER_PAGE if severity == "warn" else 1.0)


def share(
    rule: str,
    severity: Severity,
    *,
    severities: Mapping[str, Collection[str]],
    pages_per_year: float = PAGES_PER_YEAR,
) -> float:
    """Return the false alarms a year that a rule may raise, of all its subjects together.

    ``severities`` are those that each rule can raise. Each of these rules gets the same share; a
    rule that never raises this severity gets 0.

    Notes
    -----
    False alarms of rules add up (Bonferroni), so any division that adds up to the budget keeps it.
    An equal one is near the best: doubling a share lowers an alarm level by log 2 = 0.7 nats only.
    A share is for all looks of the rule in a year: runs by quantities by parts by values. With the
    budget of one of n runs, ``pages_per_year / n``, it is for those at this run: the looks that
    `sequential.alarm_level` gets.

    Examples
    --------
    >>> severities = {"hang": ("page",), "step_slow": ("page", "warn"), "node_idle": ("warn",)}
    >>> share("hang", "page", severities=severities), share("hang", "warn", severities=severities)
    (3.0, 0.0)
    >>> share("node_idle", "warn", severities=severities, pages_per_year=1)
    5.0
    """
    raising = [name for name, each in severities.items() if severity in each]
    return per_year(severity, pages_per_year) / len(raising) if rule in raising else 0.0
