"""The list of runs: communication loss and cost, the worst first."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from fleet.models import Alert, Run
from tests.helpers import NOON

Page = Callable[..., str]


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass: what a run costs and has left is then known to the second."""
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)


def another(name: str, **fields: object) -> Run:
    now = timezone.now()
    usual: dict[str, object] = {
        "team": "search",
        "model": "bert-large",
        "instance_type": "trn1.2xlarge",
        "n_nodes": 1,
        "seq_len": 128,
        "global_batch": 64,
        "usd_per_node_hour": 1.34,
        "price_basis": "on demand",
        "phase_since": now,
        "started_at": now,
    }
    return Run.objects.create(name=name, **usual | fields)


def test_the_worst_runs_come_first_and_those_that_are_over_last(page: Page, alert: Alert) -> None:
    another("adam")
    another("aero", phase="finished", finished_at=timezone.now())
    text = page("/runs/")

    places = [text.index(f'id="run-{name}"') for name in ("llama", "adam", "aero")]
    assert places == sorted(places)
    assert ">search</td>" in text


def test_a_cost_is_sorted_over_all_runs(page: Page, alive: Run) -> None:
    started_at = timezone.now() - timedelta(days=30)
    another("old", started_at=started_at, phase="finished", finished_at=timezone.now())
    text = page("/runs/?sort=-cost")

    assert text.index('id="run-old"') < text.index('id="run-llama"')


def test_it_shows_share_pace_and_price(page: Page, alive: Run) -> None:
    text = page("/runs/")

    assert "30.0 %" in text
    assert "2.00 s" in text
    assert "$172" in text  # two hours of four nodes at $21.50


def test_a_compiling_run_shows_its_progress_and_what_is_left(page: Page, alive: Run) -> None:
    since = timezone.now() - timedelta(minutes=30)
    another("bert", phase="compiling", phase_progress_ratio=0.75, phase_since=since)
    text = page("/runs/")

    assert 'value="0.75"' in text
    assert "10 min left" in text


def test_an_alert_stands_next_to_the_phase(page: Page, alert: Alert) -> None:
    text = page("/runs/")

    assert f'<a href="/alerts/{alert.pk}/"><span class="tag bad small">' in text


def test_a_finished_run_has_no_present(page: Page, alive: Run) -> None:
    another("bert", phase="finished", finished_at=NOON, started_at=NOON - timedelta(hours=3))
    text = page("/runs/")

    assert "finished" in text
    assert "1 active" in text


def test_without_runs_it_states_how_they_come(page: Page, redis_url: str, db: None) -> None:
    assert "No runs." in page("/runs/")


def test_a_team_is_text_and_never_markup(page: Page, alive: Run) -> None:
    another("bert", team="<script>x</script>")

    assert "<script>x" not in page("/runs/")


def test_it_gives_htmx_only_the_partial_it_asks_for(client: Client, alive: Run) -> None:
    response = client.get("/runs/", headers={"HX-Request": "true", "HX-Target": "runs"})

    assert response.text.strip().startswith('<div id="runs">')


def test_many_runs_cost_no_more_queries_than_one(
    client: Client,
    alert: Alert,
    operator: object,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for i in range(60):
        another(f"bert-{i}", phase="finished", finished_at=timezone.now())

    with django_assert_max_num_queries(8):
        page = client.get("/runs/").text

    assert page.count('<tr id="run-') == 50
    assert "1 of 2" in page
    assert client.get("/runs/?page=2").text.count('<tr id="run-') == 11
