"""Unacknowledging an alert, with an entry in the timeline."""

from django.contrib.auth.models import User
from django.test import Client

from fleet import alerts
from fleet.models import Alert
from tests.helpers import just_now

ACT = {"HX-Request": "true", "HX-Target": "act"}


def give_back(client: Client, alert: Alert) -> tuple[int, str]:
    response = client.post(f"/alerts/{alert.pk}/unacknowledge/", headers=ACT)
    alert.refresh_from_db()
    return response.status_code, response.text


def test_the_acknowledging_person_may_undo_it(
    client: Client, alert: Alert, operator: User
) -> None:
    alerts.acknowledge(alert, by="olga", comment="", now=just_now())

    status, reported = give_back(client, alert)
    assert status == 200
    # It can be acknowledged again.
    assert f'action="/alerts/{alert.pk}/acknowledge/"' in reported
    assert (alert.state, alert.acknowledged_by) == ("firing", "")
    assert alert.events.filter(kind="unacknowledged", by="olga", text="").exists()


def test_another_user_may_too_and_that_is_reported(
    client: Client, alert: Alert, operator: User
) -> None:
    alerts.acknowledge(alert, by="omar", comment="", now=just_now())
    give_back(client, alert)

    assert alert.events.get(kind="unacknowledged").text == "acknowledged by omar before"


def test_there_must_be_something_to_give_back(
    client: Client, alert: Alert, operator: User
) -> None:
    status, reported = give_back(client, alert)

    assert status == 422
    assert "is not acknowledged" in reported
    Alert.objects.update(resolved_at=just_now())
    assert "already resolved" in give_back(client, alert)[1]
