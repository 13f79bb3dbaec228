"""The chart of all-reduce shares on the overview."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from pytest_django import Settings

from fleet.models import Annotation, Run
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


def test_a_past_window_has_the_runs_of_that_time_and_what_happened(
    client: Client, hot: HotStore, run: Run
) -> None:
    end_s = int(time.time()) - 7200
    at = datetime.fromtimestamp(end_s - 300, UTC)
    Run.objects.update(started_at=at - timedelta(hours=1), finished_at=at + timedelta(hours=1))
    Annotation.objects.create(at=at, kind="deploy", text="loader", run=run)
    hot.append_steps(steps(n_steps=60, ended_at_s=end_s - 600, compute_s=0.8, transfer_s=0.2))

    figure = client.get(f"/overview/shares?from={end_s - 900}&to={end_s}").json()
    known = [share for share in figure["series"][0]["values"] if share is not None]
    assert known[0] == known[-1] == pytest.approx(0.2)
    assert figure["window"] == [end_s - 900, end_s]
    assert [event[1:3] for event in figure["events"]] == [["deploy: llama, loader", "deploy"]]
    assert figure["every_s"] == 1
    day = client.get(f"/overview/shares?from={end_s - 86_400}&to={end_s}").json()
    assert day["every_s"] == 96
    assert len(day["t"]) <= 900
    assert client.get("/overview/shares").json()["series"] == []
    assert client.get("/overview/shares?from=9&to=3").status_code == 400


def test_it_appends_one_point_every_second(hot: HotStore, run: Run) -> None:
    now_s = time.time()
    hot.append_steps(steps(n_steps=30, ended_at_s=now_s - 30, compute_s=0.8, transfer_s=0.2))

    points = overview_points(since_s=now_s - 25)["shares"]

    assert 25 <= len(points["t"]) <= 26
    assert points["values"][0][-1] == pytest.approx(0.2)
    assert overview_points(since_s=now_s + 60) == {}
