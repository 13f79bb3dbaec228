"""The page of people: admins create accounts and see each password once."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.access.roles import role_of
from tests.fleet.test_anonymous_access import member

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(client: Client) -> Client:
    """Give an admin's browser."""
    client.force_login(member("admin"))
    return client


def test_it_lists_accounts_with_their_roles_disabled_ones_last(admin: Client) -> None:
    member("viewer")
    User.objects.create_user("absent", is_active=False)

    people = admin.get("/people/").context["people"]

    assert [(user.username, role) for user, role in people] == [
        ("admin", "admin"),
        ("viewer", "viewer"),
        ("absent", "viewer"),
    ]


def test_an_account_is_created_and_its_password_shown_once(admin: Client, client: Client) -> None:
    page = admin.post("/people/", {"name": "ada", "role": "lead"})
    password = page.context["password"]

    assert page.status_code == 200
    assert f'value="{password}"' in page.text
    assert "no-store" in page["Cache-Control"]
    assert password not in admin.get("/people/").text
    assert role_of(User.objects.get(username="ada")) == "lead"
    assert Client().login(username="ada", password=password)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a b"),
        ("name", "ADMIN"),
        ("name", "\uff41dmin"),
        ("name", "x" * 151),
        ("role", "king"),
    ],
)
def test_what_is_wrong_is_named_and_no_account_is_created(
    admin: Client, field: str, value: str
) -> None:
    page = admin.post("/people/", {"name": "ada", "role": "lead"} | {field: value})

    assert page.status_code == 422
    assert list(page.context["form"].errors) == [field]
    assert User.objects.count() == 1
