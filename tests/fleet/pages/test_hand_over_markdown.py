"""Shift handover as Markdown."""

from collections.abc import Callable
from datetime import timedelta

from django.contrib.auth.models import User
from django.test import Client

from fleet import alerts
from fleet.models import Alert
from tests.helpers import just_now

HOUR = timedelta(hours=1)


def test_it_reports_the_same_with_links(
    client: Client, fired: Callable[..., Alert], operator: User
) -> None:
    now = just_now()
    alert = fired(acknowledged_at=now - 5 * HOUR, acknowledged_by="olga", ago=6 * HOUR)
    over = fired(subject="run:over", resolved_at=now)
    alerts.silence("run=llama", ends_at=now + HOUR, reason="*known*", by="olga", now=now)
    alerts.comment(alert, by="olga", text="see <b>rack_4</b>", now=just_now())
    alerts.hand_over("# as it is", by="olga", to="", since=now, now=just_now())

    response = client.get("/hand-over/markdown?hours=8")

    assert response["Content-Type"] == "text/markdown; charset=utf-8"
    assert f"[alert {alert.pk}](http://testserver/alerts/{alert.pk}/)" in response.text
    assert f"[alert {over.pk}](http://testserver/alerts/{over.pk}/)" in response.text
    assert "acknowledged by olga, since" in response.text
    assert r"`run=llama` until" in response.text
    assert r"\*known\*" in response.text
    assert r"commented: see \<b\>rack\_4\</b\>" in response.text
    assert "## olga to the next shift" in response.text
    assert "# as it is" in response.text
    marks = "Pages in 90 days: 2, none false, 2 not marked."
    for text in (response.text, client.get("/hand-over/").text):
        assert marks in text.replace("\u202f", " ")


def test_an_empty_shift_is_shown_as_empty(client: Client, viewer: User) -> None:
    text = client.get("/hand-over/markdown").text

    assert "## Open: 0\n\nNothing.\n" in text
    assert "Pages in 90 days: none. Warnings in 90 days: none." in text
