"""Error pages for people, and errors for machines."""

import logging

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from pytest_django import Settings

from fleet.urls import handler400, handler403, handler404, handler500
from fleet.urls import urlpatterns as real

__all__ = ["handler400", "handler403", "handler404", "handler500"]
SECRET = "what must stay hidden"


def fail(request: HttpRequest) -> HttpResponse:
    raise RuntimeError(SECRET)


urlpatterns = [path("fail/", fail), path("api/v1/fail", fail), *real]


@pytest.fixture(autouse=True)
def _readable(settings: Settings, db: None, redis_url: str) -> None:
    settings.ANONYMOUS_READING = True
    settings.ROOT_URLCONF = __name__
    logging.getLogger("django.request").setLevel(logging.CRITICAL)


def test_what_does_not_exist_has_a_page(client: Client) -> None:
    response = client.get("/nowhere/<script>")

    assert response.status_code == 404
    assert "There is no page at /nowhere/&lt;script&gt;" in response.text
    assert "<h1" in response.text


def test_the_api_answers_in_json(client: Client) -> None:
    response = client.get("/api/v1/nowhere")

    assert response.status_code == 404
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["status"] == 404


@pytest.mark.parametrize("address", ["/fail/", "/api/v1/fail"])
def test_a_failure_of_ours_reports_no_secrets(client: Client, address: str) -> None:
    client.raise_request_exception = False

    response = client.get(address)

    assert response.status_code == 500
    assert SECRET not in response.text
    assert "log" in response.text


def test_a_host_that_is_not_ours_is_a_bad_request(client: Client) -> None:
    logging.getLogger("django.security").setLevel(logging.CRITICAL)

    response = client.get("/", headers={"Host": "evil.example"})

    assert response.status_code == 400
    assert "not valid" in response.text


def test_a_page_that_is_not_yours_states_why(client: Client) -> None:
    response = client.post("/runs/llama/drill/")

    assert response.status_code == 403
    assert "Sign in to do this." in response.text
    assert "/sign-in/?next=" in response.text
