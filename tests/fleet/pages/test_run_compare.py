"""Runs side by side: figures, differences, settings, and what is unknown."""

import time
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import strip_tags
from pytest_django import DjangoAssertNumQueries

from fleet.models import Run
from telemetry.store.hot import HotStore
from tests.helpers import steps

HERE = "/compare-runs/"


@pytest.fixture
def pair(run: Run, hot: HotStore) -> tuple[Run, Run]:
    """Let two runs train, the second one twice as slowly with another batch."""
    now_s = time.time()
    other = Run.objects.get(pk=run.pk)
    other.pk, other.name, other.global_batch = None, "twin", 2 * run.global_batch
    other.save()
    for name, slower in ((run.name, 1), (other.name, 2)):
        batch = steps(
            name,
            n_steps=10,
            ended_at_s=now_s - 25 * slower,
            compute_s=1.4 * slower,
            transfer_s=0.6,
        )
        hot.append_steps(batch)
    return run, other


def text(client: Client, *names: str) -> str:
    page = client.get(HERE, {"run": names}).text
    return " ".join(strip_tags(page).replace("\u202f", " ").split())


def test_it_shows_each_difference_from_the_first_run(
    client: Client, pair: tuple[Run, Run]
) -> None:
    page = text(client, "llama", "twin")

    assert "Step 2.00 s 3.40 s +70.0 %" in page
    assert "global batch ≠" in page
    assert "model ≠" not in page
    assert page.index("global batch ≠") < page.index("sequence length")


def test_a_run_that_is_over_has_the_figures_of_its_last_hour(
    client: Client, pair: tuple[Run, Run]
) -> None:
    _, other = pair
    other.finished_at = timezone.now() + timedelta(minutes=1)
    other.phase = Run.Phase.FINISHED
    other.save()

    page = text(client, "llama", "twin")
    assert "now, or the last hour of a run" in page
    assert "3.40 s" in page


def test_less_than_two_runs_are_asked_for(client: Client, run: Run, redis_url: str) -> None:
    assert "Tick two to four runs" in text(client)
    assert "There is no run nothing." in text(client, "llama", "nothing")


def test_it_asks_no_more_for_four_runs(
    client: Client, pair: tuple[Run, Run], django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    text(client, "llama", "twin")
    with django_assert_max_num_queries(12):
        text(client, "llama", "twin")


def test_the_list_has_a_box_for_each_run(client: Client, pair: tuple[Run, Run]) -> None:
    page = client.get("/runs/").text

    assert 'action="/compare-runs/"' in page
    assert 'name="run" value="twin" form="compare"' in page
