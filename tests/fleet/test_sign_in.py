"""The sign-in page: the way on, the wrong password, and those who guess."""

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from fleet.access.throttling import PER_NAME_AND_ADDRESS

URL = "/sign-in/"
CREDENTIALS = {"username": "ada", "password": "correct horse"}


@pytest.fixture(autouse=True)
def ada(db: None, redis_url: str) -> User:
    return User.objects.create_user(**CREDENTIALS)


def test_it_shows_the_whole_page(client: Client) -> None:
    response = client.get(URL)

    assert response.status_code == 200
    assert "<h1" in response.text
    assert 'autocomplete="current-password"' in response.text
    assert "no-store" in response["Cache-Control"]


def test_it_goes_on_to_where_one_wanted_to_be(client: Client) -> None:
    page = client.get("/alerts/?state=firing")
    assert page["Location"] == "/sign-in/?next=/alerts/%3Fstate%3Dfiring"

    form = client.get(page["Location"])
    assert 'name="next" value="/alerts/?state=firing"' in form.text
    response = client.post(URL, CREDENTIALS | {"next": "/alerts/?state=firing"})

    assert (response.status_code, response["Location"]) == (302, "/alerts/?state=firing")
    assert client.get("/alerts/").status_code == 200


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "\\\\evil"]
)
def test_it_never_sends_anybody_elsewhere(client: Client, elsewhere: str) -> None:
    response = client.post(URL, CREDENTIALS | {"next": elsewhere})

    assert response["Location"] == "/"


def test_a_wrong_password_is_announced_and_tells_nothing(client: Client) -> None:
    known = client.post(URL, CREDENTIALS | {"password": "wrong"})
    unknown = client.post(URL, {"username": "nobody", "password": "wrong"})

    assert known.status_code == unknown.status_code == 422
    for page in (known.text, unknown.text):
        assert 'role="alert"' in page
        assert 'aria-invalid="true"' in page
        assert "do not belong together" in page
    assert 'value="ada"' in known.text
    assert "wrong" not in known.text


def test_whoever_is_in_is_sent_on(client: Client, ada: User) -> None:
    client.force_login(ada)

    assert client.get(URL + "?next=/nodes/")["Location"] == "/nodes/"


def test_a_form_from_elsewhere_is_refused(ada: User) -> None:
    client = Client(enforce_csrf_checks=True)

    response = client.post(URL, CREDENTIALS)

    assert response.status_code == 403
    assert "Reload the page" in response.text


def test_who_guesses_must_wait(client: Client) -> None:
    wrong = CREDENTIALS | {"password": "wrong"}
    for _ in range(PER_NAME_AND_ADDRESS):
        assert client.post(URL, wrong).status_code == 422

    response = client.post(URL, CREDENTIALS)

    assert response.status_code == 429
    assert 0 < int(response["Retry-After"]) <= 300
    assert "Try again in 5 minutes" in response.text
    assert client.post(URL, CREDENTIALS, REMOTE_ADDR="127.0.0.2").status_code == 302


def test_an_attempt_that_works_is_forgotten(client: Client) -> None:
    wrong = CREDENTIALS | {"password": "wrong"}
    for _ in range(2):
        for _ in range(PER_NAME_AND_ADDRESS - 1):
            client.post(URL, wrong)
        assert client.post(URL, CREDENTIALS).status_code == 302
        client.logout()


def test_one_can_sign_in_while_redis_is_away(client: Client, settings: Settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"

    assert client.post(URL, CREDENTIALS | {"password": "wrong"}).status_code == 422
    assert client.post(URL, CREDENTIALS).status_code == 302


@pytest.mark.parametrize("method", ["put", "delete", "patch"])
def test_other_methods_are_not_understood(client: Client, method: str) -> None:
    assert getattr(client, method)(URL).status_code == 405


def test_nonsense_is_no_error_of_ours(client: Client) -> None:
    for data in ({}, {"username": "\0", "password": "\0"}, {"username": "x" * 10_000}):
        assert client.post(URL, data).status_code == 422
