"""Overrun budgets: one alert each, resolved when the forecast fits again."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from fleet.costs.budgets import budget_status
from fleet.costs.drift import update_cost_alerts
from fleet.models import Alert, Budget, Run
from telemetry.store.hot import HotStore
from tests.helpers import NOON, number_from


def budget(usd: float, *, days: float = 1, **fields: Any) -> Budget:
    """Set a budget of so many dollars from noon on."""
    return Budget.objects.create(
        usd=usd,
        starts_at=NOON,
        ends_at=NOON + timedelta(days=days),
        set_by="lea",
        set_at=NOON,
        **fields or {"team": "LLM"},
    )


def at(hours: float) -> datetime:
    """Return a moment by its hours after noon."""
    return NOON + timedelta(hours=hours, seconds=60)


def test_a_budget_that_will_not_do_is_raised_once_and_resolves(run: Run, hot: HotStore) -> None:
    small = budget(1000)
    budget(4000)

    first = update_cost_alerts(hot, now=at(1))
    again = update_cost_alerts(hot, now=at(2))
    alert = Alert.objects.get()

    assert [each.subject for each in first] == [f"budget:{small.pk}"]
    assert again == []
    assert alert.run is None
    assert alert.evidence["whose"] == "LLM"
    assert alert.evidence["forecast_usd"] == pytest.approx(24 * 86)
    Run.objects.update(finished_at=at(3))
    update_cost_alerts(hot, now=at(4))
    assert Alert.objects.get().resolved_at is not None


def test_each_budget_has_an_alert_of_its_own(run: Run, hot: HotStore) -> None:
    # Subjects are text: that of budget 10 comes before that of budget 9.
    number_from(1, Budget)
    budget(1000)
    budget(500, run=run)

    update_cost_alerts(hot, now=at(1))

    reported = Alert.objects.order_by("subject")
    assert [(each.rule, each.run_id) for each in reported] == [
        ("budget_overrun", None),
        ("budget_overrun", run.pk),
    ]


def test_a_budget_that_is_withdrawn_or_over_wakes_no_one(run: Run, hot: HotStore) -> None:
    budget(1000, days=0.01)
    gone = budget(1000)
    Budget.objects.filter(pk=gone.pk).update(ended_at=NOON, ended_by="lea")

    assert update_cost_alerts(hot, now=at(1)) == []


def test_hovering_at_its_budget_does_not_flap(run: Run, hot: HotStore) -> None:
    held = budget(24 * 86 * 0.999)
    update_cost_alerts(hot, now=at(1))
    Budget.objects.filter(pk=held.pk).update(usd=24 * 86 * 1.01)

    update_cost_alerts(hot, now=at(2))

    assert Alert.objects.get().is_open


def test_a_run_that_plans_its_end_burns_no_longer(run: Run, hot: HotStore) -> None:
    Run.objects.update(n_tokens=1_000_000, planned_tokens=2_000_000)
    budget(1000)

    assert update_cost_alerts(hot, now=at(1)) == []


def test_runs_without_a_price_are_unknown_and_raise_nothing(run: Run, hot: HotStore) -> None:
    Run.objects.update(usd_per_node_hour=0.0)
    budget(1)

    assert update_cost_alerts(hot, now=at(1)) == []


def test_a_budget_to_come_pays_only_for_its_own_days(run: Run) -> None:
    # Four nodes at $21.50: $86 an hour, from tomorrow noon to the noon after.
    kept = budget(1_000, days=2)
    kept.starts_at = NOON + timedelta(days=1)

    found = budget_status(kept, [run], now=at(1))

    assert found.spent_usd == 0
    assert found.forecast_usd == pytest.approx(24 * 86)
    assert found.used_up_at == NOON + timedelta(days=1, hours=1_000 / 86)


def test_a_month_ends_with_its_last_second_by_utc(run: Run) -> None:
    # The run began at noon of the first day; its month has 31 days and ends at midnight, UTC.
    month = Budget(
        team=run.team,
        usd=1.0,
        starts_at=datetime(NOON.year, NOON.month, 1, tzinfo=NOON.tzinfo),
        ends_at=datetime(NOON.year, NOON.month + 1, 1, tzinfo=NOON.tzinfo),
    )
    hours = (month.ends_at - run.started_at) / timedelta(hours=1)

    for now in (at(1), month.ends_at, month.ends_at + timedelta(days=3)):
        assert budget_status(month, [run], now=now).forecast_usd == pytest.approx(hours * 86)
    assert budget_status(
        month, [run], now=month.ends_at + timedelta(days=3)
    ).spent_usd == pytest.approx(hours * 86)
