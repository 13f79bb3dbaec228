"""Agents of weakly suspected nodes are asked for one probe; the alert shows what they answer."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from fleet.alerts.probe_requests import MAX_REQUESTS, QUIET, update_probe_requests
from fleet.models import Alert, Node, ProbeRequest, Run
from telemetry.agent.clock import Clock
from telemetry.agent.program import read_options
from telemetry.agent.reports import Collector, Health
from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import Post, hot, post, secret
from tests.telemetry.ingest.reports import report

__all__ = ["hot", "post", "secret"]
LATENCY_S = {"a": 3.4e-5, "b": 1.7e-5}
PROBE = """echo '{{"device": "rdmap0s0", "latency_s": {}}}'"""


class Agent:
    """A node's agent: its own parts, and its requests through Django's client."""

    def __init__(self, post: Post, folder: Path, node: str, *options: str) -> None:
        self._post = post
        self._node = node
        self.health = Health()
        self.collector = Collector(
            read_options(
                ["--dry-run", "--no-monitor", "--efa-sysfs", str(folder), *options], env={}
            ),
            Clock(),
            self.health,
            pause=lambda seconds: None,
        )

    def send(self) -> dict[str, Any]:
        """Report, and do what the response asks for."""
        line = {
            "at": time.time(),
            "report": report("trn1.2xlarge") | {"instance_info": {"instance_id": self._node}},
            "agent": self.health.summary(n_waiting=0),
        }
        response: dict[str, Any] = self._post(json.dumps(line).encode(), node=self._node).json()
        assert response["accepted"] == 1
        self.collector.take_requests(response)
        self.collector.wait_for_answers()
        return response


Start = Callable[..., Agent]
Page = Callable[[Alert], str]


@pytest.fixture
def page(client: Client, bob: User) -> Page:
    """Show an alert's page to an operator."""
    client.force_login(bob)
    return lambda alert: str(client.get(alert.get_absolute_url()).text)


@pytest.fixture
def start(post: Post, tmp_path: Path, run: Run, settings: Settings) -> Start:
    """Start agents, each on a node of the run, with a server that may request probes."""
    settings.REQUEST_PROBES = True

    def start(node: str, *options: str) -> Agent:
        latency_s = LATENCY_S.get(node, 1.7e-5)
        given = options or ("--probe-command", PROBE.format(latency_s))
        agent = Agent(post, tmp_path, node, *given)
        agent.send()
        Node.objects.filter(name=node).update(run=run)
        return agent

    return start


def fire(run: Run, node: str, *, now: datetime, **fields: Any) -> Alert:
    usual: dict[str, Any] = {
        "rule": "step_slow",
        "cause": "network",
        "severity": Alert.Severity.PAGE,
        "subject": f"node:{node}",
        "run": run,
        "node": Node.objects.get(name=node),
        "score": 1.3,
        "onset_at": now,
        "fired_at": now,
        "last_seen_at": now,
    }
    return Alert.objects.create(**usual | fields)


def texts(alert: Alert) -> list[tuple[str, str]]:
    return list(alert.events.values_list("kind", "text"))


def test_a_suspect_and_a_peer_answer_and_the_alert_shows_it(
    start: Start, run: Run, hot: HotStore, page: Page
) -> None:
    suspect, peer, other = start("a"), start("b"), start("c")
    now = datetime.now(UTC)
    alert = fire(run, "a", now=now)
    for _ in range(3):
        update_probe_requests(hot, now=now)
    responses = [agent.send() for agent in (suspect, peer, other)]
    assert ["probe" in response for response in responses] == [True, True, False]
    for agent in (suspect, peer):
        # It repeats the answer until the server has taken it.
        agent.send()
    for _ in range(2):
        update_probe_requests(hot, now=now + timedelta(seconds=3))

    assert texts(alert) == [
        ("probe_requested", "EFA latency of a, and of b to compare"),
        ("probed", "a: EFA latency 34.0\u202fµs, median of 1\u202fdevice"),
        ("probed", "b: EFA latency 17.0\u202fµs, median of 1\u202fdevice"),
    ]
    assert "probe" not in suspect.send()
    assert "probe" not in suspect.health.summary(n_waiting=0)
    panel = page(alert).partition("Requested probes")[2].partition("</section>")[0]
    assert "34.0" in panel
    assert "not suspected, for comparison" in panel
    assert "Requested by trnwatch" in panel


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ("--refuse-probes", "--probe-command", "touch ran"),
            "the agent runs with --refuse-probes",
        ),
        (("--probe-file", "probes"), "the agent has no --probe-command"),
        (("--probe-command", "exit 3"), "probe: CalledProcessError"),
    ],
)
def test_an_agent_may_refuse(
    start: Start, run: Run, hot: HotStore, page: Page, options: tuple[str, ...], reason: str
) -> None:
    agent = start("a", *options)
    now = datetime.now(UTC)
    alert = fire(run, "a", now=now)
    update_probe_requests(hot, now=now)
    for _ in range(2):
        agent.send()
    update_probe_requests(hot, now=now + timedelta(seconds=3))

    assert texts(alert)[-1] == ("probed", f"a: no result: {reason}")
    assert f"no result: {reason}" in page(alert)
    assert not Path("ran").exists()


