"""Sign-out by POST only."""

from django.contrib.auth.models import User
from django.test import Client


def test_it_ends_the_session(client: Client, admin_user: User, redis_url: str) -> None:
    client.force_login(admin_user)
    assert client.get("/").status_code == 200

    assert client.post("/sign-out/")["Location"] == "/"

    assert client.get("/").status_code == 302


def test_a_link_cannot_sign_anybody_out(client: Client, admin_user: User, redis_url: str) -> None:
    client.force_login(admin_user)

    assert client.get("/sign-out/").status_code == 405
    assert client.get("/").status_code == 200


def test_a_form_from_elsewhere_cannot_either(admin_user: User, redis_url: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)

    assert client.post("/sign-out/").status_code == 403
    assert client.get("/").status_code == 200
