"""API scopes match the page permissions of each role."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from fleet.access.roles import MACHINE_SCOPES, ROLES, SCOPES, maker
from fleet.access.tokens import make_token
from fleet.api.application import document
from fleet.api.auth import ANY_SCOPE
from fleet.models import Run, Token
from fleet.models.token import GRANTS
from telemetry.errors import FieldError
from tests.helpers import NOON, just_now

pytestmark = pytest.mark.django_db
# Each operation of the API, and the page by which people do or see the same. What is published is
# no secret, and all users may read their own account: those have no page.
NO_PAGE = ""
PAGES = {
    "run_list": "GET /runs/",
    "run_one": "GET /runs/llama/",
    "run_steps": "GET /runs/llama/",
    "run_metric": "GET /runs/llama/charts/steps",
    "run_money": "GET /runs/llama/money/",
    "run_length": "POST /runs/llama/money/",
    "run_compiles": "GET /runs/llama/",
    "run_like": "GET /runs/llama/",
    "node_list": "GET /nodes/",
    "node_one": "GET /nodes/987654/",
    "node_metric": "GET /nodes/987654/charts/cores",
    "node_retire": "POST /nodes/987654/retire/",
    "node_unretire": "POST /nodes/987654/retire/",
    "run_retire": "POST /runs/987654/retire/",
    "run_unretire": "POST /runs/987654/retire/",
    "alert_list": "GET /alerts/",
    "alert_one": "GET /alerts/987654/",
    "alert_acknowledge": "POST /alerts/987654/acknowledge/",
    "alert_unacknowledge": "POST /alerts/987654/unacknowledge/",
    "alert_assign": "POST /alerts/987654/assign/",
    "alert_comment": "POST /alerts/987654/comment/",
    "alert_mark_false": "POST /alerts/987654/mark-false/",
    "alert_unmark_false": "POST /alerts/987654/unmark-false/",
    "alert_resolve": "POST /alerts/987654/resolve/",
    "alert_silence": "POST /alerts/987654/silence/",
    "silence_list": "GET /silences/",
    "silence_one": "GET /silences/987654/",
    "silence_new": "POST /silences/new/",
    "silence_end": "POST /silences/987654/end/",
    "silence_move": "POST /silences/987654/end/",
    "annotation_list": "GET /runs/llama/",
    "annotation_one": "GET /runs/llama/",
    "annotation_new": "POST /annotations/add/",
    "token_list": "GET /tokens/",
    "token_one": "GET /tokens/",
    "token_new": "POST /tokens/",
    "token_revoke": "POST /tokens/987654/revoke/",
    "trial_list": "GET /trials/",
    "trial_one": "GET /trials/987654/",
    "trial_new": "POST /trials/",
    "trial_end": "POST /trials/987654/end/",
    "trial_schedule": "GET /trials/987654/schedule/",
    "price_list": "GET /prices/",
    "price_one": "GET /prices/",
    "price_new": "POST /prices/",
    "price_published": NO_PAGE,
    "budget_list": "GET /budgets/",
    "budget_one": "GET /budgets/",
    "budget_new": "POST /budgets/",
    "budget_end": "POST /budgets/987654/end/",
    "compile_list": "GET /compiles/",
    "compile_one": "GET /compiles/",
    "compile_sums": "GET /compiles/",
    "support_list": "GET /support/",
    "support_one": "GET /support/987654/",
    "support_new": "POST /support/",
    "preflight_list": "GET /preflight/",
    "preflight_one": "GET /preflight/987654/",
    "preflight_new": "POST /preflight/",
    "me": NO_PAGE,
}
OPERATIONS = {
    operation["operationId"]: "".join(operation["security"][0]["bearer"])
    for methods in document()["paths"].values()
    for operation in methods.values()
    if operation["tags"] != ["ingest"]
}


def test_every_operation_has_its_page_in_the_table() -> None:
    assert set(OPERATIONS) - set(PAGES) == set(), "add a line to PAGES"
    assert set(PAGES) - set(OPERATIONS) == set(), "remove it from PAGES"
    without = {name for name, page in PAGES.items() if page == NO_PAGE}
    assert {OPERATIONS[name] for name in without} <= {ANY_SCOPE, "read"}


@pytest.mark.parametrize("role", ROLES)
def test_an_operation_asks_for_the_role_that_its_page_asks_for(
    client: Client, redis_url: str, run: Run, role: str
) -> None:
    client.force_login(member(role))
    answered: dict[str, int] = {}
    for name, asked_for in PAGES.items():
        if asked_for == NO_PAGE:
            continue
        if asked_for not in answered:
            method, path = asked_for.split()
            page = client.generic(method, path, "", "application/x-www-form-urlencoded")
            answered[asked_for] = page.status_code

        assert (answered[asked_for] != 403) is (OPERATIONS[name] in SCOPES[role]), name


def member(*roles: str) -> User:
    """Create a user with these roles, without a password: hashing one takes long."""
    user = User.objects.create(username="-".join(roles), password="!")
    user.groups.set(Group.objects.filter(name__in=roles))
    return user


@pytest.fixture
def ada(db: None) -> User:
    """Make an admin whose role may be changed."""
    user = member("admin")
    user.username = "ada"
    user.save()
    return user


def now_is(user: User, role: str) -> None:
    user.groups.set(Group.objects.filter(name=role))


def asked(client: Client, secret: str, path: str = "me") -> Any:
    return client.get(f"/api/v1/{path}", headers={"Authorization": f"Bearer {secret}"})


@pytest.mark.parametrize("role", ROLES)
def test_no_one_makes_a_token_that_may_do_more_than_they(role: str) -> None:
    user = member(role)
    allowed = SCOPES[role] | (MACHINE_SCOPES if role == "admin" else set())

    for scope in Token.Scope.values:
        if scope in allowed:
            token, _ = make_token(scope, scope, maker=maker(user), now=NOON)
            assert (token.owner, token.created_by) == (role, role)
        else:
            with pytest.raises(FieldError, match="you may not grant"):
                make_token(scope, scope, maker=maker(user), now=NOON)
    assert {*Token.objects.values_list("name", flat=True)} == allowed & {*Token.Scope.values}


@pytest.mark.parametrize("role", ROLES)
def test_a_token_loses_what_the_role_of_its_maker_loses(
    client: Client, redis_url: str, ada: User, role: str
) -> None:
    held = {scope: GRANTS.get(scope, frozenset({scope})) for scope in Token.Scope.values}
    secrets = {
        scope: make_token(scope, scope, maker=maker(ada), now=just_now())[1] for scope in held
    }

    for scope, secret in secrets.items():
        assert asked(client, secret).json()["scopes"] == sorted(held[scope])
    now_is(ada, role)
    for scope, secret in secrets.items():
        left = held[scope] & (SCOPES[role] | MACHINE_SCOPES)
        assert asked(client, secret).json()["scopes"] == sorted(left)


def test_a_token_that_lost_a_scope_states_why(client: Client, redis_url: str, ada: User) -> None:
    _, secret = make_token("x", "lead", maker=maker(ada), now=just_now())
    assert asked(client, secret, "prices").status_code == 200
    now_is(ada, "operator")

    refused = asked(client, secret, "prices")

    assert refused.status_code == 403
    assert "role of ada" in refused.json()["detail"]
    assert asked(client, secret, "runs").status_code == 200


@pytest.mark.parametrize("leave", ["deactivated", "deleted"])
def test_tokens_of_a_removed_user_only_open_machine_endpoints(
    client: Client, redis_url: str, ada: User, leave: str
) -> None:
    secrets = {
        scope: make_token(scope, scope, maker=maker(ada), now=just_now())[1]
        for scope in Token.Scope.values
    }
    if leave == "deleted":
        ada.delete()
    else:
        User.objects.filter(pk=ada.pk).update(is_active=False)

    reported = {scope: asked(client, secret).json()["scopes"] for scope, secret in secrets.items()}

    assert {scope for scope, scopes in reported.items() if scopes} == MACHINE_SCOPES
    assert asked(client, secrets["read"], "runs").status_code == 403
    scraped = {"Authorization": f"Bearer {secrets['scrape']}"}
    assert client.get("/metrics", headers=scraped).status_code == 200


def made_over_the_api(client: Client, secret: str, scope: str) -> Any:
    return client.post(
        "/api/v1/tokens",
        {"name": "child", "scope": scope},
        "application/json",
        headers={"Authorization": f"Bearer {secret}"},
    )


def test_a_token_made_with_a_token_is_bounded_by_the_same_person(
    client: Client, redis_url: str, ada: User
) -> None:
    _, secret = make_token("parent", "admin", maker=maker(ada), now=just_now())
    child = made_over_the_api(client, secret, "admin").json()
    assert (child["created_by"], child["allows"]) == ("token parent", sorted(GRANTS["admin"]))

    now_is(ada, "viewer")

    assert asked(client, child["secret"]).json()["scopes"] == ["read"]
    assert made_over_the_api(client, child["secret"], "read").status_code == 403


def test_a_token_made_on_the_command_line_has_no_one_above_it(
    client: Client, redis_url: str, ada: User
) -> None:
    _, secret = make_token("x", "admin", now=just_now())
    child = made_over_the_api(client, secret, "ingest")
    ada.delete()

    assert asked(client, secret).json()["scopes"] == sorted(GRANTS["admin"])
    assert Token.objects.get(pk=child.json()["id"]).owner == ""


def test_a_token_from_before_owners_were_kept_is_bounded_by_its_maker(
    client: Client, redis_url: str, ada: User
) -> None:
    secret = Token.issue("old", "admin", now=NOON, by="ada")[1]

    now_is(ada, "operator")

    assert asked(client, secret).json()["scopes"] == sorted(GRANTS["act"])


def test_the_page_of_tokens_states_what_a_token_lost(
    client: Client, redis_url: str, ada: User
) -> None:
    make_token("theirs", "lead", maker=maker(ada), now=just_now(), days=3)
    client.force_login(member("admin", "viewer"))
    assert "was lowered" not in client.get("/tokens/").text

    now_is(ada, "viewer")

    assert "allows only read: the role of ada was lowered" in client.get("/tokens/").text
    ada.delete()
    assert "allows nothing: ada no longer has a role" in client.get("/tokens/").text
