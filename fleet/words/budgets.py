"""What alerts about money say: what a token costs, and which budget will not do."""

from datetime import UTC, datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.models import Alert
from fleet.templatetags.units import percent, usd
from fleet.words.evidence import Evidence

BY = {"estimate": "estimated", "own": "in its first hours"}


def drift_clause(alert: Alert) -> SafeString:
    """Say by how much a run's tokens cost more."""
    ratio = Evidence(alert.evidence).number("ratio")
    verb = "pays" if alert.is_open else "paid"
    by = BY.get(str(alert.evidence.get("expected_by")), "expected")
    more = "more" if ratio is None else f"{percent(ratio, 0)} more"
    return format_html("{} {} {} per token than {}", alert.run or "a run", verb, more, by)


def drift_opening(alert: Alert, now: datetime) -> SafeString:
    """Say what a run's tokens cost, and what they should."""
    evidence = Evidence(alert.evidence)
    cost, expected = evidence.number("usd_per_mtok"), evidence.number("expected_usd_per_mtok")
    figures = (
        format_html(": 1M tokens cost {} in place of {}", usd(cost), usd(expected))
        if cost is not None and expected is not None
        else ""
    )
    text = "For hours <b>{}</b>{}. No other alert says why."
    return format_html(text, drift_clause(alert), figures)


def overrun_clause(alert: Alert) -> SafeString:
    """Say which budget will not do."""
    verb = "will" if alert.is_open else "was to"
    whose = alert.evidence.get("whose", "?")
    return format_html("The budget of {} {} be overrun", whose, verb)


def overrun_opening(alert: Alert, now: datetime) -> SafeString:
    """Say what a budget holds, what is spent, and when it will be used up."""
    evidence = Evidence(alert.evidence)
    used_up_s = evidence.number("used_up_s")
    spent, holds = evidence.number("spent_usd"), evidence.number("budget_usd")
    return format_html(
        "<b>{}</b>: {} of {} were spent when this was last said, <b class='bad-text'>{}</b> {} "
        "forecast{}.",
        overrun_clause(alert),
        usd(spent),
        usd(holds),
        usd(evidence.number("forecast_usd")),
        "are" if alert.is_open else "were",
        f"; it is used up on {day_of(used_up_s)}" if used_up_s and alert.is_open else "",
    )


def day_of(unix_s: float) -> str:
    """Return a moment as a day and a time, UTC."""
    at = datetime.fromtimestamp(unix_s, UTC)
    return f"{at:%-d %b %H:%M} UTC"
