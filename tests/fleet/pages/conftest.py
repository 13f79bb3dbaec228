"""A live fleet, an alert that accuses one node, and users."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from pytest_django import Settings

from fleet.models import Alert, AlertEvent, Node, Run
from telemetry.store.hot import HotStore
from tests.helpers import LLAMA, block, steps, watch_since

Page = Callable[..., str]


@pytest.fixture(autouse=True)
def _open_to_all(settings: Settings) -> None:
    settings.ANONYMOUS_READING = True
    settings.ALLOW_DRILLS = True


@pytest.fixture
def page(client: Client) -> Page:
    """Read a page that must be there, as a browser does: white space is one space, all plain."""

    def read(path: str, **headers: str) -> str:
        response = client.get(path, headers=headers)
        assert response.status_code == 200, response.text[:500]
        text = re.sub(r"[ \n\u202f]+", " ", response.text)
        # A template with a line break or a space before a sign shows a gap there.
        assert re.findall(r".{20}[\w)>] [,;](?= ).{20}", text) == []
        return text

    return read


@pytest.fixture
def alive(hot: HotStore, run: Run, steady: Node, limping: Node) -> Run:
    """Let two nodes report, and their run take ten steps of two seconds, just now."""
    now_s = int(time.time())
    Run.objects.update(started_at=datetime.fromtimestamp(now_s - 7200, UTC), last_step=10)
    hot.append(block(tick=tick, fill=0.5) for tick in range(now_s - 20, now_s + 1))
    own_s, wait_s = [1.3, 1.5], [0.2, 0.0]
    started_s = now_s - 19
    hot.append_steps(
        steps(n_steps=10, ended_at_s=started_s, compute_s=own_s, wait_s=wait_s, transfer_s=0.5)
    )
    watch_since(hot, now_s - 3600)
    return Run.objects.get(pk=run.pk)


@pytest.fixture
def fired(alive: Run, limping: Node) -> Callable[..., Alert]:
    """Fire alerts at will."""

    def fire(*, ago: timedelta = timedelta(minutes=3), **fields: Any) -> Alert:
        at = datetime.now(UTC) - ago
        usual: dict[str, Any] = {
            "rule": "allreduce_share",
            "cause": "slow_core",
            "severity": Alert.Severity.PAGE,
            "subject": f"run:{alive.name}",
            "run": alive,
            "node": limping,
            "device": 7,
            "score": 1.3,
            "victims": ["steady"],
            "evidence": EVIDENCE,
            "cost": COST,
            "onset_at": at - timedelta(seconds=12),
            "fired_at": at,
            "last_seen_at": at,
        }
        alert = Alert.objects.create(**usual | fields)
        AlertEvent.objects.create(alert=alert, at=at, kind=AlertEvent.Kind.FIRED, text="at 31 %")
        return alert

    return fire


@pytest.fixture
def alert(fired: Callable[..., Alert]) -> Alert:
    """Fire one unacknowledged alert."""
    return fired()


@pytest.fixture
def operator(client: Client, db: None) -> User:
    """Sign in an operator."""
    return _signed_in(client, "olga", "operator")


@pytest.fixture
def viewer(client: Client, db: None) -> User:
    """Sign in a viewer."""
    return _signed_in(client, "vera", "viewer")


@pytest.fixture
def admin(client: Client, db: None) -> User:
    """Sign in an admin."""
    return _signed_in(client, "anna", "admin")


def _signed_in(client: Client, name: str, role: str) -> User:
    user = User.objects.create_user(name)
    user.groups.add(Group.objects.get(name=role))
    client.force_login(user)
    return user


EVIDENCE: dict[str, Any] = {
    "share_ratio": 0.314,
    "wait_ratio": 0.272,
    "transfer_ratio": 0.042,
    "limit_ratio": 0.25,
    "kind": "waiting",
    "step": 18204,
    "step_s": 3.0,
    "baseline_step_s": 2.0,
    "culprit": {
        "metric": "core_utilization_ratio",
        "value": 0.95,
        "peers_median": 0.62,
        "n_peers": 31,
        "unit": "ratio",
    },
    "wait_by_worker": {"steady": 0.82, "limping": 0.01},
}
COST: dict[str, Any] = {
    "lost_s": 60.0,
    "n_steps": 30.0,
    "usd": 1.43,
    "usual_s": 2.0,
    "n_before": 400,
    "n_done": 60,
    "span_s": 180.0,
    "paused_s": 0.0,
    "n_nodes": 4,
    "usd_per_hour": 86.0,
    "until_s": 0.0,
}


@pytest.fixture
def simulated(alive: Run) -> Run:
    """Make the run one that the workers play."""
    alive.plan, alive.is_simulated = msgspec.to_builtins(LLAMA), True
    alive.save()
    for rank, node in enumerate(alive.nodes.order_by("rank")):
        node.name = LLAMA.node_names[rank]
        node.save()
    return alive
