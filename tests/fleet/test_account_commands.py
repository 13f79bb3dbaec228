"""Commands that create and revoke tokens, and create accounts."""

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.management import CommandError, call_command
from django.test import Client

from fleet.access.roles import ensure_demo_admin, role_of
from fleet.access.tokens import TokenError, check_token
from fleet.models import Token

pytestmark = pytest.mark.django_db


def run(name: str, *arguments: str) -> str:
    out = io.StringIO()
    call_command(name, *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue().strip()


def answer(name: str, *arguments: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run(name, *arguments, "--json"))
    return shown


def refused(name: str, *arguments: str) -> str:
    with pytest.raises(CommandError) as error:
        run(name, *arguments)
    return str(error.value)


def test_a_token_is_printed_once_and_kept_as_a_hash() -> None:
    secret = run("create_token", "nodes", "--scope", "ingest")

    assert check_token(secret, "ingest").name == "nodes"
    assert secret not in str(Token.objects.values())


def test_a_token_may_end() -> None:
    shown = answer("create_token", "nodes", "--scope", "scrape", "--days", "3")

    lasts = datetime.fromisoformat(shown["expires_at"]) - datetime.now(UTC)
    assert 2.9 < lasts.total_seconds() / 86_400 < 3.1
    assert shown["scope"] == "scrape"
    with pytest.raises(TokenError, match="expired"):
        check_token(shown["token"], "scrape", now=datetime.now(UTC) + 2 * lasts)


def test_a_revoked_token_opens_nothing() -> None:
    secret = run("create_token", "nodes", "--scope", "ingest")

    assert answer("revoke_token", "nodes") == {"name": "nodes", "revoked": 1}

    with pytest.raises(TokenError, match="revoked"):
        check_token(secret, "ingest")
    assert "Known: none" in refused("revoke_token", "nodes")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("x", "--scope", "everything"), "--scope"),
        (("x",), "--scope"),
        (("x", "--scope", "ingest", "--days", "0"), "--days"),
        (("x", "--scope", "ingest", "--days", "soon"), "--days"),
        ((" ", "--scope", "ingest"), "NAME"),
        (("x" * 81, "--scope", "ingest"), "NAME"),
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(arguments: tuple[str, ...], field: str) -> None:
    assert field in refused("create_token", *arguments)
    assert not Token.objects.exists()


def test_an_account_has_a_role_and_a_password_of_its_own(client: Client) -> None:
    password = run("create_user", "ada", "--role", "lead")

    assert client.login(username="ada", password=password)
    assert role_of(User.objects.get()) == "lead"


def test_an_account_may_at_first_only_read() -> None:
    assert answer("create_user", "bob")["role"] == "viewer"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(("ada",), "already"), (("a b",), "NAME"), (("c", "--role", "king"), "--role")],
)
def test_an_account_that_makes_no_sense_is_not_made(
    arguments: tuple[str, ...], shown: str
) -> None:
    run("create_user", "ada")

    assert shown in refused("create_user", *arguments)
    assert User.objects.count() == 1


WEAK = ["password", "12345678", "short-1-aB!", "098765432109", "password1234", "qwertyuiop12"]
WEAK += [
    "trnwatch2026",
    "aaaaaaaaaaaa",
    "abababababab",
    "admin1234567",
    "grace-hopper",
    "TrainiumTrn2!",
]


@pytest.mark.parametrize("password", WEAK)
def test_a_password_that_guessers_try_is_not_set(
    monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    user = User.objects.create_user("grace.hopper", password="x")
    before = user.password
    monkeypatch.setattr("getpass.getpass", lambda prompt="": password)

    assert "Aborting" in refused("changepassword", "grace.hopper")

    user.refresh_from_db()
    assert user.password == before


@pytest.mark.parametrize(
    "password", ["tin cup, blue barn", "k7Rw-2vQx_9LzA", "ein leerer Korridor"]
)
def test_a_long_password_is_set(
    client: Client, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    User.objects.create_user("grace", password="x")
    monkeypatch.setattr("getpass.getpass", lambda prompt="": password)

    run("changepassword", "grace")

    assert client.login(username="grace", password=password)


def test_a_superuser_from_the_environment_needs_a_good_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ("createsuperuser", "--no-input", "--username", "ada", "--email", "a@example.org")
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "password")
    assert "too short" in refused(*arguments)
    assert not User.objects.exists()

    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "tin cup, blue barn")
    run(*arguments)
    assert role_of(User.objects.get()) == "admin"


def test_passwords_that_commands_make_up_keep_the_rules() -> None:
    made = ensure_demo_admin()
    assert made is not None
    validate_password(made, User.objects.get())

    validate_password(run("create_user", "ada"), User.objects.get(username="ada"))
