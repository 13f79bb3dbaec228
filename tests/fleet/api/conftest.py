"""Fixtures of ingest tests: a token, and a way to post lines."""

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from fleet import alerts
from fleet.checks.support import SupportFile, check_operators, store_check
from fleet.models import (
    Alert,
    Annotation,
    Budget,
    CompileEvent,
    Node,
    Run,
    Silence,
    SupportCheck,
    TeamPrice,
    Token,
)
from telemetry.store.hot import HotStore, open_store
from tests.alerts import straggling
from tests.helpers import NOON, block, just_now, number_from, steps

URL = "/api/v1/ingest/neuron-monitor"
Post = Callable[..., Any]


@pytest.fixture
def secret(db: None) -> str:
    """Give the secret of a token that may ingest."""
    return Token.issue("nodes", Token.Scope.INGEST, now=NOON)[1]


@pytest.fixture
def post(client: Client, secret: str, redis_url: str) -> Post:
    """Give a function that posts a body as a node."""

    def send(body: bytes, *, node: str | None = "real", bearer: str = secret, **more: str) -> Any:
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        headers["Authorization"] = f"Bearer {bearer}"
        url = URL if node is None else f"{URL}?node={node}"
        return client.post(url, body, content_type="application/x-ndjson", headers=headers)

    return send


@pytest.fixture
def hot(redis_url: str) -> HotStore:
    """Give the store that the test's settings name."""
    return open_store(redis_url)


Ask = Callable[..., Any]


NUMBERED = (Alert, Annotation, Silence, Token, TeamPrice, Budget, CompileEvent, SupportCheck)
# Rows that get a number of their own get it above those that a test has numbered.
FIRST_NUMBER = 1_000


@pytest.fixture
def fleet(run: Run, steady: Node, limping: Node, silent: Node, hot: HotStore) -> Alert:
    """Make a run that trains, with a minute of figures, and an alert with a life of its own."""
    number_from(FIRST_NUMBER, *NUMBERED)
    now = just_now()
    second = int(now.timestamp())
    hot.append([block(tick=second - 60 + i) for i in range(60)])
    hot.append_steps(steps(ended_at_s=second - 30, compute_s=0.9, wait_s=0.2))
    at = now - timedelta(minutes=10)
    over = straggling(run, limping, at=at, rule="hang", subject="node:limping", resolved_at=now)
    alerts.comment(over, by="ada", text="swapped it", now=now)
    alert = straggling(run, limping, at=at, evidence={"share_ratio": 0.31, "step_s": 1.5})
    alerts.silence("rule=hang", ends_at=now + timedelta(hours=1), reason="x", by="ada", now=now)
    Annotation.objects.create(at=at, kind="deploy", run=run, text="loader 2.4", by="ci")
    return alert


def money(run: Run, *pks: int) -> None:
    """Keep a price, a budget, a compile and a support check under each of these numbers."""
    now = just_now()
    checked = check_operators(
        SupportFile("ops.txt", io.BytesIO(b"aten::add\nmine::op\n")), most_bytes=100
    )
    for pk in pks:
        TeamPrice.objects.create(
            pk=pk,
            team="LLM",
            instance_type="trn2.48xlarge",
            basis="reserved",
            usd_per_node_hour=27.83,
            valid_from=now,
            source="contract",
            set_by="ada",
            set_at=now,
        )
        period = {"starts_at": now, "ends_at": now + timedelta(days=pk)}
        Budget.objects.create(pk=pk, team="LLM", usd=250_000, set_by="ada", set_at=now, **period)
        CompileEvent.objects.create(
            pk=pk,
            run=run,
            module=f"MODULE_{pk}+a",
            outcome="miss",
            at=now,
            seconds=1800,
            verdict="again",
            change={"parts": [{"what": "flags", "before": "-O1", "after": "-O2"}]},
        )
        kept = store_check(checked, by="ada", now=now)
        SupportCheck.objects.filter(pk=kept.pk).update(id=pk)


@pytest.fixture
def ask(client: Client, redis_url: str, db: None) -> Ask:
    """Give a function that asks the API as a token of some scope."""
    secrets: dict[str, str] = {}

    def asked(path: str, body: object = None, *, scope: str = "admin", **more: str) -> Any:
        if scope and scope not in secrets:
            secrets[scope] = Token.issue(scope, scope, now=just_now())[1]
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        if scope:
            headers |= {"Authorization": f"Bearer {secrets[scope]}"}
        url = path if path.startswith("/") else f"/api/v1/{path}"
        if body is None:
            return client.get(url, headers=headers)
        return client.post(url, body, content_type="application/json", headers=headers)

    return asked
