"""The page of tokens: admins create them and see each secret once."""

from datetime import timedelta

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.access.tokens import check_token
from fleet.models import Token
from tests.fleet.test_anonymous_access import member
from tests.helpers import NOON, just_now

pytestmark = pytest.mark.django_db
NEW = {"name": "ci", "scope": "read", "days": "30"}


@pytest.fixture
def admin(client: Client) -> Client:
    """Give an admin's browser."""
    client.force_login(member("admin"))
    return client


def test_without_tokens_it_states_who_needs_one(admin: Client) -> None:
    assert "No tokens." in admin.get("/tokens/").text


def test_a_token_is_made_and_its_secret_shown_once(admin: Client) -> None:
    page = admin.post("/tokens/", NEW)
    token = Token.objects.get()
    secret = page.context["secret"]

    assert page.status_code == 200
    assert f'value="{secret}"' in page.text
    assert "no-store" in page["Cache-Control"]
    assert secret not in admin.get("/tokens/").text
    assert check_token(secret, "read") == token
    assert token.created_by == "admin"
    assert token.expires_at is not None
    assert timedelta(days=29) < token.expires_at - just_now() <= timedelta(days=30)


def test_a_token_may_last_for_good(admin: Client) -> None:
    admin.post("/tokens/", NEW | {"days": ""})

    assert Token.objects.get().expires_at is None


@pytest.mark.parametrize(
    ("field", "value"), [("name", " "), ("name", "x" * 81), ("scope", "all"), ("days", "7")]
)
def test_what_is_wrong_is_named_and_nothing_is_made(admin: Client, field: str, value: str) -> None:
    page = admin.post("/tokens/", NEW | {field: value})

    assert page.status_code == 422
    assert list(page.context["form"].errors) == [field]
    assert not Token.objects.exists()


def test_it_lists_what_is_in_force_and_what_is_over(admin: Client) -> None:
    for name in ("lasting", "ended", "gone"):
        Token.objects.create(name=name, digest=name, scope="read", created_at=NOON)
    Token.objects.filter(name="ended").update(expires_at=NOON)
    Token.objects.filter(name="gone").update(revoked_at=NOON, revoked_by="ada")

    context = admin.get("/tokens/").context

    assert [token.name for token, _, _ in context["tokens"]] == ["lasting"]
    assert [token.name for token in context["expired"]] == ["gone", "ended"]


def test_a_hundred_tokens_cost_no_more_questions(
    admin: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for i in range(100):
        Token.issue(f"t{i}", "read", now=NOON)

    with django_assert_max_num_queries(10):
        admin.get("/tokens/")


def test_only_admins_are_shown_the_way(client: Client) -> None:
    client.force_login(member("viewer"))
    assert 'href="/tokens/"' not in client.get("/silences/").text
    client.force_login(member("admin"))
    assert 'href="/tokens/"' in client.get("/silences/").text
