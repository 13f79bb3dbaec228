"""Budgets by the API: state and forecast, created and ended by leads."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Budget, Run
from tests.fleet.api.conftest import Ask
from tests.fleet.test_anonymous_access import member
from tests.helpers import just_now

DAY = timedelta(days=1)


def budget(usd: float, *, since: timedelta = DAY, until: timedelta = DAY, **of: Any) -> Budget:
    """Set a budget that began so long ago and ends so long from now."""
    now = just_now()
    period = {"starts_at": now - since, "ends_at": now + until, "set_at": now}
    return Budget.objects.create(usd=usd, set_by="ada", **period, **(of or {"team": "LLM"}))


def new(**fields: object) -> dict[str, object]:
    """Say what budget to set: a thousand dollars for two days."""
    now = just_now()
    period = {"starts_at": now.timestamp(), "ends_at": (now + 2 * DAY).isoformat()}
    return {"team": "LLM", "usd": 1000, **period, **fields}


@pytest.fixture
def hours_old(run: Run) -> Run:
    """Let the run have begun two hours ago: $86 an hour."""
    Run.objects.update(started_at=just_now() - timedelta(hours=2))
    return Run.objects.get()


def test_a_budget_reports_its_burn_and_its_forecast(ask: Ask, hours_old: Run) -> None:
    kept = budget(1000)

    reported = ask(f"budgets/{kept.pk}", scope="lead").json()

    burn = reported["burn"]
    assert (reported["team"], reported["run"], reported["state"]) == ("LLM", None, "current")
    assert burn["spent_usd"] == pytest.approx(172, rel=0.01)
    assert burn["usd_per_hour"] == 86.0
    assert burn["forecast_usd"] == pytest.approx(26 * 86, rel=0.01)
    assert burn["used_ratio"] == pytest.approx(0.172, rel=0.01)
    assert burn["will_be_overrun"]
    assert reported["starts_at"] < burn["used_up_at"] < reported["ends_at"]


def test_a_budget_is_set_and_withdrawn_once(ask: Ask, hours_old: Run) -> None:
    made = ask("budgets", new(team="", run="llama"))
    reported = made.json()
    path = f"budgets/{reported['id']}/end"

    assert (made.status_code, reported["run"], reported["team"]) == (201, "llama", None)
    assert (reported["usd"], reported["set_by"]) == (1000.0, "token admin")
    over = ask(path, {}).json()
    assert (over["state"], over["ended_by"], over["burn"]) == ("withdrawn", "token admin", None)
    assert ask(path, {}).status_code == 409
    assert ask("budgets/987654/end", {}).status_code == 404


@pytest.mark.parametrize(
    ("query", "usd"),
    [
        ("", [5.0, 4.0, 3.0, 2.0, 1.0]),
        ("state=current", [5.0, 1.0]),
        ("state=ahead", [2.0]),
        ("state=over", [3.0]),
        ("state=withdrawn", [4.0]),
        ("team=LLM", [4.0, 3.0, 2.0, 1.0]),
        ("run=llama", [5.0]),
        ("run=missing", []),
    ],
)
def test_budgets_are_listed_by_what_they_are(
    ask: Ask, run: Run, query: str, usd: list[float]
) -> None:
    budget(1)
    budget(2, since=-DAY, until=2 * DAY)
    budget(3, since=2 * DAY, until=-DAY)
    gone = budget(4)
    Budget.objects.filter(pk=gone.pk).update(ended_at=just_now(), ended_by="ada")
    budget(5, run=run)

    assert [each["usd"] for each in ask(f"budgets?{query}").json()["items"]] == usd


def test_many_budgets_ask_little(
    ask: Ask, run: Run, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    ask("me")
    for usd in range(1, 30):
        budget(usd)

    with django_assert_max_num_queries(8):
        assert len(ask("budgets?limit=200").json()["items"]) == 29


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("team", "", 400),
        ("run", "missing", 400),
        ("usd", 0, 400),
        ("usd", 1e13, 400),
        ("ends_at", 0, 400),
        ("ends_at", "9999-01-01T00:00:00Z", 400),
        ("starts_at", "today", 400),
        ("colour", "red", 400),
    ],
)
def test_what_cannot_be_is_named_and_nothing_kept(
    ask: Ask, db: None, field: str, value: object, status: int
) -> None:
    response = ask("budgets", new(**{field: value}))

    # A team and a run together: the team is named, being first.
    named = "team" if field == "run" else field
    assert (response.status_code, response.json()["field"]) == (status, named)
    assert not Budget.objects.exists()


def test_a_run_that_no_one_knows_is_refused(ask: Ask, db: None) -> None:
    response = ask("budgets", new(team="", run="missing"))

    assert (response.status_code, response.json()["field"]) == (409, "run")


def test_of_people_only_leads_set_and_withdraw(client: Client, redis_url: str, run: Run) -> None:
    operator, kept = member("operator"), budget(1000)
    client.force_login(operator)
    assert client.post("/api/v1/budgets", new(), "application/json").status_code == 403
    path = f"/api/v1/budgets/{kept.pk}/end"
    assert client.post(path, {}, "application/json").status_code == 403
    client.force_login(member("lead"))

    assert client.post("/api/v1/budgets", new(), "application/json").json()["set_by"] == "lead"
    assert client.post(path, {}, "application/json").json()["ended_by"] == "lead"
