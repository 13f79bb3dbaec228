"""Live parts of pages: names, and points that fit their charts."""

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.http import Http404
from django.test import Client

from fleet.models import Alert, Delivery, Run, Silence
from fleet.pages.nodes import node_points
from fleet.pages.runs import run_points
from fleet.pages.topics import TOPICS, live_topic
from telemetry.store.hot import HotStore
from tests.fleet.pages.deliveries import dead, hook
from tests.helpers import just_now

Fire = Callable[..., Alert]
__all__ = ["dead", "hook"]
OURS = (
    "nodes",
    "node:limping",
    "runs",
    "run:llama",
    "alerts",
    "alert:{pk}",
    "silences",
    "silence:{silence}",
    "hand-over",
    "notifications",
    "deliveries",
    "run-money:llama",
    "compiles",
    "drills",
    "budgets",
)


@pytest.fixture
def quiet(db: None) -> Silence:
    """Give a silence that holds for an hour."""
    now = just_now()
    return Silence.objects.create(
        matchers="rule=allreduce_share",
        starts_at=now,
        ends_at=now + timedelta(hours=1),
        reason="known",
        by="olga",
    )


@pytest.mark.parametrize("asked", OURS)
def test_every_part_is_rendered_under_its_own_name(
    alert: Alert, quiet: Silence, asked: str
) -> None:
    topic = live_topic(TOPICS, asked.format(pk=alert.pk, silence=quiet.pk), {})
    events = topic.render()

    for name in topic.topic.partials:
        shown = events[name].decode()
        assert shown.startswith(f"event: {name}\n")
        assert f'id="{name}"' in shown
    assert b"csrfmiddlewaretoken" not in b"".join(events.values())


@pytest.mark.parametrize("asked", OURS)
def test_a_part_that_did_not_change_reads_the_same(
    alert: Alert, quiet: Silence, asked: str
) -> None:
    topic = live_topic(TOPICS, asked.format(pk=alert.pk, silence=quiet.pk), {})
    steady = {"nodes", "runs", "open", "resolved", "devices", "links", "facts", "timeline"}
    steady |= {"silences", "silence", "over", "recurring", "said", "silenced"}
    steady |= {"sending", "dead", "receivers", "log"}

    first, second = topic.render(), topic.render()

    for name in steady & first.keys():
        if name not in {"runs"}:  # dollars spent go on counting
            assert first[name] == second[name]


def test_the_list_of_nodes_is_live_behind_its_filter(alive: Run) -> None:
    shown = live_topic(TOPICS, "nodes", {"q": "limp"}).render()["nodes"].decode()

    assert 'id="node-limping"' in shown
    assert 'id="node-steady"' not in shown


@pytest.mark.parametrize("asked", ["node:missing", "run:nothing", "alert:999", "silence:999"])
def test_what_does_not_exist_has_no_stream(alive: Run, asked: str) -> None:
    with pytest.raises(Http404):
        live_topic(TOPICS, asked, {}).render()


@pytest.mark.parametrize("kind", ["alert", "silence"])
def test_by_any_other_number_there_is_no_stream(alive: Run, kind: str) -> None:
    with pytest.raises(Http404):
        live_topic(TOPICS, f"{kind}:one", {}).render()


def test_a_silence_that_ends_is_reported(quiet: Silence) -> None:
    topic = live_topic(TOPICS, "silences", {})
    assert b"rule=allreduce_share" in topic.render()["silences"]

    Silence.objects.update(expired_by="olga")
    assert b"no silences" in topic.render()["silences"]


def test_a_silence_is_moved_by_a_form_that_stays_as_it_is(quiet: Silence) -> None:
    shown = live_topic(TOPICS, f"silence:{quiet.pk}", {}).render()["silence"].decode()

    assert 'id="move" data-keep' in shown


def test_an_alert_that_fires_is_sent_to_the_next_shift(fired: Fire) -> None:
    topic = live_topic(TOPICS, "hand-over", {"hours": "8"})
    assert b"no open alerts" in topic.render()["open"]

    fired()
    assert b"Unacknowledged" in topic.render()["open"]


def test_what_is_given_up_is_reported_without_buttons_of_a_form(dead: Delivery) -> None:
    events = live_topic(TOPICS, "notifications", {}).render()

    assert b"404: no_service" in events["dead"]
    assert b"<form" not in events["dead"] + events["receivers"]


def test_deliveries_are_live_behind_their_filter(dead: Delivery) -> None:
    sent = live_topic(TOPICS, "deliveries", {"state": "sent"}).render()["log"]
    given_up = live_topic(TOPICS, "deliveries", {"state": "dead", "page": "1"}).render()["log"]

    assert b"No delivery matches" in sent
    assert b"404: no_service" in given_up


def test_points_of_a_node_fit_its_charts(client: Client, alive: Run) -> None:
    for name, points in node_points("limping", since_s=time.time() - 10).items():
        drawn = client.get(f"/nodes/limping/charts/{name}").json()
        lines = drawn.get("series")
        if lines is None:
            lines = [*drawn["values"], *drawn["strengths"], drawn["peers"]]

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


def test_a_heat_map_appends_the_columns_that_its_drawing_continues_with(
    client: Client, alive: Run
) -> None:
    drawn = client.get("/nodes/limping/charts/core-heat").json()
    appended = node_points("limping", since_s=time.time() - 15)["core-heat"]

    assert set(appended["t"]) & set(drawn["t"])
    assert {(moment - appended["t"][0]) % drawn["every_s"] for moment in drawn["t"]} == {0}


def test_a_node_that_states_nothing_appends_nothing(alive: Run, silent: object) -> None:
    assert node_points("silent", since_s=time.time() - 10) == {}


def test_a_column_is_reported_once_it_is_whole_though_its_middle_is_past(
    alive: Run, hot: HotStore
) -> None:
    newest = max(hot.newest().values())
    reported = [
        node_points("limping", since_s=newest - ago_s)["core-heat"]["t"] for ago_s in range(1, 4)
    ]

    assert all(reported)
