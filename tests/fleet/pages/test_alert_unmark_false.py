"""Removing the mark of a false alert, with an entry in the timeline."""

import pytest
from django.test import Client

from fleet import alerts
from fleet.models import Alert
from tests.helpers import just_now

ACT = {"HX-Request": "true", "HX-Target": "act"}


def unmark(client: Client, alert: Alert) -> tuple[int, str]:
    response = client.post(f"/alerts/{alert.pk}/unmark-false/", headers=ACT)
    alert.refresh_from_db()
    return response.status_code, response.text


@pytest.fixture
def marked(alert: Alert) -> Alert:
    Alert.objects.update(resolved_at=just_now())
    alerts.mark_false(alert, by="olga", reason="other", comment="a test", now=just_now())
    return alert


def test_the_mark_is_removed_also_of_a_resolved_alert(
    client: Client, marked: Alert, operator: object
) -> None:
    status, text = unmark(client, marked)

    assert status == 200
    assert "Mark false…" in text
    kept = (marked.marked_false_at, marked.marked_false_by, marked.false_reason)
    assert (*kept, marked.false_comment, marked.false_mark) == (None, "", "", "", "")
    event = marked.events.get(kind="unmarked_false")
    assert (event.by, event.text) == ("olga", "")


def test_another_user_may_too_and_that_is_reported(
    client: Client, marked: Alert, operator: object
) -> None:
    Alert.objects.update(marked_false_by="omar")
    unmark(client, marked)

    assert marked.events.get(kind="unmarked_false").text == "marked by omar before"


def test_there_must_be_a_mark(client: Client, alert: Alert, operator: object) -> None:
    status, text = unmark(client, alert)

    assert status == 422
    assert "is not marked as false" in text
