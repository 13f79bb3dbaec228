"""Acknowledging an alert: one person, visible to all."""

from datetime import UTC, datetime

from django.test import Client

from fleet.models import Alert

ACT = {"HX-Request": "true", "HX-Target": "act"}


def address(alert: Alert) -> str:
    return f"/alerts/{alert.pk}/acknowledge/"


def test_the_acknowledging_person_is_named_with_their_comment(
    client: Client, alert: Alert, operator: object
) -> None:
    response = client.post(address(alert), {"comment": "draining"}, headers=ACT)

    assert "Unacknowledge" in response.text
    assert "alerts-changed" in response["HX-Trigger"]
    alert.refresh_from_db()
    assert (alert.acknowledged_by, alert.state) == ("olga", "acknowledged")
    assert alert.events.filter(kind="acknowledged", by="olga", text="draining").exists()


def test_without_javascript_it_leads_back_to_the_alert(
    client: Client, alert: Alert, operator: object
) -> None:
    response = client.post(address(alert), follow=True)

    assert response.redirect_chain == [(f"/alerts/{alert.pk}/", 302)]
    assert "Acknowledged by olga" in response.text


def test_another_page_only_learns_that_it_happened(
    client: Client, alert: Alert, operator: object
) -> None:
    response = client.post(address(alert), headers={"HX-Request": "true"})

    assert response.status_code == 204
    assert "alerts-changed" in response["HX-Trigger"]


def test_the_first_to_take_it_keeps_it(client: Client, alert: Alert, operator: object) -> None:
    Alert.objects.update(acknowledged_at=datetime.now(UTC), acknowledged_by="omar")
    response = client.post(address(alert), headers=ACT)

    assert response.status_code == 422
    assert "It is already acknowledged by omar" in response.text
    assert Alert.objects.get().acknowledged_by == "omar"


def test_a_resolved_alert_cannot_be_acknowledged(
    client: Client, alert: Alert, operator: object
) -> None:
    Alert.objects.update(resolved_at=datetime.now(UTC))
    response = client.post(address(alert), headers=ACT)

    assert response.status_code == 422
    assert "already resolved" in response.text


def test_a_comment_too_long_is_refused_and_nothing_is_acknowledged(
    client: Client, alert: Alert, operator: object
) -> None:
    response = client.post(address(alert), {"comment": "x" * 501}, headers=ACT)

    assert response.status_code == 422
    assert "comment" in response.text
    assert Alert.objects.get().acknowledged_at is None
