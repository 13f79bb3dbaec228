"""Pages while Redis is unavailable, and after it returns."""

import pytest
from django.test import Client
from pytest_django import Settings

from fleet.models import Run


@pytest.fixture(autouse=True)
def _open_to_all(settings: Settings) -> None:
    settings.ANONYMOUS_READING = True


def test_a_page_states_it_and_tries_again(client: Client, run: Run) -> None:
    response = client.get("/")

    assert response.status_code == 503
    assert response["Retry-After"] == "5"
    assert "Redis is not responding" in response.text
    assert 'http-equiv="refresh"' in response.text


def test_a_chart_is_reported_in_its_own_language(client: Client, run: Run) -> None:
    response = client.get("/overview/shares", headers={"Accept": "application/json"})

    assert response.status_code == 503
    assert "Redis" in response.json()["error"]["message"]
