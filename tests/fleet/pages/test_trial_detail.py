"""One trial: mismatches, verdict, figures."""

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Run, Trial
from fleet.trials.figures import load_figures
from fleet.trials.services import begin, update_figures
from telemetry.store.hot import HotStore
from tests.fleet.pages.conftest import Page
from tests.fleet.test_anonymous_access import member
from tests.fleet.trials.conftest import LATER, made, train
from tests.helpers import NOON, NOON_S


@pytest.fixture
def trial(hot: HotStore, db: None) -> Trial:
    """Start a trial of two arms with a hundred steps each, not yet calculated."""
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


def test_it_shows_the_verdict_the_figures_and_the_claim(
    page: Page, hot: HotStore, trial: Trial
) -> None:
    update_figures(hot, trial, now=LATER)

    text = page("/trials/bakeoff/")

    assert "Do we move?" in text
    assert "Cheaper (\u221250.0 %), faster (+60.0 %)." in text
    assert "Move to 4 \u00d7 trn2.48xlarge, once 3 runs of each arm confirm it." in text
    assert "30-40% better price performance than GPU-based EC2 P5e and P5en instances" in text
    assert "2024-12-03" in text
    assert 'class="claim"' in text
    assert "Cost per token by the price of a p5.48xlarge node-hour" in text
    # 72 dollars over 1.6 times the pace; 45 / 47.76 less one; p5 was paid at 90 dollars.
    assert "break-even $45.00" in text
    assert "capacity block, list price, 2026-10-07" in text
    assert "\u22125.8" in text
    assert "paid, on demand" in text
    assert "Not reported, so not compared: optimizer." in text
    assert "train different workloads" not in text


@pytest.mark.parametrize("address", ["/trials/", "/trials/bakeoff/", "/trials/bakeoff/print/"])
def test_across_price_kinds_no_page_calls_it_better(
    page: Page, hot: HotStore, trial: Trial, address: str
) -> None:
    Run.objects.filter(name="vit-trn2").update(
        usd_per_node_hour=20.0, price_basis="capacity block, 2026-10"
    )
    update_figures(hot, Trial.objects.with_arms().get(pk=trial.pk), now=LATER)

    text = page(address)

    assert "not like for like" in text
    # 47.76 dollars over 35.76, at 1.6 times the pace: at equal kinds, not as priced.
    assert "Cheaper (\u221253.2" in text
    if address != "/trials/":
        assert "p5.48xlarge node-hour costs more than $12.50" in text
        head = text.index("$ per 1M tokens, capacity block list prices")
        as_paid = text.index("$ per 1M tokens, as priced", head)
        row = text[as_paid : text.index("</tr>", as_paid)]
        assert "none: not like for like" in row
        assert "better" not in row


def test_arms_that_are_simulated_are_labelled_as_assumed(
    page: Page, hot: HotStore, trial: Trial
) -> None:
    update_figures(hot, trial, now=LATER)
    assert "real hardware" not in page("/trials/bakeoff/")
    Run.objects.filter(name="vit-trn2").update(is_simulated=True)
    update_figures(hot, Trial.objects.with_arms().get(pk=trial.pk), now=LATER)

    text = page("/trials/bakeoff/")
    assert "trn2.48xlarge: simulated, no measurement of real hardware" in text
    assert text.index('<span class="tag">simulated</span>') < text.index('class="answer"')


def test_mismatches_come_before_any_figure(page: Page, hot: HotStore, trial: Trial) -> None:
    Run.objects.filter(name="vit-trn2").update(global_batch=2000)
    update_figures(hot, trial, now=LATER)

    text = page("/trials/bakeoff/")

    assert text.index("The arms train different workloads") < text.index("$ per 1M tokens")
    assert "No verdict: different workloads." in text
    assert "Train the same workload on both arms (global batch), then compare." in text
    assert "none: arms differ" in text


def test_of_three_arms_only_the_one_that_differs_has_no_verdict(
    page: Page, client: Client, hot: HotStore, trial: Trial
) -> None:
    long = made("vit-long", "trn2.48xlarge", 72.0, global_batch=2000)
    train("vit-long", [1.25] * 100)
    trial.arms.create(run=long, label="long", position=2)
    update_figures(hot, Trial.objects.with_arms().get(pk=trial.pk), now=LATER)

    text = page("/trials/bakeoff/")
    rows = client.get("/trials/bakeoff/figures.csv").text.splitlines()
    reported = client.get("/api/v1/trials/bakeoff").json()["candidates"]

    assert "Move to 4 \u00d7 trn2.48xlarge, once 3 runs of each arm confirm it." in text
    assert "Train the same workload on both arms (global batch)" in text
    verdicts = {row.split(",")[1]: row.split(",")[8] for row in rows if ",usd_per_mtok," in row}
    assert verdicts == {"vit-trn2": "better", "vit-long": "none: arms differ"}
    assert [each["comparisons"][0]["word"] for each in reported] == ["better", "none: arms differ"]


def test_each_measure_is_explained(page: Page, hot: HotStore, trial: Trial) -> None:
    update_figures(hot, trial, now=LATER)

    text = page("/trials/bakeoff/")

    reported = text[text.index("Method and definitions") :]
    for verdicts in ("$ per 1M tokens", "tokens per dollar", "MFU", "until the first step"):
        assert f"<dt>{verdicts}</dt>" in reported
    assert "4 \u00d7 p5.48xlarge: 31.7 PFLOP/s" in reported
    assert "<dt>loss at equal tokens</dt>" not in reported


def test_a_price_that_changed_is_reported_with_its_times(
    page: Page, hot: HotStore, trial: Trial
) -> None:
    began = {"from_s": NOON_S, "n_nodes": 4, "usd_per_node_hour": 90.0, "basis": "on demand"}
    later = {**began, "from_s": NOON_S + 100, "usd_per_node_hour": 45.0, "basis": "reserved"}
    Run.objects.filter(name="vit-p5").update(tariff=[began, later])
    update_figures(hot, Trial.objects.with_arms().get(pk=trial.pk), now=LATER)

    text = page("/trials/bakeoff/")

    assert "before: $360, on demand" in text
    assert "The price of 4 \u00d7 p5.48xlarge changed during the run" in text


def test_a_trial_whose_other_arm_is_gone_states_it(
    page: Page, hot: HotStore, trial: Trial
) -> None:
    Run.objects.filter(name="vit-trn2").delete()
    update_figures(hot, Trial.objects.with_arms().get(pk=trial.pk), now=LATER)

    assert "The run of one arm was deleted" in page("/trials/bakeoff/")
    assert "run of the other arm was deleted" in page("/trials/")
    assert "The run of one arm was deleted" in page("/trials/bakeoff/print/")


def test_what_came_before_the_first_step_of_an_imported_run_no_one_knows(
    page: Page, hot: HotStore, trial: Trial
) -> None:
    update_figures(hot, trial, now=LATER)

    assert "not reported" in page("/trials/bakeoff/")
    figures = load_figures(Trial.objects.get().figures)
    assert figures is not None
    assert figures.arms[0].ready_s is None


def test_before_it_is_calculated_the_page_states_it(page: Page, trial: Trial) -> None:
    assert "figures are being calculated" in page("/trials/bakeoff/")


def test_only_the_figures_are_renewed(page: Page, hot: HotStore, trial: Trial) -> None:
    update_figures(hot, trial, now=LATER)

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
    update_figures(hot, trial, now=LATER)

    with django_assert_max_num_queries(10):
        client.get("/trials/bakeoff/")
