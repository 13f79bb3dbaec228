"""Conditional requests: 304 for unchanged data, 412 for changed data."""

import pytest
from django.test import Client

from fleet import alerts
from fleet.models import Alert, Silence
from tests.fleet.api.conftest import Ask
from tests.helpers import just_now

READ = ("me", "alerts", "silences", "annotations", "nodes/steady", "openapi.json")


@pytest.mark.parametrize("path", READ)
def test_what_has_not_changed_is_not_sent_again(ask: Ask, fleet: Alert, path: str) -> None:
    tag = ask(path)["ETag"]

    again = ask(path, If_None_Match=f'"other", W/{tag}')

    assert tag.startswith('"')
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", tag)
    assert "Content-Type" not in again


def test_what_has_changed_is(ask: Ask, fleet: Alert) -> None:
    path = f"alerts/{fleet.pk}"
    tag = ask(path)["ETag"]
    alerts.comment(fleet, by="ada", text="hm", now=just_now())

    changed = ask(path, If_None_Match=tag)

    assert changed.status_code == 200
    assert changed["ETag"] != tag


def test_it_is_no_one_s_but_the_callers(ask: Ask) -> None:
    response = ask("me")

    assert "private" in response["Cache-Control"]
    assert {"Authorization", "Cookie"} <= set(response["Vary"].split(", "))


def test_changes_are_never_kept(ask: Ask) -> None:
    made = ask("tokens", {"name": "x", "scope": "read"})

    assert (made.status_code, made["Cache-Control"]) == (201, "no-store")


def test_nothing_is_done_to_an_alert_that_has_changed(ask: Ask, fleet: Alert) -> None:
    version = ask(f"alerts/{fleet.pk}").json()["version"]
    alerts.comment(fleet, by="ada", text="hm", now=just_now())

    late = ask(f"alerts/{fleet.pk}/acknowledge", {}, If_Match=f'"{version}"')

    fleet.refresh_from_db()
    assert (late.status_code, late.json()["field"]) == (412, "If-Match")
    assert fleet.acknowledged_at is None
    now = f'"{late.json()["version"]}"'
    assert ask(f"alerts/{fleet.pk}/acknowledge", {}, If_Match=now).status_code == 200


@pytest.mark.parametrize("header", ["*", '"x", "{version}"'])
def test_it_may_be_one_of_many_or_any(ask: Ask, fleet: Alert, header: str) -> None:
    version = ask(f"alerts/{fleet.pk}").json()["version"]

    done = ask(f"alerts/{fleet.pk}/acknowledge", {}, If_Match=header.replace("{version}", version))

    assert done.status_code == 200


@pytest.mark.parametrize("path", ["runs", "nodes/steady", "openapi.json"])
def test_the_head_is_as_the_whole_without_its_body(
    client: Client, ask: Ask, fleet: Alert, path: str
) -> None:
    headers = {"Authorization": ask(path).request["HTTP_AUTHORIZATION"]}

    head = client.head(f"/api/v1/{path}", headers=headers)

    assert (head.status_code, head.content) == (200, b"")
    assert head["ETag"].startswith('"')
    assert int(head["Content-Length"]) > 100


def test_anybody_may_ask_what_can_be_done(client: Client) -> None:
    for path, allowed in {
        "runs": "GET, HEAD, OPTIONS",
        "silences": "GET, HEAD, OPTIONS, POST",
        "alerts/1/acknowledge": "OPTIONS, POST",
    }.items():
        assert client.options(f"/api/v1/{path}")["Allow"] == allowed
        refused = client.delete(f"/api/v1/{path}")
        assert (refused.status_code, refused["Allow"]) == (405, allowed)
        assert refused["Content-Type"] == "application/problem+json"


def test_what_is_not_there_is_reported_as_a_problem(ask: Ask) -> None:
    for path in ("runs/missing", "alerts/999999", "nothing", "runs/a/b/c"):
        response = ask(path)

        assert response.status_code == 404
        assert response["Content-Type"] == "application/problem+json"
        assert response.json()["type"] == "about:blank"
    assert not Silence.objects.exists()
