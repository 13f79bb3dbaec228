"""A trial's schedule: answer, form, assumptions."""

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Run, Trial
from fleet.trials.schedule import update_observed_runs
from fleet.trials.services import update_figures
from telemetry.store.hot import HotStore
from tests.fleet.pages.conftest import Page
from tests.fleet.trials.arms import let_train, trial_of_two
from tests.fleet.trials.conftest import LATER, made, train

PAGE = "/trials/bakeoff/schedule/"


@pytest.fixture
def trial(db: None) -> Trial:
    """Start a trial of two arms."""
    return trial_of_two()


@pytest.fixture
def seen(hot: HotStore, trial: Trial) -> Trial:
    """Let both arms train, and look at them."""
    let_train()
    update_figures(hot, trial, now=LATER)
    update_observed_runs(hot, now=LATER)
    return trial


@pytest.mark.usefixtures("seen")
def test_it_shows_the_answer_and_where_each_figure_comes_from(page: Page) -> None:
    text = page(f"{PAGE}?porting_usd=1000&failures=0")

    # $0.1 a second and 2.01 s a step against $0.08 and 1.255 s: half the price.
    assert "4 \u00d7 trn2.48xlarge pays back its porting after" in text
    assert "over 14 days it saves $" in text
    assert "vit-trn2: on demand" in text
    assert "measured on vit-p5" in text
    assert "not reported by vit-trn2" in text
    assert "manage.py project --trial bakeoff --days 14 --porting-usd 1000" in text


@pytest.mark.usefixtures("seen")
def test_a_simulated_pace_is_called_assumed_and_has_no_interval(page: Page) -> None:
    Run.objects.filter(name="vit-trn2").update(is_simulated=True)
    text = page(PAGE)

    assert "trn2.48xlarge: simulated. The pace follows from the step model" in text
    assert "assumed: simulated on vit-trn2" in text
    assert "tokens/s; assumed" not in text
    assert "measured on vit-trn2" not in text
    assert "tokens/s; measured on vit-p5" in text


@pytest.mark.usefixtures("seen")
def test_without_scripts_it_is_a_form_that_keeps_what_was_given(page: Page) -> None:
    text = page(f"{PAGE}?days=21.5&porting_usd=2500&reuse=no&by=tokens")

    assert 'name="days" id="days" min="0.5" max="365" step="any" value="21.5"' in text
    assert 'value="2500"' in text
    assert 'name="reuse" value="no" checked' in text
    assert '<noscript><button class="primary">Calculate</button></noscript>' in text
    assert "dollars-by-tokens?days=21.5&amp;porting_usd=2500&amp;reuse=no&amp;by=tokens" in text


@pytest.mark.usefixtures("seen")
def test_the_slider_renews_only_the_schedule(page: Page) -> None:
    part = page(f"{PAGE}?days=7", HX_Request="true", HX_Target="schedule")

    assert part.lstrip().startswith('<div class="stack" id="schedule">')
    assert "over 7 days it saves" in part
    assert "<form" not in part


@pytest.mark.usefixtures("seen")
def test_the_trials_page_gets_the_answer_alone(page: Page) -> None:
    part = page(PAGE, HX_Request="true", HX_Target="schedule-summary")

    assert part.lstrip().startswith('<section class="panel verdict-panel schedule-summary"')
    assert "over 14 days it saves" in part
    assert "<table" not in part


@pytest.mark.usefixtures("seen")
def test_the_trials_page_asks_for_it(page: Page) -> None:
    text = page("/trials/bakeoff/")

    assert f'hx-get="{PAGE}"' in text
    assert f'<a href="{PAGE}">' in text


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize(
    ("query", "phrase"),
    [
        ("days=soon", "days: &#x27;soon&#x27; is no number"),
        ("days=900", "days: choose 0.5 to 365"),
        ("porting_usd=-3", "porting_usd: give dollars"),
        ("failures=99", "failures: give failures per node and day"),
        (
            "candidate=missing",
            "candidate: &#x27;missing&#x27; is not a candidate of bakeoff. Choose vit-trn2",
        ),
    ],
)
def test_a_mistake_names_its_field_and_is_left_to_be_mended(
    client: Client, query: str, phrase: str
) -> None:
    response = client.get(f"{PAGE}?{query}")

    assert response.status_code == 422
    assert f"▲ {phrase}" in response.text


def test_tokens_that_a_trial_plans_may_be_asked_for(page: Page, seen: Trial) -> None:
    Trial.objects.filter(pk=seen.pk).update(planned_tokens=10**12)

    assert '<a href="?tokens=1000000000000">whole training</a>' in page(PAGE)
    text = page(f"{PAGE}?tokens=1e12")
    assert "for 1.00 T tokens (" in text
    assert 'name="tokens" id="tokens" min="1" step="any" value="1e12"' in text


def test_arms_that_train_different_things_are_reported_first(
    page: Page, hot: HotStore, seen: Trial
) -> None:
    Run.objects.filter(name="vit-trn2").update(global_batch=2000)
    update_figures(hot, Trial.objects.get(pk=seen.pk), now=LATER)

    text = page(PAGE)

    assert "The arms train different workloads: global batch" in text


def test_an_odd_third_arm_states_nothing_of_the_two_that_are_compared(
    page: Page, hot: HotStore, seen: Trial
) -> None:
    other = made("vit-trn1", "trn1.32xlarge", 20.0)
    Run.objects.filter(pk=other.pk).update(global_batch=2000)
    train("vit-trn1", [3.0, 3.02] * 100)
    seen.arms.create(run=other, label="4 trn1", position=2)
    update_figures(hot, Trial.objects.get(pk=seen.pk), now=LATER)
    update_observed_runs(hot, now=LATER)

    assert "train different workloads" not in page(PAGE)
    assert "train different workloads: global batch" in page(f"{PAGE}?candidate=vit-trn1")


def test_one_arm_alone_has_no_schedule(page: Page, seen: Trial) -> None:
    seen.arms.filter(is_baseline=False).delete()

    assert "bakeoff has one arm only; a schedule compares two" in page(PAGE)


@pytest.mark.usefixtures("trial", "hot")
def test_before_anybody_looked_the_page_states_it(page: Page) -> None:
    assert "The figures are being calculated" in page(PAGE)


def test_arms_without_steps_or_price_say_what_is_missing(
    page: Page,
    hot: HotStore,
    trial: Trial,
) -> None:
    update_observed_runs(hot, now=LATER)
    assert "vit-p5 has 0 settled steps whose tokens were counted; let it train" in page(PAGE)

    Run.objects.filter(name="vit-p5").update(usd_per_node_hour=0.0)
    assert "vit-p5 has no price; set one for p5.48xlarge" in page(PAGE)


def test_of_several_candidates_one_is_chosen(page: Page, hot: HotStore, seen: Trial) -> None:
    other = made("vit-trn1", "trn1.32xlarge", 20.0)
    train("vit-trn1", [3.0, 3.02] * 100)
    seen.arms.create(run=other, label="4 trn1", position=2)
    update_observed_runs(hot, now=LATER)

    text = page(f"{PAGE}?candidate=vit-trn1")

    assert '<option value="vit-trn1" selected>' in text
    assert "4 trn1 is ahead of" in text or "4 trn1 pays back" in text


@pytest.mark.usefixtures("seen")
def test_it_asks_the_database_little(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_max_num_queries(7):
        client.get(PAGE)
