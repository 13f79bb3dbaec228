"""Marking an alert as false, with a reason, and removing the mark."""

from collections.abc import Callable

import pytest
from django.test import Client

from fleet.models import Alert
from tests.helpers import just_now

ACT = {"HX-Request": "true", "HX-Target": "act"}
NODE = {"reason": "wrong_node", "comment": "it was steady"}
MARK = "Marked false by olga: wrong node, it was steady"


def mark(client: Client, alert: Alert, **fields: str) -> tuple[int, str]:
    response = client.post(f"/alerts/{alert.pk}/mark-false/", fields, headers=ACT)
    alert.refresh_from_db()
    return response.status_code, response.text


@pytest.mark.parametrize("is_open", [True, False])
def test_it_shows_wherever_the_alert_does_and_keeps_its_state(
    client: Client, alert: Alert, operator: object, *, is_open: bool
) -> None:
    if not is_open:
        Alert.objects.update(resolved_at=just_now())
    before = Alert.objects.get().state

    status, text = mark(client, alert, **NODE)

    assert status == 200
    assert "Remove false mark" in text
    assert (alert.state, alert.acknowledged_at) == (before, None)
    assert alert.events.get(kind="marked_false", by="olga").text == "wrong node: it was steady"
    for path in (f"/alerts/{alert.pk}/", "/alerts/", "/hand-over/"):
        assert MARK in client.get(path).text, path
    for path in (f"/alerts/{alert.pk}/post-mortem.md", "/hand-over/markdown"):
        assert "wrong node, it was steady" in client.get(path).text, path


def test_an_earlier_false_alert_is_named_at_the_next(
    client: Client, fired: Callable[..., Alert], operator: object
) -> None:
    first = fired(resolved_at=just_now())
    mark(client, first, **NODE)
    again = fired()

    similar = client.get(f"/alerts/{again.pk}/").text.partition('id="similar"')[2]
    assert MARK in similar


def test_the_first_mark_stays(client: Client, alert: Alert, operator: object) -> None:
    mark(client, alert, reason="noise")
    status, text = mark(client, alert, reason="other", comment="mine")

    assert status == 422
    assert "It is already marked false by olga" in text
    assert alert.false_reason == "noise"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "reason"),
        ({"reason": "boring"}, "&#x27;boring&#x27; is none. Choose one of noise, planned_work,"),
        ({"reason": "other", "comment": " "}, "comment: is empty"),
        ({"reason": "noise", "comment": "x" * 401}, "comment: use at most 400 characters"),
        ({"reason": "noise", "comment": "a\nb"}, "comment: use no control characters"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_marked(
    client: Client, alert: Alert, operator: object, fields: dict[str, str], named: str
) -> None:
    n_events = alert.events.count()
    status, text = mark(client, alert, **fields)

    assert status == 422
    assert named in text
    assert alert.marked_false_at is None
    assert alert.events.count() == n_events


def test_the_longest_comment_is_kept_whole(client: Client, alert: Alert, operator: object) -> None:
    mark(client, alert, reason="already_known", comment="x" * 400)

    assert alert.false_comment == "x" * 400
    assert alert.events.get(kind="marked_false").text == f"already known: {alert.false_comment}"


def test_the_list_is_filtered_by_marks(
    client: Client, fired: Callable[..., Alert], operator: object
) -> None:
    marked, other = fired(), fired(rule="hang")
    mark(client, marked, **NODE)

    for asked, listed in (("yes", marked), ("no", other)):
        text = client.get(f"/alerts/?marked_false={asked}").text
        assert [each.pk for each in (marked, other) if f'id="alert-{each.pk}"' in text] == [
            listed.pk
        ]
