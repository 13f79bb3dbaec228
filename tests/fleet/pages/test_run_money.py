"""A run's cost: by use, per token, and planned length."""

import re
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.costs.spending import update_spending
from fleet.models import Annotation, Run
from telemetry.detect.drift import DRIFT_LIMITS
from telemetry.store.hot import HotStore
from tests.fleet.pages.conftest import Page
from tests.fleet.test_anonymous_access import member
from tests.helpers import just_now

pytestmark = pytest.mark.django_db


@pytest.fixture
def lead(client: Client) -> Client:
    """Give a lead's browser."""
    client.force_login(member("lead"))
    return client


def dollars(text: str) -> list[float]:
    """Return the dollars of the table, part by part, and its sum."""
    return [float(each.replace(",", "")) for each in re.findall(r'num">\$([\d,.]+)<', text)]


def test_the_parts_that_are_shown_are_the_whole_to_the_cent(page: Page, alive: Run) -> None:
    text = page("/runs/llama/money/")
    *parts, total = dollars(text)

    assert len(parts) >= 3
    assert round(sum(parts), 2) == total
    assert total == pytest.approx(2 * 86, rel=0.01)
    assert "startup and warm-up" in text


def test_it_stands_on_the_page_of_the_run(page: Page, alive: Run, hot: HotStore) -> None:
    before = page("/runs/llama/")
    update_spending(hot, now=just_now())
    after = page("/runs/llama/")

    assert "is being calculated" in before
    assert 'id="money"' in after
    assert "including all overhead" in after


def test_mfu_names_the_peak_that_it_assumes(page: Page, alive: Run) -> None:
    assert re.search("dense bf16 peak of 4 . trn1.32xlarge", page("/runs/llama/money/"))


def test_what_is_not_known_is_reported_and_never_zero(page: Page, alive: Run) -> None:
    Run.objects.update(usd_per_node_hour=0.0)

    text = page("/runs/llama/money/")

    assert dollars(text) == []
    assert "price unknown" in text
    assert "Per epoch" not in text


def test_an_epoch_has_a_price_once_its_tokens_are_known(lead: Client, alive: Run) -> None:
    answer = lead.post("/runs/llama/money/", {"tokens_per_epoch": "2B", "planned_tokens": "10 B"})
    alive.refresh_from_db()
    reported: Any = lead.get("/runs/llama/money/").context["money"]["outlook"]

    assert answer.status_code == 302
    assert (alive.tokens_per_epoch, alive.planned_tokens) == (2 * 10**9, 10**10)
    assert reported.usd_per_epoch == pytest.approx(reported.settled_usd_per_mtok * 2000)
    assert reported.ends_at is not None
    assert reported.usd_at_end > alive.usd_by(alive.started_at)
    note = Annotation.objects.get()
    assert note.by == "lead"
    assert "tokens per epoch: 2,000,000,000" in note.text


def test_a_stated_length_can_be_removed(lead: Client, alive: Run) -> None:
    Run.objects.update(tokens_per_epoch=5)

    lead.post("/runs/llama/money/", {"tokens_per_epoch": "", "planned_tokens": ""})

    assert Run.objects.get().tokens_per_epoch is None


@pytest.mark.parametrize("wrong", ["many", "-4", "0", "1e30", "nan", "inf"])
def test_a_wrong_number_is_named_and_nothing_is_kept(lead: Client, alive: Run, wrong: str) -> None:
    page = lead.post("/runs/llama/money/", {"tokens_per_epoch": "5", "planned_tokens": wrong})

    assert page.status_code == 422
    assert list(page.context["form"].errors) == ["planned_tokens"]
    assert Run.objects.get().tokens_per_epoch is None


def test_it_gives_htmx_only_the_panel(page: Page, alive: Run) -> None:
    text = page("/runs/llama/money/", **{"HX-Request": "true", "HX-Target": "money"})

    assert text.strip().startswith("<section")


def test_only_leads_say_it(client: Client, alive: Run) -> None:
    client.force_login(member("operator"))

    assert client.post("/runs/llama/money/", {"tokens_per_epoch": "5"}).status_code == 403
    assert 'name="tokens_per_epoch"' not in client.get("/runs/llama/money/").text


def test_it_takes_few_queries(
    client: Client, alive: Run, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_max_num_queries(8):
        client.get("/runs/llama/money/")


def test_the_cost_is_drawn_next_to_what_is_expected(
    client: Client, page: Page, alive: Run
) -> None:
    assert "/runs/llama/charts/cost?window=24h&amp;expected=1" in page("/runs/llama/money/")
    # What its own first settled hours cost: 0.002 node-seconds a token.
    own = {"cost": 0.002, "tokens": 4096.0, "n_active": 2.0, "since_s": 0.0}
    Run.objects.update(spending={"own": own}, model="unknown")
    marks = client.get("/runs/llama/charts/cost?window=24h&expected=1").json()["marks"]

    usd = 0.002 * 1e6 * 21.5 / 3600
    assert [kind for _, _, kind in marks] == ["peers", "threshold"]
    assert marks[0][0] == pytest.approx(usd, rel=1e-3)
    assert marks[1][0] == pytest.approx(usd * (1 + DRIFT_LIMITS["own_ratio"]), rel=1e-3)
    assert not client.get("/runs/llama/charts/cost?window=24h").json().get("marks")


def test_without_an_expectation_only_the_cost_is_drawn(client: Client, alive: Run) -> None:
    Run.objects.update(spending={}, model="unknown")
    assert not client.get("/runs/llama/charts/cost?expected=1").json().get("marks")
