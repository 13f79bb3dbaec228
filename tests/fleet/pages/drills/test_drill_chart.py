"""Drill charts: the fault shaded, detection times marked."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client

from fleet.models import Alert, InjectedFault

Drilled = Callable[..., InjectedFault]
Noticed = Callable[..., Alert]


@pytest.mark.parametrize("chart", ["metric", "share", "phases"])
def test_ground_truth_and_detection_are_drawn_on_one_chart(
    client: Client, drilled: Drilled, noticed: Noticed, chart: str
) -> None:
    fault = drilled(ago=timedelta(minutes=5))
    alert = noticed(fault)

    figure = client.get(f"/drills/{fault.pk}/charts/{chart}").json()

    starts_s, ends_s = fault.starts_at.timestamp(), fault.ends_at.timestamp()
    assert figure["shade"] == [[starts_s, ends_s, "the fault"]]
    times = {event[1]: event[0] for event in figure["events"]}
    assert times["onset"] == alert.onset_at.timestamp()
    assert times["detected"] == alert.fired_at.timestamp()
    assert alert.resolved_at is not None
    assert times["resolved"] == alert.resolved_at.timestamp()


def test_before_detection_only_the_ground_truth_is_drawn(client: Client, drilled: Drilled) -> None:
    fault = drilled(ago=timedelta(seconds=20))

    figure = client.get(f"/drills/{fault.pk}/charts/metric").json()

    assert figure["shade"]
    assert figure["events"] == []


def test_the_part_that_is_hit_stands_out(client: Client, drilled: Drilled) -> None:
    fault = drilled(ago=timedelta(seconds=15))

    figure = client.get(f"/drills/{fault.pk}/charts/metric").json()

    assert [line["label"] for line in figure["series"] if line["role"] == "bad"] == ["core 7"]


def test_a_throttled_device_is_all_of_its_cores(client: Client, drilled: Drilled) -> None:
    fault = drilled(kind="throttle", device=3, ago=timedelta(seconds=15))

    figure = client.get(f"/drills/{fault.pk}/charts/metric").json()

    marked = [line["label"] for line in figure["series"] if line["role"] == "bad"]
    assert marked == ["core 6", "core 7"]


def test_it_keeps_to_the_window_of_the_address(client: Client, drilled: Drilled) -> None:
    fault = drilled()
    start = int(fault.starts_at.timestamp())

    figure = client.get(f"/drills/{fault.pk}/charts/share?from={start}&to={start + 60}").json()

    assert figure["window"] == [start, start + 60]


def test_a_bad_window_is_reported_by_its_field(client: Client, drilled: Drilled) -> None:
    response = client.get(f"/drills/{drilled().pk}/charts/share?from=2&to=1")

    assert response.status_code == 400
    assert response.json()["error"]["field"] == "to"


def test_unknown_names_are_not_found(client: Client, drilled: Drilled) -> None:
    assert client.get(f"/drills/{drilled().pk}/charts/gremlins").status_code == 404
    assert client.get("/drills/4711/charts/share").status_code == 404