def test_an_agent_that_does_not_answer_is_shown(
    start: Start, run: Run, hot: HotStore, page: Page
) -> None:
    start("a")
    alert = fire(run, "a", now=datetime.now(UTC))
    update_probe_requests(hot, now=datetime.now(UTC))
    assert "no answer yet" in page(alert)
    ProbeRequest.objects.update(requested_at=datetime.now(UTC) - timedelta(minutes=2))

    assert "no answer within 1\u202fmin" in page(alert)


@pytest.mark.parametrize("cause", ["slow_core", "efa_latency", "input_stall"])
def test_strong_evidence_needs_no_probe(start: Start, run: Run, hot: HotStore, cause: str) -> None:
    start("a")
    now = datetime.now(UTC)
    fire(run, "a", now=now, cause=cause)
    update_probe_requests(hot, now=now)

    assert not ProbeRequest.objects.exists()


def test_without_the_setting_nothing_is_requested(
    start: Start, run: Run, hot: HotStore, settings: Settings
) -> None:
    agent = start("a")
    now = datetime.now(UTC)
    fire(run, "a", now=now)
    settings.REQUEST_PROBES = False
    update_probe_requests(hot, now=now)

    assert not ProbeRequest.objects.exists()
    assert "probe" not in agent.send()


def test_nodes_without_an_agent_are_not_asked(
    start: Start, run: Run, hot: HotStore, limping: Node
) -> None:
    start("b")
    now = datetime.now(UTC)
    fire(run, limping.name, now=now)
    Node.objects.create(
        name="no-agent",
        source=Node.Source.NEURON_MONITOR,
        shard="node:no-agent",
        run=run,
        n_cores=2,
        n_devices=1,
        first_seen_at=now,
    )
    fire(run, "no-agent", now=now)
    update_probe_requests(hot, now=now)

    assert not ProbeRequest.objects.exists()


def test_requests_are_limited_by_node_and_in_number(start: Start, run: Run, hot: HotStore) -> None:
    start("a")
    now = datetime.now(UTC)
    first = fire(run, "a", now=now)
    second = fire(run, "a", now=now, rule="allreduce_share")
    update_probe_requests(hot, now=now)
    assert list(ProbeRequest.objects.values_list("alert", "node")) == [(first.pk, "a")]

    later = now + QUIET + timedelta(minutes=1)
    Alert.objects.filter(pk=second.pk).update(fired_at=later)
    ProbeRequest.objects.bulk_create(
        ProbeRequest(alert=first, node=f"busy-{i}", requested_at=later)
        for i in range(MAX_REQUESTS)
    )
    update_probe_requests(hot, now=later)
    assert not second.probe_requests.exists()
    ProbeRequest.objects.filter(node="busy-0").delete()
    update_probe_requests(hot, now=later)
    assert [each.node for each in second.probe_requests.all()] == ["a"]


def test_the_agent_runs_a_requested_probe_at_most_every_15_seconds(start: Start) -> None:
    agent = start("a")
    for number in (7, 7, 8):
        agent.collector.take_requests({"probe": {"id": number, "name": "efa_latency"}})
        agent.collector.wait_for_answers()

    assert agent.health.answers["probe"] == {"id": 8, "reason": "requested again within 15 s"}


def test_the_agent_runs_no_other_probe(start: Start) -> None:
    agent = start("a")
    agent.collector.take_requests({"probe": {"id": 7, "name": "rm -rf /"}})

    assert agent.health.answers["probe"] == {
        "id": 7,
        "reason": "this agent knows the probe efa_latency only",
    }
