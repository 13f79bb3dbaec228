"""Ending a drill early."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from django.contrib.auth.models import User
from django.test import Client

from fleet.models import InjectedFault
from telemetry.store.hot import HotStore

Drilled = Callable[..., InjectedFault]


def test_the_fault_ends_at_once(
    client: Client, hot: HotStore, drilled: Drilled, operator: User
) -> None:
    fault = drilled(ago=timedelta(seconds=20))

    response = client.post(f"/drills/{fault.pk}/end/")

    assert response.status_code == 302
    fault.refresh_from_db()
    assert fault.ends_at < datetime.now(UTC) + timedelta(seconds=4)
    assert b"slow_core" in hot.plans()["llama"]


def test_htmx_receives_the_answer_again(client: Client, drilled: Drilled, operator: User) -> None:
    fault = drilled(ago=timedelta(seconds=20))

    response = client.post(
        f"/drills/{fault.pk}/end/", headers={"HX-Request": "true", "HX-Target": "answer"}
    )

    assert response.status_code == 200
    assert 'id="answer"' in response.text
    assert "drills-changed" in response["HX-Trigger"]


def test_what_is_over_cannot_be_ended(client: Client, drilled: Drilled, operator: User) -> None:
    response = client.post(f"/drills/{drilled().pk}/end/")

    assert response.status_code == 422
    assert "is not under way" in response.text
