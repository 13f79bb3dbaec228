"""The list of trials, and the form by which leads start one."""

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Run, Trial
from fleet.trials.services import begin, update_figures
from telemetry.store.hot import HotStore
from tests.fleet.pages.conftest import Page
from tests.fleet.test_anonymous_access import member
from tests.fleet.trials.conftest import LATER, made, train
from tests.helpers import NOON

pytestmark = pytest.mark.django_db
NEW = {
    "name": "move",
    "question": "Do we move?",
    "baseline": "vit-p5",
    "candidates": ["vit-trn2"],
    "planned_steps": "2000",
}
FORM = NEW | {"margin_ratio": "0.02"}


@pytest.fixture
def arms() -> tuple[Run, Run]:
    """Make the runs of a trial."""
    return made("vit-p5", "p5.48xlarge", 90.0), made("vit-trn2", "trn2.48xlarge", 72.0)


@pytest.fixture
def lead(client: Client) -> Client:
    """Give a lead's browser."""
    client.force_login(member("lead"))
    return client


def test_without_trials_it_states_how_to_begin(page: Page, redis_url: str) -> None:
    text = page("/trials/")

    assert "No trials." in text
    assert "a lead selects both runs here" in text
    assert "<form" not in text.partition("<main")[2]


def test_a_lead_begins_one(lead: Client, redis_url: str, arms: tuple[Run, Run]) -> None:
    response = lead.post("/trials/", FORM, follow=True)

    trial = Trial.objects.get()
    assert response.redirect_chain == [("/trials/move/", 302)]
    assert (trial.created_by, trial.planned_steps) == ("lead", 2_000)
    assert "figures appear within one minute" in response.text
    assert "being calculated" in response.text


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "a b"), ("question", ""), ("baseline", ""), ("planned_steps", "many")],
)
def test_what_is_wrong_is_named_and_what_was_given_is_kept(
    lead: Client, redis_url: str, arms: tuple[Run, Run], field: str, value: str
) -> None:
    response = lead.post("/trials/", FORM | {field: value})

    assert response.status_code == 422
    assert list(response.context["form"].errors) == [field]
    assert '<option value="vit-trn2" selected>' in response.text
    assert not Trial.objects.exists()


def test_a_row_states_the_verdict(page: Page, hot: HotStore, arms: tuple[Run, Run]) -> None:
    train("vit-p5", [2.0] * 100)
    train("vit-trn2", [1.25] * 100)
    fields = NEW | {"planned_steps": 100, "by": "ada", "now": NOON}
    update_figures(hot, begin(**fields), now=LATER)  # type: ignore[arg-type]

    text = page("/trials/")

    assert "Cheaper (\u221250.0 %), faster (+60.0 %)." in text
    assert "Move to " in text


def test_fifty_trials_cost_no_more_questions(
    client: Client,
    redis_url: str,
    arms: tuple[Run, Run],
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for i in range(50):
        fields = NEW | {"name": f"t{i}", "planned_steps": 100, "by": "ada", "now": NOON}
        begin(**fields)  # type: ignore[arg-type]

    with django_assert_max_num_queries(10):
        assert client.get("/trials/").status_code == 200


def test_only_the_list_is_renewed(page: Page, redis_url: str) -> None:
    part = page("/trials/", HX_Request="true", HX_Target="trials")

    assert part.lstrip().startswith('<section class="panel" id="trials"')
    assert "<html" not in part
