"""Live topics of the address, and their events."""

import math
import time
from collections.abc import Mapping
from typing import Any

import pytest

from fleet.pages.topics import TOPICS as PAGES
from fleet.pages.topics import Topic, UnknownTopicError, as_json, event, live_topic


def nothing(*args: str, **filters: str) -> Mapping[str, Any]:
    """Return a context without anything in it."""
    return {}


TOPICS = {
    "overview": Topic(nothing, "charts/_share.svg", ()),
    "node": Topic(nothing, "charts/_share.svg", (), named=True),
    "nodes": Topic(nothing, "charts/_share.svg", (), filters=("state",)),
}


def test_a_topic_may_have_a_name_or_filters() -> None:
    assert live_topic(TOPICS, "node:limping", {}).args == ("limping",)
    assert live_topic(TOPICS, "nodes", {"state": "up"}).filters == {"state": "up"}


def test_the_same_question_in_another_order_is_the_same_topic() -> None:
    topics = {"nodes": Topic(nothing, "x", (), filters=("a", "b"))}

    first = live_topic(topics, "nodes", {"a": "1", "b": "2"})

    assert first.key == live_topic(topics, "nodes", {"b": "2", "a": "1"}).key


@pytest.mark.parametrize("asked", ["", "weather", "overview:x", "node", "node:", "nodes:x"])
def test_a_topic_that_no_page_has_is_refused_with_what_there_is(asked: str) -> None:
    with pytest.raises(UnknownTopicError, match="overview, node:<name>, nodes"):
        live_topic(TOPICS, asked, {})


def test_a_filter_that_the_page_does_not_know_is_named() -> None:
    with pytest.raises(UnknownTopicError, match="colour: is not a filter"):
        live_topic(TOPICS, "nodes", {"colour": "red"})


def test_an_event_keeps_its_lines() -> None:
    assert event("strip", "<b>\n1\n</b>") == b"event: strip\ndata: <b>\ndata: 1\ndata: </b>\n\n"
    assert event("empty", "") == b"event: empty\ndata: \n\n"


def test_a_gap_is_null() -> None:
    assert as_json([1.5, math.nan]) == "[1.5,null]"


def test_points_are_reported_once_each_chart_by_its_own_clock() -> None:
    began_s = time.time()
    reported = [began_s + 1, began_s + 2]

    def points(*, since_s: float) -> Mapping[str, Any]:
        return {
            "cores": {"t": list(reported), "values": [list(reported)]},
            "none": {"t": [], "values": []},
        }

    topic = live_topic({"x": Topic(nothing, "", (), points=points)}, "x", {})

    first = topic.render()["points"]
    again = topic.render()
    reported.append(began_s + 3)
    more = topic.render()["points"]

    assert first.count(str(began_s + 1).encode()) == 2
    assert b"none" not in first
    assert again == {}
    assert str(began_s + 2).encode() not in more
    assert str(began_s + 3).encode() in more


def test_a_slow_part_is_rendered_again_only_when_due() -> None:
    asked: list[float] = []
    clock_s = 100.0

    def context() -> Mapping[str, Any]:
        asked.append(clock_s)
        return {}

    slow = Topic(context, "simulation/drill_list.html", ("card",), every_s={"card": 5.0})
    topic = live_topic({"x": slow}, "x", {})
    topic.clock = lambda: clock_s

    assert "card" in topic.render()
    clock_s = 104.9
    assert topic.render() == {}
    clock_s = 105.0
    assert "card" in topic.render()
    assert asked == [100.0, 105.0]


def test_a_quick_part_does_not_wait_for_a_slow_one() -> None:
    slow = Topic(nothing, "simulation/drill_list.html", ("card", "history"), every_s={"card": 5.0})
    topic = live_topic({"x": slow}, "x", {})

    topic.clock = lambda: 1.0

    assert topic.render().keys() == {"card", "history"}
    assert topic.render().keys() == {"history"}


def test_no_part_of_a_page_is_named_as_an_event_of_the_stream() -> None:
    reserved = {"topic", "parts", "refused", "tick", "points", "heat"}

    assert not [kind for kind, each in PAGES.items() if reserved.intersection(each.partials)]
