"""A run's money in the API: parts that add up, and null for what nobody knows."""

import pytest
from django.test import Client

from fleet.models import Run
from fleet.money.spending import keep_spending
from telemetry.store.hot import HotStore
from tests.fleet.pages.conftest import _open_to_all, alive  # noqa: F401
from tests.parts import just_now


def told(client: Client) -> dict[str, object]:
    answer = client.get("/api/v1/runs/llama")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.fixture
def known(client: Client, hot: HotStore, alive: Run) -> Run:  # noqa: F811
    """Give a run that is over, and was added up."""
    Run.objects.update(finished_at=just_now(), n_tokens=0, tokens_per_epoch=10**9)
    keep_spending(hot, now=just_now())
    return Run.objects.get()


def test_parts_add_up_to_the_cent(client: Client, known: Run) -> None:
    money = told(client)["money"]

    assert isinstance(money, dict)
    assert round(sum(money["usd"].values()), 2) == money["total_usd"]
    assert money["usd"]["training"] > 0
    assert money["usd_per_epoch"] == pytest.approx(money["settled_usd_per_mtok"] * 1000)
    assert told(client)["usd_so_far"] == pytest.approx(money["total_usd"], rel=0.01)


def test_without_a_price_it_is_null_and_never_nought(client: Client, known: Run) -> None:
    Run.objects.update(usd_per_node_hour=0.0, price_basis="nobody knows")

    said = told(client)
    money = said["money"]

    assert isinstance(money, dict)
    assert (said["usd_so_far"], said["usd_per_hour"]) == (None, None)
    assert (money["usd"], money["total_usd"], money["whole_usd_per_mtok"]) == (None, None, None)
    assert money["seconds"]["training"] > 0


def test_what_was_not_added_up_yet_is_null(client: Client, alive: Run) -> None:  # noqa: F811
    assert told(client)["money"] is None
