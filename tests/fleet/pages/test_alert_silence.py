"""Silencing an alert from its page."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.models import Alert, Silence

ACT = {"HX-Request": "true", "HX-Target": "act"}
GIVEN = {"matchers": "node=limping cause=slow_core", "reason": "draining", "span": "1h"}


def hush(client: Client, alert: Alert, **posted: str) -> tuple[int, str]:
    response = client.post(f"/alerts/{alert.pk}/silence/", GIVEN | posted, headers=ACT)
    alert.refresh_from_db()
    return response.status_code, response.text


def test_it_is_muted_and_stays_where_it_is(client: Client, alert: Alert, operator: User) -> None:
    assert hush(client, alert)[0] == 200

    assert alert.silence == Silence.objects.get()
    assert alert.is_open
    event = alert.events.get(kind="silenced")
    assert event.by == "olga"
    assert event.text.endswith("UTC: draining")


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        ({"matchers": ""}, "matchers: are empty"),
        ({"matchers": "x=1"}, "is not a field"),
        ({"reason": ""}, "reason: is empty"),
        ({"span": ""}, "span: Choose a duration"),
    ],
)
def test_what_cannot_be_is_refused(
    client: Client, alert: Alert, operator: User, wrong: dict[str, str], shown: str
) -> None:
    status, reported = hush(client, alert, **wrong)

    assert status == 422
    assert shown in reported
    assert not Silence.objects.exists()
