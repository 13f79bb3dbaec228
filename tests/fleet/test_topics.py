"""Topics of the address, and how they become events."""

import math
import time
from collections.abc import Mapping
from typing import Any

import pytest

from fleet.topics import Topic, UnknownTopicError, as_json, event, live_topic


def nothing(*args: str, **filters: str) -> Mapping[str, Any]:
    """Return a context without anything in it."""
    return {}


TOPICS = {
    "overview": Topic(nothing, "fleet/_share.svg", ()),
    "node": Topic(nothing, "fleet/_share.svg", (), named=True),
    "nodes": Topic(nothing, "fleet/_share.svg", (), filters=("state",)),
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
    with pytest.raises(UnknownTopicError, match="colour: is no filter of the topic nodes"):
        live_topic(TOPICS, "nodes", {"colour": "red"})


def test_an_event_keeps_its_lines() -> None:
    assert event("strip", "<b>\n1\n</b>") == b"event: strip\ndata: <b>\ndata: 1\ndata: </b>\n\n"
    assert event("empty", "") == b"event: empty\ndata: \n\n"


def test_a_gap_is_null() -> None:
    assert as_json([1.5, math.nan]) == "[1.5,null]"


def test_points_are_told_once_each_chart_by_its_own_clock() -> None:
    began_s = time.time()
    told = [began_s + 1, began_s + 2]

    def points(*, since_s: float) -> Mapping[str, Any]:
        return {
            "cores": {"t": list(told), "values": [list(told)]},
            "none": {"t": [], "values": []},
        }

    topic = live_topic({"x": Topic(nothing, "", (), points=points)}, "x", {})

    first = topic.render()["points"]
    again = topic.render()
    told.append(began_s + 3)
    more = topic.render()["points"]

    assert first.count(str(began_s + 1).encode()) == 2
    assert b"none" not in first
    assert again == {}
    assert str(began_s + 2).encode() not in more
    assert str(began_s + 3).encode() in more
