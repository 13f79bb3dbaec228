"""A run's cost by the API: parts add up, unknown is null."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from fleet.costs.spending import update_spending
from fleet.models import Annotation, Budget, Run
from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import Ask
from tests.fleet.pages.conftest import _open_to_all, alive  # noqa: F401
from tests.fleet.test_anonymous_access import member
from tests.helpers import just_now


def run_json(client: Client) -> dict[str, object]:
    answer = client.get("/api/v1/runs/llama")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.fixture
def known(client: Client, hot: HotStore, alive: Run) -> Run:  # noqa: F811
    """Give a run that is over, and was added up."""
    Run.objects.update(finished_at=just_now(), n_tokens=0, tokens_per_epoch=10**9)
    update_spending(hot, now=just_now())
    return Run.objects.get()


def test_parts_add_up_to_the_cent(client: Client, known: Run) -> None:
    money = run_json(client)["money"]

    assert isinstance(money, dict)
    assert round(sum(money["usd"].values()), 2) == money["total_usd"]
    assert money["usd"]["training"] > 0
    assert money["usd_per_epoch"] == pytest.approx(money["settled_usd_per_mtok"] * 1000)
    assert run_json(client)["usd_so_far"] == pytest.approx(money["total_usd"], rel=0.01)


def test_without_a_price_it_is_null_and_never_zero(client: Client, known: Run) -> None:
    Run.objects.update(usd_per_node_hour=0.0, price_basis="unknown")

    body = run_json(client)
    money = body["money"]

    assert isinstance(money, dict)
    assert (body["usd_so_far"], body["usd_per_hour"]) == (None, None)
    assert (money["usd"], money["total_usd"], money["whole_usd_per_mtok"]) == (None, None, None)
    assert money["seconds"]["training"] > 0


def test_what_was_not_added_up_yet_is_null(client: Client, alive: Run) -> None:  # noqa: F811
    assert run_json(client)["money"] is None


def detail(client: Client) -> dict[str, Any]:
    answer = client.get("/api/v1/runs/llama/money")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_portions_add_up_to_all_that_was_paid(client: Client, known: Run) -> None:
    money = detail(client)

    usd = {each["sort"]: each["usd"] for each in money["portions"]}
    assert round(sum(usd.values()), 2) == money["total_usd"]
    assert sum(each["ratio"] for each in money["portions"]) == pytest.approx(1, abs=1e-3)
    assert usd["training"] > 0
    # Four nodes at $21.50.
    assert (money["usd_per_hour"], money["price_basis"]) == (86.0, "on demand")
    assert money["total_usd"] == pytest.approx(86 * money["total_s"] / 3600, abs=0.01)


def test_a_token_costs_by_the_minute_since_the_warm_up_and_all_reported(
    client: Client,
    alive: Run,  # noqa: F811
) -> None:
    Run.objects.update(n_tokens=40_960, planned_tokens=10**6, tokens_per_epoch=20_480)

    money = detail(client)

    # Two seconds a step, 4,096 tokens.
    per_mtok = 86 / 3600 * 2 / 4096 * 1e6
    assert money["usd_per_mtok"] == pytest.approx(per_mtok, rel=1e-3)
    assert money["whole_usd_per_mtok"] > money["usd_per_mtok"]
    assert money["n_epochs"] == 2.0
    assert money["usd_at_end"] > money["total_usd"]
    assert money["ends_at"] > money["until"]


def test_a_budget_is_reported_with_its_runs(client: Client, alive: Run) -> None:  # noqa: F811
    now = just_now()
    day = timedelta(days=1)
    whose = {"starts_at": now - day, "ends_at": now + day, "set_by": "ada", "set_at": now}
    Budget.objects.create(team="LLM", usd=1_000, **whose)
    Budget.objects.create(team="other", usd=1, **whose)

    (budget,) = detail(client)["budgets"]

    assert (budget["whose"], budget["usd"]) == ("LLM", 1_000)
    # Two hours so far, and a day to come.
    assert budget["spent_usd"] == pytest.approx(2 * 86, rel=0.01)
    assert budget["forecast_usd"] == pytest.approx(26 * 86, rel=0.01)
    assert budget["will_be_overrun"]


def test_dollars_that_no_one_knows_are_null(client: Client, known: Run) -> None:
    Run.objects.update(usd_per_node_hour=0.0, price_basis="unknown")

    money = detail(client)

    assert (money["total_usd"], money["usd_per_hour"], money["whole_usd_per_mtok"]) == (
        None,
        None,
        None,
    )
    assert {each["usd"] for each in money["portions"]} == {None}
    assert money["total_s"] > 0


LENGTH = {"tokens_per_epoch": 20_480, "planned_tokens": 10**6}


def test_a_run_is_given_its_length_and_forecasts_its_end(
    ask: Ask,
    alive: Run,  # noqa: F811
) -> None:
    run_json = ask("runs/llama/length", LENGTH).json()
    again = ask("runs/llama/length", LENGTH | {"tokens_per_epoch": None}).json()

    assert run_json["planned_tokens"] == 10**6
    assert run_json["ends_at"] is not None
    assert again["n_epochs"] is None
    notes = Annotation.objects.order_by("pk").values_list("by", "text")
    assert list(notes) == [
        ("token admin", "tokens per epoch: 20,480, planned tokens: 1,000,000"),
        ("token admin", "tokens per epoch: unknown, planned tokens: 1,000,000"),
    ]


@pytest.mark.parametrize("value", [0, 10**18 + 1, "1", 1.5, True])
def test_a_length_that_cannot_be_is_named_and_not_kept(ask: Ask, run: Run, value: object) -> None:
    refused = ask("runs/llama/length", LENGTH | {"planned_tokens": value})

    assert (refused.status_code, refused.json()["field"]) == (400, "planned_tokens")
    assert Run.objects.get().tokens_per_epoch is None


def test_a_length_is_reported_whole(ask: Ask, run: Run) -> None:
    refused = ask("runs/llama/length", {"planned_tokens": 5})

    assert (refused.status_code, refused.json()["field"]) == (400, "tokens_per_epoch")


def test_of_people_only_leads_tell_a_length(client: Client, alive: Run) -> None:  # noqa: F811
    client.force_login(member("operator"))
    assert client.post("/api/v1/runs/llama/length", LENGTH, "application/json").status_code == 403
    client.force_login(member("lead"))

    assert client.post("/api/v1/runs/llama/length", LENGTH, "application/json").status_code == 200
