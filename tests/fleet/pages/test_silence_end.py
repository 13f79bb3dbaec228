"""Ending a silence now or at a chosen time."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet import alerts
from fleet.models import Alert, Silence
from tests.helpers import just_now

HTMX = {"HX-Request": "true", "HX-Target": "silence"}
HOUR = timedelta(hours=1)


@pytest.fixture
def silence(db: None) -> Silence:
    now = just_now()
    return alerts.silence("", ends_at=now + HOUR, reason="known", by="olga", now=now)


def end(client: Client, silence: Silence, **posted: str) -> tuple[int, str]:
    response = client.post(f"/silences/{silence.pk}/end/", posted, headers=HTMX)
    silence.refresh_from_db()
    return response.status_code, response.text


def test_it_ends_now_and_the_alert_is_heard_of_again(
    client: Client, fired: Callable[..., Alert], silence: Silence, operator: User
) -> None:
    alert = fired()
    alerts.expire(silence, by="missing", now=just_now())
    now = just_now()
    again = alerts.silence("", ends_at=now + HOUR, reason="known", by="olga", now=now)
    assert Alert.objects.get().silence == again

    assert end(client, again, span="now")[0] == 200

    assert again.expired_by == "olga"
    alert.refresh_from_db()
    assert alert.silence is None
    assert alert.events.last().kind == "unsilenced"  # type: ignore[union-attr]


def test_it_moves(client: Client, silence: Silence, operator: User) -> None:
    status, reported = end(client, silence, span="4h")

    assert status == 200
    assert "end moved: from" in reported
    assert silence.ends_at > just_now() + 3 * HOUR


@pytest.mark.parametrize(
    ("posted", "shown"),
    [
        ({"span": "until", "until": "2020-01-01T00:00"}, "end: is not in the future"),
        ({"span": "until", "until": "soon"}, "end: give a day"),
        ({"span": "until", "until": "2999-01-01T00:00"}, "more than 30 days ahead"),
        ({"span": "9h"}, "end: &#x27;9h&#x27; is not one of"),
        ({}, "is not one of"),
    ],
)
def test_an_end_that_cannot_be_is_refused(
    client: Client, silence: Silence, operator: User, posted: dict[str, str], shown: str
) -> None:
    before = silence.ends_at
    status, reported = end(client, silence, **posted)

    assert status == 422
    assert shown in reported
    assert silence.ends_at == before


def test_what_is_over_stays_over(client: Client, silence: Silence, operator: User) -> None:
    alerts.expire(silence, by="olga", now=just_now())

    status, reported = end(client, silence, span="4h")
    assert status == 422
    assert "already expired" in reported


def test_without_javascript_it_leads_back(
    client: Client, silence: Silence, operator: User
) -> None:
    address = f"/silences/{silence.pk}/end/"

    assert client.post(address, {"span": "now", "back": "/silences/"})["Location"] == "/silences/"
    elsewhere = client.post(address, {"span": "now", "back": "https://evil.example/"})
    assert elsewhere["Location"] == f"/silences/{silence.pk}/"


def test_a_viewer_may_not(client: Client, silence: Silence, viewer: User) -> None:
    assert end(client, silence, span="now")[0] == 403
    assert silence.expired_by == ""


def test_an_unknown_name_is_not_found(client: Client, operator: User) -> None:
    assert client.post("/silences/999/end/").status_code == 404


def test_it_can_only_be_posted(client: Client, silence: Silence, operator: User) -> None:
    assert client.get(f"/silences/{silence.pk}/end/").status_code == 405
