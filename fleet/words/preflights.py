"""What an alert about a start without a preflight says."""

from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.models import Alert
from fleet.words.budgets import day_of
from fleet.words.evidence import Evidence


def preflight_clause(alert: Alert) -> SafeString:
    """Say which run began without one."""
    return format_html("{} started without a preflight", alert.run or "a run")


def preflight_opening(alert: Alert, now: datetime) -> SafeString:
    """Say when it began, what was missing, and what to do about it."""
    started_s = Evidence(alert.evidence).number("started_s")
    return format_html(
        "<b>{}</b>{}. {} {}",
        preflight_clause(alert),
        f" on {day_of(started_s)}, though it requires one" if started_s is not None else "",
        alert.evidence.get("doubt", ""),
        "Nothing is broken yet: probe its nodes when it next restarts." if alert.is_open else "",
    )
