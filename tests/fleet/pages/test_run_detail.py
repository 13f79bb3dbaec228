"""One run: phase, pace, price, nodes, drills."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.costs.spending import update_spending
from fleet.models import Alert, InjectedFault, Node, Run
from telemetry.store.hot import HotStore
from tests.fleet.pages.test_run_list import another
from tests.helpers import block, steps

Page = Callable[..., str]
PARTIALS = ("headline", "vitals", "alerts", "drills", "nodes", "charts")


def test_it_shows_in_one_sentence_how_the_run_gets_on(page: Page, alive: Run) -> None:
    text = page("/runs/llama/")

    assert "<b>llama</b> is training" in text
    assert "limit 25 %" in text


def test_an_alert_about_several_runs_is_on_the_page_of_each(
    page: Page, alive: Run, fired: Callable[..., Alert]
) -> None:
    other = another("other")
    of_both = {"nodes": ["limping", "steady"], "runs": ["llama", "other"], "rack": "r2"}
    parts = [{"run": name, "nodes": []} for name in of_both["runs"]]
    alert = fired(node=None, device=None, evidence=of_both, parts=parts)
    window = f"from={int(time.time()) - 600}&to={int(time.time())}"

    for address in (other.get_absolute_url(), f"{other.get_absolute_url()}?{window}"):
        text = page(address)
        assert (
            f'href="{alert.get_absolute_url()}">2 nodes in rack r2, runs llama and other' in text
        )


def test_before_its_first_step_a_run_has_no_input_tier(
    page: Page, hot: HotStore, run: Run, steady: Node, limping: Node
) -> None:
    Run.objects.update(phase=Run.Phase.COMPILING, last_step=0)
    now_s = int(time.time())
    hot.append(block(tick=tick, fill=0.5) for tick in range(now_s - 20, now_s + 1))

    text = page("/runs/llama/")

    assert "The tier is known after the first steps" in text
    assert "To get more" not in text


def test_it_gives_its_layout_and_the_basis_of_its_price(page: Page, alive: Run) -> None:
    text = page("/runs/llama/")

    assert "tensor 8, pipeline 1, data 16" in text
    assert "1,024 sequences of 4,096 tokens" in text
    assert "$21.50 per node-hour, on demand" in text
    Run.objects.update(recipe={"cp": 2, "micro_batch": 4, "recompute": "full"})
    recipe = "tensor 8, pipeline 1, data 8, context 2, micro-batch 4, recompute full"
    assert recipe in page("/runs/llama/")


def test_mfu_names_the_peak_it_is_measured_against(page: Page, alive: Run) -> None:
    assert "PFLOP/s bf16" in page("/runs/llama/")


def caption(page: Page) -> str:
    """Return the text next to the title of the chart of workers."""
    return page("/runs/llama/").partition('id="workers-title"')[2].partition("</header>")[0]


def test_a_healthy_run_has_no_culprit_to_look_for(page: Page, alive: Run) -> None:
    assert "seconds per step" in caption(page)
    assert "culprit" not in caption(page)


@pytest.mark.parametrize(
    ("kind", "cause", "accuses"),
    [
        ("waiting", "slow_core", True),
        ("waiting", "efa_latency", False),
        ("transferring", "efa_loss", False),
        ("layout", "unknown", False),
    ],
)
def test_the_caption_names_a_late_worker_only_where_one_was_found(
    page: Page, alive: Run, alert: Alert, kind: str, cause: str, *, accuses: bool
) -> None:
    alert.cause = cause
    alert.evidence = alert.evidence | {"kind": kind}
    alert.save()

    assert ("all others wait for the one with the shortest bar" in caption(page)) == accuses


def test_a_worker_that_computes_slowly_is_drawn_apart_from_the_mean_of_all(
    page: Page, client: Client, alive: Run, fired: Callable[..., Alert]
) -> None:
    assert "own-time" not in page("/runs/llama/")

    figure = {"metric": "own_s", "value": 1.5, "peers_median": 1.3, "unit": "s"}
    alert = fired(cause="slow_compute", evidence={"kind": "waiting", "culprit": figure})
    assert "Own time of limping" in page("/runs/llama/")
    drawn = client.get(f"/alerts/{alert.pk}/charts/own-time?window=15m").json()
    assert [line["label"] for line in drawn["series"]] == ["limping", "its peer"]


def test_it_lists_its_nodes_with_their_state(page: Page, alert: Alert, silent: Node) -> None:
    text = page("/runs/llama/")

    assert 'id="node-steady"' in text
    assert "firing" in text
    assert "silent" in text


def test_a_compiling_run_shows_how_long_it_takes_yet(page: Page, alive: Run) -> None:
    since = datetime.now(UTC) - timedelta(minutes=30)
    another("bert", phase="compiling", phase_progress_ratio=0.75, phase_since=since)
    text = page("/runs/bert/")

    assert "<b>75 %</b> done after 30 min, about 10 min left" in text
    assert "No steps yet" in text
    assert "<figure" not in text


def test_a_run_that_stopped_stepping_states_since_when(
    page: Page, hot: HotStore, alive: Run
) -> None:
    another("bert", phase="training", last_step=5)
    stopped_s = int(time.time()) - 300
    hot.append_steps(steps("bert", ["x"], n_steps=3, ended_at_s=stopped_s, compute_s=1.0))

    assert "no step for" in page("/runs/bert/")
    # Its own workers were stopped since then: of the run nothing is known.
    hot.gauge("watched_at_s", stopped_s)
    told = page("/runs/bert/")
    assert "no step for" not in told
    assert "trnwatch&#x27;s own workers have been stopped for 5 min" in told


def test_a_run_that_is_over_states_it_and_shows_how_it_went_to_the_end(
    page: Page, alive: Run, silent: Node, hot: HotStore
) -> None:
    ended_at = datetime.now(UTC)
    update_spending(hot, now=ended_at)
    Run.objects.update(phase=Run.Phase.FAILED, finished_at=ended_at)
    text = page("/runs/llama/")

    assert "failed 0 s ago, after 2 h and 10 steps." in text
    assert "<b>2.00 s</b>" in text
    assert "over the last 15m" in text
    assert f"to={int(ended_at.timestamp())}" in text
    assert "released" in text
    assert 'data-live="head"' in text


def test_a_run_that_is_over_follows_its_money_until_that_is_added_up(
    page: Page, alive: Run
) -> None:
    Run.objects.update(phase=Run.Phase.FINISHED, finished_at=datetime.now(UTC))
    text = page("/runs/llama/")

    assert "is being calculated" in text
    assert 'data-live="run-money:llama"' in text


def test_a_run_whose_model_no_one_knows_is_shown_all_the_same(page: Page, alive: Run) -> None:
    another("odd", instance_type="abacus.1xlarge", phase="training")

    assert "data unknown" in page("/runs/odd/")


def test_a_drill_under_way_shows_how_far_it_is(page: Page, alive: Run, limping: Node) -> None:
    now = datetime.now(UTC)
    InjectedFault.objects.create(
        run=alive,
        node=limping,
        kind="slow_core",
        device=5,
        magnitude=1.5,
        starts_at=now - timedelta(minutes=1),
        ends_at=now + timedelta(minutes=2),
        injected_by="olga",
    )
    text = page("/runs/llama/")

    assert "Slow core" in text
    assert "limping</a>, core 5" in text
    assert "1 min left" in text


def test_the_demo_s_own_weather_is_no_drill(page: Page, alive: Run) -> None:
    now = datetime.now(UTC)
    InjectedFault.objects.create(
        run=alive,
        kind="efa_loss",
        magnitude=0.1,
        starts_at=now,
        ends_at=now + timedelta(minutes=2),
    )

    assert "EFA packet loss" not in page("/runs/llama/")


def test_only_a_simulated_run_can_be_drilled(page: Page, alive: Run) -> None:
    assert "Start a drill…" not in page("/runs/llama/")
    Run.objects.update(is_simulated=True)
    assert "Start a drill…" in page("/runs/llama/")


def test_a_frozen_window_follows_no_stream(page: Page, alive: Run) -> None:
    text = page("/runs/llama/?from=1700000000&to=1700000900")

    assert "Showing data from" in text
    assert 'data-live="' not in text


def test_a_loss_is_drawn_where_the_job_reports_one(page: Page, hot: HotStore, run: Run) -> None:
    now_s = int(time.time())
    hot.append_steps(steps(n_steps=2, ended_at_s=now_s - 60, compute_s=1.0))
    before = page("/runs/llama/")
    reported = steps(n_steps=1, first=3, ended_at_s=now_s - 30, compute_s=1.0)

    hot.append_steps(replace(reported, reported_loss=np.array([2.5])))

    assert "Tokens per second" in before
    assert "Training loss" not in before
    assert "Training loss" in page("/runs/llama/")
    assert '"values":[2.5]' in page("/runs/llama/charts/loss").replace(" ", "")


@pytest.mark.parametrize("partial", PARTIALS)
def test_it_gives_htmx_only_the_partial_it_asks_for(
    client: Client, alert: Alert, partial: str
) -> None:
    headers = {"HX-Request": "true", "HX-Target": partial}
    response = client.get("/runs/llama/", headers=headers)

    assert f'id="{partial}"' in response.text
    assert "<html" not in response.text


def test_it_asks_the_database_little(
    client: Client,
    alert: Alert,
    silent: Node,
    operator: object,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_max_num_queries(13):
        client.get("/runs/llama/")


def test_its_map_shows_the_signal_that_is_chosen(page: Page, alive: Run) -> None:
    text = page("/runs/llama/?signal=utilization")

    assert "Signal: Utilization</summary>" in text
    assert 'data-live="run:llama?signal=utilization"' in text
    assert "Signal</summary>" in page("/runs/llama/?signal=unheard-of")
