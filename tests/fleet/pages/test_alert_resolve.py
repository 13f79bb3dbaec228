"""Manual resolve, for what trnwatch no longer receives."""

from django.contrib.auth.models import User
from django.test import Client

from fleet.models import Alert
from tests.helpers import just_now

ACT = {"HX-Request": "true", "HX-Target": "act"}


def call_over(client: Client, alert: Alert, comment: str = "node replaced") -> tuple[int, str]:
    address = f"/alerts/{alert.pk}/resolve/"
    response = client.post(address, {"comment": comment}, headers=ACT)
    alert.refresh_from_db()
    return response.status_code, response.text


def test_what_is_no_longer_seen_is_over(client: Client, alert: Alert, operator: User) -> None:
    assert call_over(client, alert)[0] == 200

    assert alert.state == "resolved"
    assert alert.events.filter(kind="resolved", by="olga", text="node replaced").exists()


def test_what_is_seen_broken_is_not(client: Client, alert: Alert, operator: User) -> None:
    Alert.objects.update(last_seen_at=just_now())

    status, reported = call_over(client, alert)
    assert status == 422
    assert "was detected within the last minute" in reported
    assert alert.is_open


def test_it_is_over_once(client: Client, alert: Alert, operator: User) -> None:
    call_over(client, alert)

    assert call_over(client, alert)[0] == 422
    assert alert.events.filter(kind="resolved").count() == 1
