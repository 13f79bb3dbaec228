"""Budgets: limit, spending, and the forecast date of exhaustion."""

from datetime import timedelta

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Budget, Run
from tests.fleet.test_anonymous_access import member
from tests.helpers import just_now

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


def new(**fields: str) -> dict[str, str]:
    """Return a form that sets a budget from yesterday to tomorrow."""
    now = just_now()
    usual = {
        "team": "LLM",
        "run": "",
        "usd": "1,000",
        "starts_at": f"{now - DAY:%Y-%m-%d}",
        "ends_at": f"{now + DAY:%Y-%m-%d}",
    }
    return usual | fields


@pytest.fixture
def lead(client: Client) -> Client:
    """Give a lead's browser."""
    client.force_login(member("lead"))
    return client


def test_without_budgets_it_states_what_they_are_for(lead: Client) -> None:
    assert "No budgets." in lead.get("/budgets/").text


def test_a_budget_is_set_and_its_last_day_counts(lead: Client) -> None:
    page = lead.post("/budgets/", new(), follow=True)
    budget = Budget.objects.get()

    assert (budget.team, budget.usd, budget.set_by) == ("LLM", 1000.0, "lead")
    assert budget.ends_at - budget.starts_at == 3 * DAY
    assert "within budget" in page.text


def test_one_that_is_forecast_to_be_overrun_states_when(lead: Client, run: Run) -> None:
    Run.objects.update(started_at=just_now() - timedelta(hours=10))
    page = lead.post("/budgets/", new(run="llama", team=""), follow=True)
    found = page.context["burns"][0]

    assert found.spent_usd == pytest.approx(860, rel=0.01)
    assert found.is_over
    assert found.used_up_at is not None
    assert "overrun" in page.text


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("team", {"team": ""}),
        ("team", {"run": "llama"}),
        ("team", {"team": "x" * 41}),
        ("run", {"team": "", "run": "missing"}),
        ("usd", {"usd": "much"}),
        ("usd", {"usd": "-3"}),
        ("starts_at", {"starts_at": "once"}),
        ("ends_at", {"ends_at": "2020-01-01"}),
        ("ends_at", {"ends_at": "9999-01-01"}),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_set(
    lead: Client, run: Run, field: str, fields: dict[str, str]
) -> None:
    page = lead.post("/budgets/", new(**fields))

    assert page.status_code == 422
    assert list(page.context["form"].errors) == [field]
    assert not Budget.objects.exists()


def test_it_gives_htmx_only_the_partial_it_asks_for(lead: Client) -> None:
    page = lead.get("/budgets/", headers={"HX-Request": "true", "HX-Target": "budgets"})

    assert page.text.strip().startswith("<section")
    assert "HX-Target" in page["Vary"]


def test_many_budgets_take_no_more_queries(
    lead: Client, run: Run, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for usd in range(1, 20):
        lead.post("/budgets/", new(usd=str(usd), run="llama", team=""))

    with django_assert_max_num_queries(10):
        lead.get("/budgets/")
