"""Error pages for people, and errors for machines."""

import logging

import pytest
from django.db import OperationalError
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


def fill_the_disk(request: HttpRequest) -> HttpResponse:
    raise OperationalError(request.GET["why"])


urlpatterns = [path("full/", fill_the_disk), path("fail/", fail), path("api/v1/fail", fail), *real]


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


def test_the_address_of_a_form_has_a_page_too(client: Client) -> None:
    response = client.get("/alerts/1/acknowledge/")

    assert response.status_code == 405
    assert response["Allow"] == "POST"
    assert "only receives forms" in response.text


def test_after_sign_in_one_is_back_at_the_form(client: Client) -> None:
    response = client.post("/alerts/1/acknowledge/", headers={"Referer": "/alerts/1/?from=5"})

    assert 'href="/sign-in/?next=/alerts/1/%3Ffrom%3D5"' in response.text


@pytest.mark.parametrize("why", ["database or disk is full", "No space left on device"])
def test_a_full_disk_is_named(client: Client, why: str) -> None:
    response = client.get("/full/", {"why": why})

    assert response.status_code == 503
    assert "Free some space" in response.text
