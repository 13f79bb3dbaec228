"""The page of prices: current prices with source, and new ones from a date."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Run, TeamPrice
from telemetry.store.hot import HotStore
from tests.fleet.test_anonymous_access import member
from tests.helpers import just_now

pytestmark = pytest.mark.django_db
NEW = {
    "team": "LLM",
    "instance_type": "trn1.32xlarge",
    "basis": "reserved",
    "usd_per_node_hour": "12.5",
    "valid_from": "2026-11-01",
    "source": "contract 7",
}


@pytest.fixture
def lead(client: Client) -> Client:
    """Give a lead's browser."""
    client.force_login(member("lead"))
    return client


def test_without_prices_it_shows_what_is_published(lead: Client) -> None:
    page = lead.get("/prices/").text

    assert "No contract prices" in page
    assert "capacity block" in page
    assert "$35.76" in page


def test_a_run_under_way_shows_what_its_team_pays(lead: Client, run: Run) -> None:
    rows = lead.get("/prices/").context["table"].rows

    assert [(row.instance_type, row.team, row.contract, row.n_runs) for row in rows] == [
        ("trn1.32xlarge", "LLM", None, 1)
    ]
    assert rows[0].published.usd_per_hour == 21.5


def test_a_price_is_set_and_names_the_runs_it_changes(lead: Client, run: Run) -> None:
    page = lead.post("/prices/", NEW, follow=True)
    price = TeamPrice.objects.get()
    run.refresh_from_db()

    assert (price.usd_per_node_hour, price.set_by) == (12.5, "lead")
    assert price.valid_from == datetime(2026, 11, 1, tzinfo=UTC)
    assert "applies to 1 active run" in page.text.replace("\u202f", " ")
    assert page.context["table"].rows[0].contract == price
    assert run.price[0] == 12.5


@pytest.mark.parametrize(("usd", "n_marks"), [("2.235", 1), ("27.83", 0), ("35.76", 0)])
def test_the_price_of_a_chip_is_marked_where_it_is_set_and_at_the_cost_of_its_runs(
    lead: Client, hot: HotStore, run: Run, usd: str, n_marks: int
) -> None:
    Run.objects.update(instance_type="trn2.48xlarge")
    asked = {"instance_type": "trn2.48xlarge", "basis": "capacity block"}

    pages = [
        lead.post("/prices/", NEW | asked | {"usd_per_node_hour": usd}, follow=True),
        lead.get(f"/runs/{run.name}/money/"),
    ]

    for page in pages:
        assert page.status_code == 200
        assert page.text.count("the price of one of its 16 chips") == n_marks


def test_history_has_every_price_the_last_set_first(lead: Client) -> None:
    lead.post("/prices/", NEW)
    lead.post(
        "/prices/", NEW | {"usd_per_node_hour": "11", "valid_from": f"{just_now().year + 1}-01-01"}
    )

    page = lead.get("/prices/")

    assert [price.usd_per_node_hour for price in page.context["history_rows"]] == [11.0, 12.5]
    assert page.text.count(">scheduled<") == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instance_type", "toaster"),
        ("usd_per_node_hour", "cheap"),
        ("usd_per_node_hour", "-1"),
        ("usd_per_node_hour", "nan"),
        ("valid_from", "soon"),
        ("valid_from", "0001-01-01"),
        ("source", ""),
        ("basis", "gift"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_set(lead: Client, field: str, value: str) -> None:
    page = lead.post("/prices/", NEW | {field: value})

    assert page.status_code == 422
    assert list(page.context["form"].errors) == [field]
    assert 'aria-invalid="true"' in page.text
    assert not TeamPrice.objects.exists()


def test_a_name_is_text_and_never_markup(lead: Client) -> None:
    page = lead.post("/prices/", NEW | {"team": "<b>us</b>"}, follow=True).text

    assert "<b>us</b>" not in page
    assert "&lt;b&gt;us&lt;/b&gt;" in page


def test_many_prices_take_no_more_queries(
    lead: Client, run: Run, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    now = just_now()
    for day in range(20):
        lead.post("/prices/", NEW | {"valid_from": f"{now - timedelta(days=day):%Y-%m-%d}"})

    with django_assert_max_num_queries(10):
        lead.get("/prices/")
