"""Every API operation against every scope, role and anonymous caller."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from fleet.api.application import document
from fleet.models import Alert, Node, Run, Token
from fleet.models.token import GRANTS
from tests.fleet.api.conftest import Ask
from tests.fleet.test_anonymous_access import member
from tests.helpers import NOON

pytestmark = pytest.mark.django_db


def operations() -> Iterator[tuple[str, str, str]]:
    """Return method, address and scope of every operation, of things that are not there."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            if operation["tags"] != ["ingest"]:
                scopes = operation["security"][0]["bearer"]
                yield method.upper(), re.sub(r"\{\w+\}", "987654", path), "".join(scopes)


OPERATIONS = sorted(set(operations()))


@pytest.mark.parametrize("own", Token.Scope.values)
def test_an_operation_opens_to_its_scope_and_to_those_that_hold_it(
    client: Client, redis_url: str, own: str
) -> None:
    headers = {"Authorization": f"Bearer {Token.issue(own, own, now=NOON)[1]}"}
    for method, address, scope in OPERATIONS:
        is_let_in = not scope or scope in GRANTS.get(own, {own})

        response = client.generic(method, address, "{}", "application/json", headers=headers)

        assert (response.status_code != 403) is is_let_in, (method, address)
        if not is_let_in:
            assert response["Content-Type"] == "application/problem+json"
            assert f"`{scope}`" in response.json()["detail"]


@pytest.mark.parametrize("said", [None, "Bearer trnw_nobody", "Basic eDp5"])
def test_anonymous_callers_are_refused_everywhere(
    client: Client, redis_url: str, said: str | None
) -> None:
    headers = {"Authorization": said} if said else {}
    for method, address, _ in OPERATIONS:
        response = client.generic(method, address, "{}", "application/json", headers=headers)

        assert response.status_code == 401, (method, address)
        assert response["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("over", [{"expires_at": NOON}, {"revoked_at": NOON}])
def test_a_token_that_is_over_opens_nothing(
    client: Client, redis_url: str, over: dict[str, Any]
) -> None:
    token, secret = Token.issue("x", "admin", now=NOON)
    headers = {"Authorization": f"Bearer {secret}"}
    assert client.get("/api/v1/me", headers=headers).status_code == 200
    Token.objects.filter(pk=token.pk).update(**over)

    assert client.get("/api/v1/me", headers=headers).status_code == 401


def test_use_is_noted_once_a_minute(ask: Ask) -> None:
    ask("me")
    first = Token.objects.get().last_used_at
    ask("me")

    assert first is not None
    assert Token.objects.get().last_used_at == first


def test_people_come_by_their_session(client: Client, redis_url: str, run: Run) -> None:
    client.force_login(member("viewer"))

    assert client.get("/api/v1/runs").json()["items"][0]["name"] == "llama"
    assert client.get("/api/v1/me").json()["role"] == "viewer"
    assert client.get("/api/v1/tokens").status_code == 403


def signed_in(role: str) -> Client:
    """Give a browser that must bring its CSRF token, as real ones must."""
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(member(role))
    return browser


def test_people_change_nothing_without_their_csrf_token(redis_url: str, fleet: Alert) -> None:
    browser, act = signed_in("operator"), f"/api/v1/alerts/{fleet.pk}/acknowledge"
    browser.cookies["trnwatch_csrf"] = "x" * 32

    refused = browser.post(act, "{}", "application/json")
    done = browser.post(act, "{}", "application/json", headers={"X-CSRFToken": "x" * 32})

    assert (refused.status_code, refused.json()["field"]) == (403, "X-CSRFToken")
    assert done.json()["acknowledged_by"] == "operator"


def test_people_need_the_role(redis_url: str, fleet: Alert) -> None:
    browser = signed_in("viewer")
    browser.cookies["trnwatch_csrf"] = "x" * 32

    response = browser.post(
        f"/api/v1/alerts/{fleet.pk}/acknowledge",
        "{}",
        "application/json",
        headers={"X-CSRFToken": "x" * 32},
    )

    assert response.status_code == 403
    assert "role operator" in response.json()["detail"]


def test_the_demo_is_read_on_its_own_machine_and_not_changed(
    client: Client, redis_url: str, settings: Settings, steady: Node
) -> None:
    settings.ANONYMOUS_READING = True

    assert client.get("/api/v1/nodes").status_code == 200
    assert client.get("/api/v1/nodes", REMOTE_ADDR="10.0.0.7").status_code == 401
    assert client.get("/api/v1/tokens").status_code == 401
    assert client.post("/api/v1/annotations", "{}", "application/json").status_code == 401


def test_a_bad_token_is_refused_even_where_no_one_needs_one(
    client: Client, redis_url: str, settings: Settings
) -> None:
    settings.ANONYMOUS_READING = True

    assert client.get("/api/v1/me", headers={"Authorization": "Bearer x"}).status_code == 401


def test_no_person_can_have_a_tokens_name(ask: Ask) -> None:
    name = ask("me", scope="act").json()["name"]

    assert name == "token act"
    with pytest.raises(Exception, match="valid username"):
        User(username=name, password="x").full_clean()


def test_a_client_that_asks_too_often_learns_when_to_ask_again(
    ask: Ask, settings: Settings
) -> None:
    settings.API_REQUESTS_PER_MINUTE = 3

    answers = [ask("me") for _ in range(9)]

    assert answers[0].status_code == 200
    assert answers[-1].status_code == 429
    assert answers[-1]["Retry-After"] == "60"


def test_without_redis_what_the_database_knows_is_reported(client: Client, db: None) -> None:
    secret = Token.issue("x", "read", now=NOON)[1]
    headers = {"Authorization": f"Bearer {secret}"}

    assert client.get("/api/v1/alerts", headers=headers).status_code == 200
    away = client.get("/api/v1/nodes", headers=headers)
    assert (away.status_code, away["Retry-After"]) == (503, "5")
    assert away["Content-Type"] == "application/problem+json"


FOR_LEADS = ("prices", "prices/1", "budgets", "budgets/1")


@pytest.mark.parametrize("path", FOR_LEADS)
def test_of_people_only_leads_read_what_pages_show_to_leads(redis_url: str, path: str) -> None:
    reported = {role: signed_in(role).get(f"/api/v1/{path}") for role in ("viewer", "operator")}
    lead = signed_in("lead").get(f"/api/v1/{path}")

    assert {response.status_code for response in reported.values()} == {403}
    assert "role lead" in reported["viewer"].json()["detail"]
    assert lead.status_code in {200, 404}


@pytest.mark.parametrize("path", FOR_LEADS)
def test_readers_of_the_demo_are_no_leads(
    client: Client, redis_url: str, settings: Settings, path: str
) -> None:
    settings.ANONYMOUS_READING = True

    assert client.get(f"/api/v1/{path}").status_code == 401
