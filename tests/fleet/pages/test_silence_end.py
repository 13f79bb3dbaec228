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
        ({"span": "until", "until": "2020-01-01T00:00"}, "is not in the future"),
        ({"span": "until", "until": "soon"}, "Enter a date and time"),
        ({"span": "until", "until": ""}, "is empty. Give a date and time"),
        ({"span": "until", "until": "2999-01-01T00:00"}, "more than 30 days ahead"),
        ({"span": "9h"}, "9h is not one of 1h, 4h"),
        ({}, "Choose a duration"),
    ],
)
@pytest.mark.parametrize("headers", [HTMX, {}], ids=["htmx", "without JavaScript"])
def test_an_invalid_end_is_refused_at_its_field(
    client: Client,
    silence: Silence,
    operator: User,
    posted: dict[str, str],
    shown: str,
    headers: dict[str, str],
) -> None:
    before = silence.ends_at
    response = client.post(f"/silences/{silence.pk}/end/", posted, headers=headers)
    silence.refresh_from_db()

    assert response.status_code == 422
    assert shown in response.text
    if until := posted.get("until"):
        assert f'value="{until}"' in response.text
        assert 'aria-invalid="true" aria-describedby="id_until_error"' in response.text
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

    elsewhere = client.post(address, {"span": "4h", "back": "https://evil.example/"})
    assert elsewhere["Location"] == f"/silences/{silence.pk}/"
    assert client.post(address, {"span": "now", "back": "/silences/"})["Location"] == "/silences/"
    again = client.post(address, {"span": "now", "back": "/silences/"})
    assert (again.status_code, "already expired" in again.text) == (422, True)
