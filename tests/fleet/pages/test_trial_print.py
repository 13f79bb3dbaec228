"""A trial on one printed page."""

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Run, Trial
from fleet.trials.services import begin, update_figures
from telemetry.store.hot import HotStore
from tests.fleet.pages.conftest import Page
from tests.fleet.trials.conftest import LATER, made, train
from tests.helpers import NOON

EPOCH = 50_000_000


@pytest.fixture
def trial(hot: HotStore, db: None) -> Trial:
    """Start a trial of two arms with a hundred steps each, calculated."""
    reported = {"optimizer": "AdamW", "tokens_per_epoch": EPOCH}
    made("vit-p5", "p5.48xlarge", 90.0, **reported)
    made("vit-trn2", "trn2.48xlarge", 72.0, price_basis="capacity block, 2026-10", **reported)
    train("vit-p5", [2.0] * 100, loss=[3.0] * 100)
    train("vit-trn2", [1.25] * 100, loss=[3.0] * 100)
    trial = begin(
        "bakeoff",
        "Do we move?",
        baseline="vit-p5",
        candidates=["vit-trn2"],
        planned_steps=100,
        planned_tokens=10**9,
        by="ada",
        now=NOON,
    )
    update_figures(hot, trial, now=LATER)
    return trial


def test_it_has_what_the_first_team_asks_for(page: Page, trial: Trial) -> None:
    text = page("/trials/bakeoff/print/")
    assert "<h1>Do we move?</h1>" in text
    for label in ("$ per epoch", "step time, first epoch", "compile time", "time to train"):
        assert label in text
    # 47.76 against 35.7608 dollars, 1.6 times the pace; as priced half, but of unlike kinds.
    assert "53.2" in text
    assert "Capacity block list prices (95" in text
    assert "not like for like (capacity block vs. on demand)" in text
    assert text.index("Recommendation:") < text.index("$ per epoch")
    # 50 steps of 2 s at $0.10, against 50 of 1.25 s at $0.08.
    assert "$10.00" in text
    assert "$5.00" in text
    assert "optimizer (AdamW)" in text
    assert "30-40% better price performance" in text


def test_prices_of_different_kinds_are_pointed_out(page: Page, trial: Trial) -> None:
    assert "Not like for like:" in page("/trials/bakeoff/print/")


def test_mismatches_come_before_the_verdict(page: Page, hot: HotStore, trial: Trial) -> None:
    Run.objects.filter(name="vit-p5").update(optimizer="SGD")
    update_figures(hot, Trial.objects.with_arms().get(pk=trial.pk), now=LATER)

    text = page("/trials/bakeoff/print/")

    assert text.index("The arms train different workloads") < text.index("<table")
    assert "<b>optimizer</b>: SGD vs. AdamW" in text
    assert "There is no verdict" in text


def test_before_it_is_calculated_the_page_states_it(page: Page, trial: Trial) -> None:
    Trial.objects.update(figures={})

    assert "The figures are being calculated" in page("/trials/bakeoff/print/")


def test_it_asks_the_database_little(
    client: Client, trial: Trial, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_max_num_queries(10):
        assert client.get("/trials/bakeoff/print/").status_code == 200
