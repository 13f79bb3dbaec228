"""What the pages keep live: parts by name, and points that fit their charts."""

import time
from collections.abc import Callable

import pytest
from django.http import Http404
from django.test import Client

from fleet.models import Alert, Run
from fleet.topics import live_topic
from fleet.views.nodes import node_points
from fleet.views.runs import run_points
from fleet.views.topics import TOPICS
from telemetry.store.hot import HotStore

Fire = Callable[..., Alert]
OURS = ("nodes", "node:limping", "runs", "run:llama", "alerts", "alert:{pk}")


@pytest.mark.parametrize("asked", OURS)
def test_every_part_is_rendered_under_its_own_name(alert: Alert, asked: str) -> None:
    topic = live_topic(TOPICS, asked.format(pk=alert.pk), {})
    events = topic.render()

    for name in topic.topic.partials:
        said = events[name].decode()
        assert said.startswith(f"event: {name}\n")
        assert f'id="{name}"' in said
    assert b"csrfmiddlewaretoken" not in b"".join(events.values())


@pytest.mark.parametrize("asked", OURS)
def test_a_part_that_did_not_change_reads_the_same(alert: Alert, asked: str) -> None:
    topic = live_topic(TOPICS, asked.format(pk=alert.pk), {})
    steady = {"nodes", "runs", "open", "resolved", "devices", "links", "facts", "timeline"}

    first, second = topic.render(), topic.render()

    for name in steady & first.keys():
        if name not in {"runs"}:  # dollars spent go on counting
            assert first[name] == second[name]


def test_the_list_of_nodes_is_live_behind_its_filter(alive: Run) -> None:
    said = live_topic(TOPICS, "nodes", {"q": "limp"}).render()["nodes"].decode()

    assert 'id="node-limping"' in said
    assert 'id="node-steady"' not in said


@pytest.mark.parametrize("asked", ["node:nobody", "run:nothing", "alert:999"])
def test_what_does_not_exist_has_no_stream(alive: Run, asked: str) -> None:
    with pytest.raises(Http404):
        live_topic(TOPICS, asked, {}).render()


def test_an_alert_by_any_other_number_has_no_stream(alive: Run) -> None:
    with pytest.raises(Http404):
        live_topic(TOPICS, "alert:one", {}).render()


def test_points_of_a_node_fit_its_charts(client: Client, alive: Run) -> None:
    for name, points in node_points("limping", since_s=time.time() - 10).items():
        drawn = client.get(f"/nodes/limping/charts/{name}").json()
        lines = drawn["values"] if name == "core-heat" else drawn["series"]

        assert len(points["values"]) == len(lines), name
        assert {len(values) for values in points["values"]} == {len(points["t"])}
        assert points["t"]


def test_points_of_a_run_fit_its_charts(client: Client, alive: Run) -> None:
    for name, points in run_points("llama", since_s=time.time() - 10).items():
        drawn = client.get(f"/runs/llama/charts/{name}").json()["series"]

        assert len(points["values"]) == len(drawn), name
        assert points["t"]


def test_many_cores_say_which_of_them_they_append(alive: Run) -> None:
    alive.nodes.update(n_cores=64)
    points = node_points("limping", since_s=time.time() - 10)

    assert len(points["cores"]["labels"]) == len(points["cores"]["values"])
    assert "labels" not in points["memory"]


def test_a_heat_map_appends_the_columns_that_its_drawing_goes_on_with(
    client: Client, alive: Run
) -> None:
    drawn = client.get("/nodes/limping/charts/core-heat").json()
    appended = node_points("limping", since_s=time.time() - 15)["core-heat"]

    assert set(appended["t"]) & set(drawn["t"])
    assert {(moment - appended["t"][0]) % drawn["every_s"] for moment in drawn["t"]} == {0}


def test_a_node_that_says_nothing_appends_nothing(alive: Run, silent: object) -> None:
    assert node_points("silent", since_s=time.time() - 10) == {}


def test_a_column_is_told_once_it_is_whole_though_its_middle_is_past(
    alive: Run, hot: HotStore
) -> None:
    newest = max(hot.newest().values())
    told = [
        node_points("limping", since_s=newest - ago_s)["core-heat"]["t"] for ago_s in range(1, 4)
    ]

    assert all(told)
