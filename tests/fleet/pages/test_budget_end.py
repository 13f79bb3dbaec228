"""Ending a budget: leads only, once; it stays readable."""

import pytest
from django.test import Client

from fleet.models import Budget
from tests.fleet.pages.test_budget_list import new
from tests.fleet.test_anonymous_access import member

pytestmark = pytest.mark.django_db


@pytest.fixture
def lead(client: Client) -> Client:
    """Give a lead's browser, after a budget was set."""
    client.force_login(member("lead"))
    client.post("/budgets/", new())
    return client


def test_a_lead_withdraws_a_budget_and_who_did_is_kept(lead: Client) -> None:
    budget = Budget.objects.get()
    page = lead.post(f"/budgets/{budget.pk}/end/", follow=True)
    budget.refresh_from_db()

    assert budget.ended_at is not None
    assert budget.ended_by == "lead"
    assert page.context["burns"] == []
    assert "withdrawn by lead" in page.text


def test_a_row_that_came_by_the_stream_withdraws_it_too(lead: Client) -> None:
    path = f"/budgets/{Budget.objects.get().pk}/end/"
    answer = lead.post(path, headers={"HX-Request": "true"})

    assert answer["HX-Redirect"] == "/budgets/"
    assert not Budget.objects.kept().exists()


def test_it_is_withdrawn_once(lead: Client) -> None:
    path = f"/budgets/{Budget.objects.get().pk}/end/"
    lead.post(path)

    assert "is already withdrawn" in lead.post(path, follow=True).text
