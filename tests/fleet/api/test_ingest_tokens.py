"""Ingest tokens: scopes, expiry, rate limits."""

from datetime import UTC, datetime, timedelta
from threading import Lock

import pytest
from django.test import Client
from pytest_django import Settings

from fleet.access.throttling import WorkBudget
from fleet.api import ingest_views
from fleet.models import Node, Token
from fleet.models.problem import ProblemError
from tests.fleet.api.conftest import URL, Post
from tests.helpers import NOON
from tests.telemetry.ingest.reports import lines

TRN2 = lines("trn2.48xlarge")
MB = 1_000_000


def test_without_a_token_nothing_is_accepted(client: Client, db: None, redis_url: str) -> None:
    response = client.post(URL, TRN2[0], content_type="application/x-ndjson")

    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert response["Content-Type"] == "application/problem+json"
    assert not Node.objects.exists()


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Basic abc", "abc", "Bearer trnw_x"])
def test_a_token_that_is_none_is_refused(client: Client, db: None, header: str) -> None:
    response = client.post(
        URL, TRN2[0], content_type="text/plain", headers={"Authorization": header}
    )

    assert response.status_code == 401


def test_a_token_of_the_wrong_scope_learns_which_it_needs(post: Post) -> None:
    _, scraper = Token.issue("prometheus", Token.Scope.SCRAPE, now=NOON)

    response = post(TRN2[0], bearer=scraper)

    assert response.status_code == 403
    assert "`ingest`" in response.json()["detail"]
    assert not Node.objects.exists()


def test_a_token_that_expired_is_refused_and_shown(post: Post, admin_client: Client) -> None:
    then = datetime.now(UTC) - timedelta(minutes=1)
    _, old = Token.issue("old", Token.Scope.INGEST, now=NOON, expires_at=then)

    response = post(TRN2[0], bearer=old)

    assert response.status_code == 401
    assert "expired" in response.json()["detail"]
    assert "1 report refused within a minute: The token expired" in admin_client.get(
        "/connect/"
    ).text.replace("\u202f", " ")


def test_a_token_that_was_revoked_is_refused(post: Post) -> None:
    token, revoked = Token.issue("gone", Token.Scope.INGEST, now=NOON)
    Token.objects.filter(pk=token.pk).update(revoked_at=NOON)

    assert post(TRN2[0], bearer=revoked).status_code == 401


def test_the_use_of_a_token_is_noted(post: Post) -> None:
    post(TRN2[0])

    assert Token.objects.get().last_used_at is not None


def test_a_session_is_no_token(client: Client, admin_user: object, redis_url: str) -> None:
    client.force_login(admin_user)  # type: ignore[arg-type]

    assert client.post(URL, TRN2[0], content_type="text/plain").status_code == 401


def test_too_many_requests_are_sent_to_wait(post: Post, settings: Settings) -> None:
    settings.INGEST_REQUESTS_PER_MINUTE = 2

    statuses = [post(TRN2[0]).status_code for _ in range(3)]

    # A minute may end in between; then there are three left again.
    assert statuses in ([200, 200, 429], [200, 200, 200])
    if statuses[-1] == 429:
        assert post(TRN2[0])["Retry-After"] == "60"


def test_no_cookie_is_asked_for_and_none_is_set(post: Post) -> None:
    response = post(TRN2[0])

    assert not response.cookies


def test_a_token_waits_once_its_minute_of_computing_is_used(settings: Settings) -> None:
    settings.INGEST_CPU_S_PER_MINUTE = 2
    now_s, cpu_s = [100.0], [0.0]
    budget = WorkBudget(monotonic=lambda: now_s[0], thread_time=lambda: cpu_s[0])

    def spend(token: str, used_s: float) -> int:
        with budget.spend(token):
            cpu_s[0] += used_s
        return budget.wait_s(token)

    assert spend("a", 1.9) == 0
    now_s[0] += 10
    assert spend("a", 0.2) == 50
    # The others go on, and it may again after the minute.
    assert budget.wait_s("b") == 0
    now_s[0] += 50
    assert budget.wait_s("a") == 0
    assert spend("a", 0.5) == 0
    # Without any, it waits for each minute, also after one that is over.
    settings.INGEST_CPU_S_PER_MINUTE = 0
    now_s[0] += 200
    assert budget.wait_s("a") == 60


@pytest.mark.parametrize("path", ["neuron-monitor", "efa", "steps", "prometheus", "otlp"])
def test_every_endpoint_counts_what_a_token_computes(
    client: Client, secret: str, redis_url: str, settings: Settings, path: str
) -> None:
    settings.INGEST_CPU_S_PER_MINUTE = 0
    answer = client.post(
        f"/api/v1/ingest/{path}",
        b"{}",
        content_type="application/json",
        headers={"Authorization": f"Bearer {secret}"},
    )
    assert answer.status_code == (503 if path == "prometheus" else 429)
    assert "CPU time" in answer.content.decode()
    assert 0 < int(answer.headers["Retry-After"]) <= 60


def test_a_request_that_waited_for_its_turn_is_refused_if_its_minute_is_used(
    secret: str, settings: Settings
) -> None:
    token, turn = Token.objects.get(), Lock()
    settings.INGEST_CPU_S_PER_MINUTE = 1
    with ingest_views._turn(turn, token):
        assert turn.locked()
    # What it waited for took the rest.
    settings.INGEST_CPU_S_PER_MINUTE = 0
    with pytest.raises(ProblemError, match="CPU time") as refused, ingest_views._turn(turn, token):
        pass
    assert refused.value.status == 429
    assert not turn.locked()


@pytest.mark.parametrize(
    ("path", "turn"), [("steps", ingest_views.steps_turn), ("otlp", ingest_views.samples_turn)]
)
def test_a_request_waits_for_its_turn_for_some_seconds(
    client: Client,
    secret: str,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    turn: Lock,
) -> None:
    monkeypatch.setattr(ingest_views, "TURN_WITHIN_S", 0.01)
    with turn:
        answer = client.post(
            f"/api/v1/ingest/{path}",
            b"{}",
            content_type="application/json",
            headers={"Authorization": f"Bearer {secret}"},
        )
    assert answer.status_code == 503
    assert "Send it again" in answer.content.decode()
    assert answer.headers["Retry-After"] == "5"
