"""The chart of all-reduce shares on the overview."""

import time

import pytest
from django.test import Client
from pytest_django import Settings

from fleet.models import Run
from fleet.pages.overview import overview_points
from telemetry.store.hot import HotStore
from tests.helpers import steps


@pytest.fixture(autouse=True)
def _open_to_all(settings: Settings) -> None:
    settings.ANONYMOUS_READING = True


def test_it_has_a_line_for_each_run_and_the_limit(client: Client, hot: HotStore, run: Run) -> None:
    hot.append_steps(steps(n_steps=60, ended_at_s=time.time() - 60, compute_s=0.8, transfer_s=0.2))

    figure = client.get("/overview/shares").json()

    assert [line["label"] for line in figure["series"]] == ["llama"]
    assert figure["limit"] == 0.25
    assert figure["series"][0]["values"][-1] == pytest.approx(0.2)


def test_a_run_without_steps_is_a_gap(client: Client, hot: HotStore, run: Run) -> None:
    figure = client.get("/overview/shares").json()

    assert set(figure["series"][0]["values"]) == {None}


def test_it_appends_one_point_every_ten_seconds(hot: HotStore, run: Run) -> None:
    now_s = time.time()
    hot.append_steps(steps(n_steps=30, ended_at_s=now_s - 30, compute_s=0.8, transfer_s=0.2))

    points = overview_points(since_s=now_s - 25)["shares"]

    assert 2 <= len(points["t"]) <= 3
    assert points["values"][0][-1] == pytest.approx(0.2)
    assert overview_points(since_s=now_s + 60) == {}
