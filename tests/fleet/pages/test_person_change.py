"""Changes of an account: role, disabled or enabled, another password."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.access.people import set_active
from fleet.access.roles import role_of
from telemetry.errors import FieldError
from tests.fleet.test_anonymous_access import member
from tests.helpers import NOON

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(client: Client) -> Client:
    """Give an admin's browser."""
    client.force_login(member("admin"))
    return client


@pytest.fixture
def viewer() -> User:
    return member("viewer")


def change(browser: Client, user: User, act: str, **fields: str) -> str:
    """Ask for a change; return the page that follows."""
    return browser.post(f"/people/{user.pk}/", {"act": act} | fields, follow=True).text


def test_a_role_replaces_the_earlier_one(admin: Client, viewer: User) -> None:
    text = change(admin, viewer, "role", role="operator")

    assert "viewer is now operator." in text
    assert [group.name for group in viewer.groups.all()] == ["operator"]


def test_a_disabled_account_cannot_sign_in_and_its_session_ends(
    admin: Client, viewer: User
) -> None:
    browser = Client()
    browser.force_login(viewer)
    assert "viewer disabled." in change(admin, viewer, "disable")

    assert browser.get("/account/").status_code == 302
    assert not Client().login(username="viewer", password="x")

    assert "viewer enabled." in change(admin, viewer, "enable")
    assert Client().login(username="viewer", password="x")


def test_a_new_password_is_shown_once_and_ends_sessions(admin: Client, viewer: User) -> None:
    browser = Client()
    browser.force_login(viewer)
    page = admin.post(f"/people/{viewer.pk}/", {"act": "reset"})

    assert f'value="{page.context["password"]}"' in page.text
    assert "no-store" in page["Cache-Control"]
    assert browser.get("/account/").status_code == 302
    assert Client().login(username="viewer", password=page.context["password"])


def test_the_last_admin_stays_one(admin: Client) -> None:
    user = User.objects.get(username="admin")

    assert "is the last admin" in change(admin, user, "role", role="lead")
    assert "cannot disable your own account" in change(admin, user, "disable")
    assert role_of(User.objects.get(pk=user.pk)) == "admin"
    with pytest.raises(FieldError, match="last admin"):
        set_active(user, is_active=False, by="", now=NOON)

    other = User.objects.create_user("other")
    change(admin, other, "role", role="admin")
    assert "admin is now lead." in change(admin, user, "role", role="lead")


@pytest.mark.parametrize("fields", [{"act": "role", "role": "king"}, {"act": "promote"}, {}])
def test_an_unknown_change_changes_nothing(
    admin: Client, viewer: User, fields: dict[str, str]
) -> None:
    page = admin.post(f"/people/{viewer.pk}/", fields, follow=True)

    assert page.status_code == 200
    assert role_of(viewer) == "viewer"
    assert "is now" not in page.text
