"""Comments on an alert, open or resolved."""

from datetime import UTC, datetime

from django.test import Client

from fleet.models import Alert

ACT = {"HX-Request": "true", "HX-Target": "act"}


def address(alert: Alert) -> str:
    return f"/alerts/{alert.pk}/comment/"


def test_a_remark_joins_the_timeline(client: Client, alert: Alert, operator: object) -> None:
    response = client.post(address(alert), {"comment": " swapped the cable "}, headers=ACT)

    assert "alerts-changed" in response["HX-Trigger"]
    event = alert.events.get(kind="commented")
    assert (event.by, event.text) == ("olga", "swapped the cable")


def test_it_does_not_take_the_alert(client: Client, alert: Alert, operator: object) -> None:
    client.post(address(alert), {"comment": "looking"}, headers=ACT)

    assert Alert.objects.get().acknowledged_at is None


def test_what_is_over_can_still_be_explained(
    client: Client, alert: Alert, operator: object
) -> None:
    Alert.objects.update(resolved_at=datetime.now(UTC))
    client.post(address(alert), {"comment": "it was the cable"}, headers=ACT)

    assert alert.events.filter(kind="commented").exists()


def test_an_empty_remark_is_refused(client: Client, alert: Alert, operator: object) -> None:
    response = client.post(address(alert), {"comment": "  "}, headers=ACT)

    assert response.status_code == 422
    assert "comment: is empty" in response.text


def test_without_javascript_an_error_is_reported_on_the_page(
    client: Client, alert: Alert, operator: object
) -> None:
    response = client.post(address(alert), {"comment": ""}, follow=True)

    assert "comment: is empty" in response.text


def test_one_too_long_is_refused(client: Client, alert: Alert, operator: object) -> None:
    response = client.post(address(alert), {"comment": "x" * 501}, headers=ACT)

    assert response.status_code == 422
    assert not alert.events.filter(kind="commented").exists()
