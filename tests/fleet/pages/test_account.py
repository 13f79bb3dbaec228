"""The account page: a user changes their own password."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.access.throttling import PER_DEVICE
from tests.fleet.pages.conftest import Page

URL = "/account/"
OLD, NEW = "correct horse", "seventeen green bicycles"
CHANGE = {"old_password": OLD, "new_password1": NEW, "new_password2": NEW}


@pytest.fixture(autouse=True)
def ada(client: Client, db: None, redis_url: str) -> User:
    user = User.objects.create_user("ada", password=OLD)
    client.force_login(user)
    return user


def test_the_header_links_it_and_it_names_the_rules(page: Page) -> None:
    assert f'href="{URL}"' in page("/search")

    text = page(URL)
    assert "ada, role viewer" in text
    assert "At least 12 characters" in text
    assert "<h1" in text


def test_a_new_password_ends_the_other_sessions_but_not_this_one(
    client: Client, ada: User
) -> None:
    elsewhere = Client()
    elsewhere.force_login(ada)

    response = client.post(URL, CHANGE)

    assert (response.status_code, response["Location"]) == (302, URL)
    assert "Password changed." in client.get(URL).text
    assert elsewhere.get(URL)["Location"].startswith("/sign-in/")
    ada.refresh_from_db()
    assert ada.check_password(NEW)


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        ({"old_password": "incorrect"}, "Your old password was entered incorrectly"),
        ({"new_password2": "other"}, "match."),
        ({"new_password1": "short", "new_password2": "short"}, "too short"),
    ],
)
def test_a_wrong_or_weak_password_is_refused(
    client: Client, ada: User, wrong: dict[str, str], shown: str
) -> None:
    response = client.post(URL, CHANGE | wrong)

    assert response.status_code == 422
    assert shown in response.text
    assert OLD not in response.text
    ada.refresh_from_db()
    assert ada.check_password(OLD)


def test_guessing_the_current_password_is_limited(client: Client, ada: User) -> None:
    for _ in range(PER_DEVICE):
        assert client.post(URL, CHANGE | {"old_password": "guess"}).status_code == 422

    response = client.post(URL, CHANGE)

    assert response.status_code == 429
    assert "Too many attempts" in response.text
    assert int(response["Retry-After"]) > 0
    ada.refresh_from_db()
    assert ada.check_password(OLD)


def test_it_is_only_for_users_and_not_cached(client: Client) -> None:
    assert "no-store" in client.get(URL)["Cache-Control"]
    assert client.delete(URL).status_code == 405
    client.logout()

    assert client.get(URL)["Location"] == f"/sign-in/?next={URL}"
