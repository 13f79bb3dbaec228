"""Previews: the newest alert as each kind of receiver gets it, in a frame where nothing runs."""

import pytest
from django.test import Client

from fleet.models import Alert, Receiver


@pytest.mark.parametrize("kind", Receiver.Kind.values)
def test_each_kind_shows_the_newest_alert(client: Client, alert: Alert, kind: str) -> None:
    response = client.get(f"/notifications/preview/{kind}")

    assert response.status_code == 200
    assert "llama" in response.text
    policy = response["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy
    assert response["X-Frame-Options"] == "SAMEORIGIN"


@pytest.mark.parametrize("kind", ["email", "slack"])
def test_people_see_the_chart_and_what_to_do(client: Client, alert: Alert, kind: str) -> None:
    text = client.get(f"/notifications/preview/{kind}").text

    assert "Do now" in text
    if kind == "email":
        assert 'src="data:image/png;base64,' in text
    else:
        assert "Acknowledge" in text


@pytest.mark.parametrize("kind", Receiver.Kind.values)
def test_without_an_alert_it_is_a_test(client: Client, db: None, kind: str) -> None:
    assert "No alert has fired yet" in client.get(f"/notifications/preview/{kind}").text


def test_names_of_alerts_are_text(client: Client, alert: Alert) -> None:
    assert alert.run is not None
    alert.run.team = "<script>alert(1)</script>"
    alert.run.save()
    for kind in Receiver.Kind.values:
        assert "<script>" not in client.get(f"/notifications/preview/{kind}").text
