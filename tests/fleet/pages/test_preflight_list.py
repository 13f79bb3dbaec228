"""The list of preflights, and the form that starts one."""

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Node, Preflight, Run
from tests.fleet.pages.conftest import Page
from tests.fleet.pages.preflights import asked, done
from tests.fleet.test_anonymous_access import member

pytestmark = pytest.mark.django_db
NEW = {"nodes": "a b\nc", "instance_type": "trn1.32xlarge", "take": "2"}


@pytest.fixture
def at_the_form(client: Client) -> Client:
    """Give an operator's browser."""
    client.force_login(member("operator"))
    return client


def test_without_any_it_states_what_happens(page: Page) -> None:
    text = page("/preflight/")

    assert "No preflights." in text
    assert "An operator can start one here" in text
    assert "<form" not in text.partition("<main")[2]


def test_an_operator_asks_for_one(at_the_form: Client) -> None:
    response = at_the_form.post("/preflight/", NEW, follow=True)

    preflight = Preflight.objects.get()
    assert response.redirect_chain == [(f"/preflight/{preflight.pk}/", 302)]
    assert (preflight.asked_by, preflight.take) == ("operator", 2)
    assert preflight.names == ["a", "b", "c"]
    assert "counting accelerators" in response.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodes", ""),
        ("take", "many"),
        ("take", "9"),
        ("instance_type", ""),
    ],
)
def test_what_is_wrong_is_named_and_what_was_given_is_kept(
    at_the_form: Client, field: str, value: str
) -> None:
    response = at_the_form.post("/preflight/", NEW | {field: value})

    assert response.status_code == 422
    assert list(response.context["form"].errors) == [field]
    assert field == "nodes" or "a b\nc</textarea>" in response.text
    assert not Preflight.objects.exists()


def test_it_is_filled_in_with_the_nodes_of_a_run(
    at_the_form: Client, run: Run, steady: Node, limping: Node
) -> None:
    text = at_the_form.get("/preflight/?run=llama").text

    assert "steady\nlimping</textarea>" in text
    assert '<option value="trn1.32xlarge" selected>' in text
    response = at_the_form.post(
        "/preflight/", {"nodes": "steady, limping", "run": "llama"}, follow=True
    )
    assert Preflight.objects.get().run == run
    assert "of <a href=" in response.text


def test_a_row_states_the_verdict(page: Page) -> None:
    done()
    text = page("/preflight/")

    assert "12 of 16 nodes can be used, 12 are needed." in text
    assert "Exclude n-03: EFA device 5 responds in" in text
    assert "Exclude n-09: 15 of 16 accelerators." in text
    assert (
        "n-06 and n-11 are slow to each other, but not to others: use only one of the pair" in text
    )


def test_what_is_under_way_shows_how_far_and_the_list_looks_often(page: Page) -> None:
    assert "every 60s" in page("/preflight/")
    asked()

    text = page("/preflight/")

    assert "<progress" in text
    assert "every 2s" in text


def test_thirty_preflights_cost_no_more_questions(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(15):
        done(names=["a"], faults=(), take=None)
        asked(names=["a"], faults=(), take=None)

    with django_assert_max_num_queries(10):
        response = client.get("/preflight/?page=2")
    assert response.status_code == 200
    assert response.text.count('<article class="preflight"') == 5


def test_only_the_list_is_renewed(page: Page) -> None:
    part = page("/preflight/", HX_Request="true", HX_Target="preflights")

    assert part.lstrip().startswith('<section class="panel" id="preflights"')
    assert "<html" not in part
