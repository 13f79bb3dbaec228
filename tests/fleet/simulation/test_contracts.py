"""The demo's prices are published contracts, and no budget is overrun."""

from datetime import timedelta

import pytest

from fleet.costs.budgets import budget_statuses
from fleet.models import Budget, Run, TeamPrice
from fleet.simulation.demo import BUDGETS, CHANGED_AGO, create_fleet
from telemetry import catalog
from tests.helpers import NOON

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet() -> list[Run]:
    """Give the demo's runs, begun a day before noon."""
    return create_fleet(now=NOON, longest=timedelta(hours=24))


def test_every_contract_is_a_published_price(fleet: list[Run]) -> None:
    for price in TeamPrice.objects.all():
        offers = catalog.instance(price.instance_type).prices
        assert price.usd_per_node_hour in {offer.usd_per_hour for offer in offers}


def test_runs_begin_at_their_teams_contracts(fleet: list[Run]) -> None:
    search = Run.objects.get(name="search-bert")

    assert search.usd_per_node_hour == 0.512
    assert search.price_basis.startswith("reserved of search")


def test_one_run_spans_a_change_of_price(fleet: list[Run]) -> None:
    run = Run.objects.get(name="longctx")
    before = 24 - CHANGED_AGO / timedelta(hours=1)

    assert run.usd_by(NOON) == pytest.approx(4 * (15.49 * before + 9.532 * (24 - before)))


def test_every_team_has_a_budget_that_will_do(fleet: list[Run]) -> None:
    found = budget_statuses(now=NOON)

    assert {each.budget.name for each in found} == set(BUDGETS) == {run.team for run in fleet}
    assert [each.budget.name for each in found if each.is_over] == []
    assert all(each.forecast_ratio > 0.4 for each in found)
    assert Budget.objects.count() == len(BUDGETS)
