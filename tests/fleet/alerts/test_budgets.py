"""Text of budget alerts, open and resolved."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils.html import strip_tags

from fleet.alerts.text import AlertText, facts, headline, plain
from fleet.models import Alert, Run
from tests.helpers import NOON

OVERRUN = {
    "budget": 3,
    "whose": "LLM <b>",
    "budget_usd": 330_000.0,
    "spent_usd": 14_000.0,
    "forecast_usd": 561_280.0,
    "usd_per_hour": 792.0,
    "used_up_s": (NOON + timedelta(days=8)).timestamp(),
    "ends_s": (NOON + timedelta(days=30)).timestamp(),
}
DRIFT = {
    "ratio": 0.42,
    "limit_ratio": 0.3,
    "expected_by": "estimate",
    "usd_per_mtok": 1.42,
    "expected_usd_per_mtok": 1.0,
    "node_s_per_mtok": 300.0,
    "expected_node_s_per_mtok": 211.0,
    "window_s": 7200.0,
}


def an_alert(rule: str, evidence: dict[str, Any], run: Run | None, **more: Any) -> Alert:
    return Alert.objects.create(
        rule=rule,
        severity=Alert.Severity.WARN,
        subject="budget:3" if run is None else f"run:{run.name}",
        run=run,
        score=1.7,
        evidence=evidence,
        onset_at=NOON,
        fired_at=NOON,
        last_seen_at=NOON,
        **more,
    )


@pytest.mark.django_db
def test_a_budget_states_whose_how_much_and_when() -> None:
    alert = an_alert("budget_overrun", OVERRUN, None)
    reported = AlertText(alert, NOON).story

    assert headline(alert) == "The budget of LLM &lt;b&gt; will be exceeded"
    assert "$14,000 of $330,000" in reported
    assert "$561,280" in reported
    assert "used up on 10 Mar 12:00." in strip_tags(reported)
    assert "unknown" not in reported
    assert AlertText(alert, NOON).detail == ""


def test_drift_states_how_much_more_and_than_what(run: Run) -> None:
    alert = an_alert("cost_drift", DRIFT, run)
    reported = AlertText(alert, NOON).story.replace("\u202f", " ")

    assert plain(headline(alert)) == "llama pays 42 % more per token than estimated"
    assert "1M tokens cost $1.42 instead of $1.00" in reported
    assert "The cause is" not in reported


def test_once_over_it_is_reported_as_past(run: Run) -> None:
    over = {"resolved_at": NOON + timedelta(hours=1)}

    assert "was going to be" in headline(an_alert("budget_overrun", OVERRUN, None, **over))
    assert "paid" in headline(an_alert("cost_drift", DRIFT, run, **over))


@pytest.mark.django_db
def test_figures_are_in_dollars_and_dates_not_in_seconds() -> None:
    reported = dict(facts(an_alert("budget_overrun", OVERRUN, None)))

    assert reported["Budget"] == "$330,000"
    assert reported["Forecast"] == "$561,280"
    assert reported["Dollars per hour"] == "792"
    assert "Ends" not in reported
