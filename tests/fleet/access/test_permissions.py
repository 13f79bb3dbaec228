"""Permissions of each role on every page that changes data."""

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import reverse
from pytest_django import Settings

from fleet.access.people import change_role, reset_password, set_active
from fleet.access.roles import (
    ROLES,
    ensure_demo_admin,
    has_role,
    may_still_read,
    requires,
    role_of,
)
from fleet.models import Alert, Node, Run
from tests.helpers import NOON

pytestmark = pytest.mark.django_db


def member(*roles: str) -> User:
    user = User.objects.create_user("-".join(roles) or "missing", password="x")
    user.groups.set([Group.objects.get(name=role) for role in roles])
    return user


# Roles


def test_the_roles_are_there_from_the_start() -> None:
    assert set(Group.objects.values_list("name", flat=True)) >= set(ROLES)


@pytest.mark.parametrize(
    ("held", "role"),
    [
        ((), "viewer"),
        (("viewer",), "viewer"),
        (("operator",), "operator"),
        (("viewer", "lead"), "lead"),
        (("admin", "viewer"), "admin"),
    ],
)
def test_the_highest_role_counts(held: tuple[str, ...], role: str) -> None:
    assert role_of(member(*held)) == role


def test_a_superuser_is_an_admin() -> None:
    assert role_of(User.objects.create_superuser("root", password="x")) == "admin"


def test_an_anonymous_visitor_may_at_most_read() -> None:
    assert role_of(AnonymousUser()) == "viewer"
    assert not has_role(AnonymousUser(), "operator")


@pytest.mark.parametrize("needed", ROLES)
@pytest.mark.parametrize("held", ROLES)
def test_each_role_may_what_the_ones_before_it_may(
    rf: RequestFactory, held: str, needed: str
) -> None:
    @requires(needed)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("done")

    request = rf.post("/")
    request.user = member(held)

    if ROLES.index(held) >= ROLES.index(needed):
        assert view(request).status_code == 200
    else:
        with pytest.raises(PermissionDenied, match=f"needs the role {needed}; yours is {held}"):
            view(request)


# What each role may do, on every page there is


CHANGES = ("alert-acknowledge", "alert-comment", "run-drill")


@pytest.fixture
def address(steady: Node, run: Run) -> Callable[[str], str]:
    alert = Alert.objects.create(
        rule="allreduce_share",
        severity=Alert.Severity.PAGE,
        subject="run:llama",
        run=run,
        score=1.2,
        onset_at=NOON,
        fired_at=NOON,
        last_seen_at=NOON,
    )

    def of(name: str) -> str:
        pk = {"pk": alert.pk}
        return reverse(name, kwargs={"name": "llama"} if name.startswith("run") else pk)

    return of


@pytest.mark.parametrize("name", CHANGES)
def test_who_has_not_signed_in_changes_nothing_even_in_the_demo(
    client: Client, address: Callable[[str], str], redis_url: str, settings: Settings, name: str
) -> None:
    settings.ANONYMOUS_READING = True

    response = client.post(address(name), {"comment": "mine"})

    assert response.status_code == 403
    assert "Sign in" in response.text
    assert Alert.objects.get().acknowledged_at is None


def test_htmx_is_sent_to_the_sign_in_page_and_back(
    client: Client, address: Callable[[str], str], settings: Settings
) -> None:
    settings.ANONYMOUS_READING = True
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/alerts/1/?window=1h"}

    response = client.post(address("alert-acknowledge"), {}, headers=headers)

    assert response.status_code == 403
    assert response["HX-Redirect"].startswith("/sign-in/?next=")
    assert "window%3D1h" in response["HX-Redirect"]


# Open streams


@pytest.fixture
def opened(client: Client, rf: RequestFactory) -> HttpRequest:
    """The request of a stream that an operator opened."""
    member("admin")
    client.force_login(member("operator"))
    request = rf.get("/live")
    request.session = client.session
    return request


@pytest.mark.parametrize(
    ("change", "still"),
    [
        (lambda client, user: None, {"viewer", "operator"}),
        (lambda client, user: change_role(user, "viewer", by="", now=NOON), {"viewer"}),
        (lambda client, user: set_active(user, is_active=False, by="", now=NOON), set()),
        (lambda client, user: reset_password(user, by="", now=NOON), set()),
        (lambda client, user: client.logout(), set()),
        (lambda client, user: user.delete(), set()),
    ],
    ids=["none", "role", "disabled", "password", "signed-out", "deleted"],
)
def test_a_stream_may_be_read_as_long_as_it_could_be_opened(
    client: Client,
    opened: HttpRequest,
    change: Callable[[Client, User], object],
    still: set[str],
) -> None:
    change(client, User.objects.get(username="operator"))

    assert {role for role in ROLES if may_still_read(opened, role)} == still


@pytest.mark.parametrize("allowed", [True, False])
def test_a_stream_without_sign_in_may_be_read_as_long_as_pages_may(
    client: Client, rf: RequestFactory, settings: Settings, *, allowed: bool
) -> None:
    settings.ANONYMOUS_READING = allowed
    request = rf.get("/live")
    request.session = client.session

    assert may_still_read(request, "viewer") == allowed
    assert not may_still_read(request, "operator")


# The demo's administrator


def test_the_demo_gets_an_administrator_once(client: Client, redis_url: str) -> None:
    password = ensure_demo_admin()

    assert password is not None
    assert len(password) >= 16
    assert ensure_demo_admin() is None
    assert client.login(username="admin", password=password)
    assert role_of(User.objects.get(username="admin")) == "admin"
    assert password not in User.objects.get().password


def test_pages_know_the_role_of_the_user(client: Client, redis_url: str) -> None:
    client.force_login(member("operator"))

    assert re.search(r'<body[^>]+data-role="operator"', client.get("/").text)
