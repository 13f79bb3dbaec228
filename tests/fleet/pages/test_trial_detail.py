"""The page of a trial: what does not match first, then the verdict, then the figures."""

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Run, Trial
from fleet.trials.keeping import begin, work_out
from telemetry.store.hot import HotStore
from tests.fleet.pages.conftest import Page
from tests.fleet.test_doors import member
from tests.fleet.trials.conftest import LATER, made, train
from tests.parts import NOON


@pytest.fixture
def trial(hot: HotStore, db: None) -> Trial:
    """Begin a trial of two arms with a hundred steps each, not yet worked out."""
    made("vit-p5", "p5.48xlarge", 90.0)
    made("vit-trn2", "trn2.48xlarge", 72.0)
    train("vit-p5", [2.0] * 100)
    train("vit-trn2", [1.25] * 100)
    return begin(
        "bakeoff",
        "Do we move?",
        baseline="vit-p5",
        candidates=["vit-trn2"],
        planned_steps=100,
        by="ada",
        now=NOON,
    )


def test_it_says_the_verdict_the_figures_and_the_claim(
    page: Page, hot: HotStore, trial: Trial
) -> None:
    work_out(hot, trial, now=LATER)

    text = page("/trials/bakeoff/")

    assert "Do we move?" in text
    assert "1M tokens cost $0.1000 instead of $0.2000, 50.0 % less" in text
    assert "30-40% better price performance than GPU-based EC2 P5e and P5en instances" in text
    assert "2024-12-03" in text
    assert 'class="claim"' in text
    assert "Not reported, so not compared: optimizer." in text
    assert "do not train the same thing" not in text


def test_mismatches_come_before_any_figure(page: Page, hot: HotStore, trial: Trial) -> None:
    Run.objects.filter(name="vit-trn2").update(global_batch=2000)
    work_out(hot, trial, now=LATER)

    text = page("/trials/bakeoff/")

    assert text.index("The arms do not train the same thing") < text.index("1M tokens cost")
    assert "No verdict follows from that." in text
    assert "is better than" not in text
    assert "none: arms differ" in text


def test_before_it_is_worked_out_it_says_so(page: Page, trial: Trial) -> None:
    assert "figures are being worked out" in page("/trials/bakeoff/")


def test_only_the_figures_are_renewed(page: Page, hot: HotStore, trial: Trial) -> None:
    work_out(hot, trial, now=LATER)

    part = page("/trials/bakeoff/", HX_Request="true", HX_Target="figures")

    assert part.lstrip().startswith('<div class="stack" id="figures"')
    assert "<html" not in part


def test_leads_may_end_it_and_others_may_not(client: Client, trial: Trial) -> None:
    assert "End this trial" not in client.get("/trials/bakeoff/").text
    client.force_login(member("lead"))

    assert "End this trial" in client.get("/trials/bakeoff/").text


def test_it_asks_the_database_little(
    client: Client,
    hot: HotStore,
    trial: Trial,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    work_out(hot, trial, now=LATER)

    with django_assert_max_num_queries(10):
        client.get("/trials/bakeoff/")


def test_an_unknown_trial_is_not_found_and_nothing_is_posted(client: Client, trial: Trial) -> None:
    assert client.get("/trials/nothing/").status_code == 404
    client.force_login(member("lead"))
    assert client.post("/trials/bakeoff/").status_code == 405
