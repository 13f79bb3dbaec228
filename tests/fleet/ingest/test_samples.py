"""Samples on request: from the row to the agent and back, and what is refused."""

import base64
import json
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from fleet.ingest.samples import (
    KEPT_PER_NODE,
    forget_samples,
    load_sample,
    refusal_of,
    request_sample,
)
from fleet.models import Node, SampleRequest
from telemetry.errors import FieldError
from telemetry.ingest.samples import sample_tables
from telemetry.store.hot import HotStore
from tests.fleet.alerts.test_probe_requests import Agent
from tests.fleet.api.conftest import Post, hot, post, secret
from tests.fleet.samples import answer_of, requested, taken
from tests.telemetry.agent.machine import Machine
from tests.telemetry.ingest.reports import report

__all__ = ["hot", "post", "secret"]
Start = Callable[..., Agent]
Ask = Callable[[], SampleRequest]


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def start(post: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start an agent on the node a, which has two EFA devices and two cores."""
    monkeypatch.setattr(SampleRequest, "LENGTH_S", 0.5)
    machine = Machine(tmp_path / "sys")
    machine.add_neuron(0, n_cores=2)
    machine.add_efa("rdmap8s27")
    folders = ("--efa-sysfs", str(machine.efa), "--neuron-sysfs", str(machine.neuron))

    def start(*options: str) -> Agent:
        agent = Agent(post, machine.efa, "a", *folders, *options)
        agent.send()
        return agent

    return start


@pytest.fixture
def ask(hot: HotStore) -> Ask:
    """Request a sample of the node a."""

    def request() -> SampleRequest:
        node = Node.objects.get(name="a")
        return request_sample(hot, node, by="olga", is_up=True, now=datetime.now(UTC))

    return request


def state(row: SampleRequest) -> tuple[str, str]:
    row.refresh_from_db()
    return row.state(datetime.now(UTC)), row.reason


def test_an_agent_takes_a_sample_and_sends_it_once(start: Start, ask: Ask) -> None:
    agent = start()
    row = ask()
    assert state(row) == ("waiting", "")
    first = agent.send()
    assert first["sample"] == {"id": row.pk, "every_s": 0.1, "length_s": 0.5}
    # The sample is over by now, so the next report has it.
    last = agent.send()

    assert "sample" not in last
    assert state(row) == ("done", "")
    stored = load_sample(row)
    assert stored is not None
    driver = next(table for table in sample_tables(stored) if table.name == "driver")
    assert driver.parts == ("0.0", "0.1")
    assert len(driver.t_s) >= 3
    assert driver.start_s == pytest.approx(time.time(), abs=60)
    assert "sample" not in agent.health.summary(n_waiting=0)


def line(answer: object) -> bytes:
    return json.dumps(
        {
            "at": time.time(),
            "report": report("trn1.2xlarge") | {"instance_info": {"instance_id": "a"}},
            "agent": {"version": "1", "sample": answer},
        }
    ).encode()


def test_that_it_samples_is_shown_and_reported_to_a_restarted_agent(
    start: Start, ask: Ask, post: Post
) -> None:
    agent = start()
    row = ask()
    response = post(line({"id": row.pk, "state": "sampling"}), node="a").json()

    assert state(row)[0] == "sampling"
    assert response["sample"]["is_started"] is True
    # An agent that knows nothing of it: the one before was killed.
    agent.send()
    agent.send()
    assert state(row) == ("failed", "the agent was restarted while it sampled")


def test_an_agent_may_refuse(start: Start, ask: Ask) -> None:
    agent = start("--refuse-samples")
    row = ask()
    for _ in range(2):
        agent.send()

    assert state(row) == ("failed", "the agent runs with --refuse-samples")


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


ONE = [{"name": "driver", "parts": ["0.0"], "n": 1}]


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"tables": ONE, "data": "A" * 1_000_000}, "data", "of length <= 600000"),
        ({"tables": ONE, "data": "!"}, "data", "Invalid base64"),
        ({"tables": ONE, "data": packed(b"12345")[:-8]}, "data", "ends early"),
        ({"tables": ONE, "data": "AAAA"}, "data", "is not packed by zlib"),
        ({"tables": ONE, "data": packed(b"1234")}, "data", "4 bytes once unpacked; the tables"),
        ({"tables": ONE, "data": packed(b"0" * 9_000_000)}, "data", "more than 8,000,000 bytes"),
        ({"tables": [{**ONE[0], "n": 2000}]}, "tables.0.n", "<= 1000"),
        ({"tables": [{**ONE[0], "name": "truth"}]}, "tables.0.name", "Invalid enum"),
        ({"tables": [{**ONE[0], "parts": ["<b>"]}]}, "tables.0.parts.0", "matching regex"),
        ({"at": "now", "tables": ONE}, "at", "Expected `float`"),
        ({}, "", "has neither a state, nor a reason, nor tables"),
    ],
)
def test_an_answer_that_cannot_be_read_ends_the_request_and_not_the_report(
    start: Start, ask: Ask, post: Post, change: dict[str, Any], field: str, reason: str
) -> None:
    start()
    row = ask()
    response = post(line({"id": row.pk, **change}), node="a").json()

    assert (response["accepted"], response["n_refused"]) == (1, 1)
    [refused] = response["refused"]
    assert refused["field"] == ".".join(filter(None, ("agent.sample", field)))
    assert reason in refused["reason"]
    assert "sample" not in response
    assert state(row)[0] == "failed"
    assert f"the answer was refused: {refused['field']}: " in row.reason


@pytest.mark.parametrize("answer", [{"id": 999, "state": "sampling"}, {"id": "x"}, {}, "sample"])
def test_an_answer_to_no_request_of_the_node_is_refused(
    start: Start, ask: Ask, post: Post, answer: object
) -> None:
    start()
    row = ask()
    response = post(line(answer), node="a").json()

    assert [each["field"] for each in response["refused"]] == ["agent.sample.id"]
    assert response["accepted"] == 1
    assert state(row)[0] == "waiting"


def test_a_request_of_another_node_is_not_answered(
    start: Start, post: Post, steady: Node, now: datetime
) -> None:
    start()
    other = requested(steady, now=now)
    response = post(line(answer_of(other.pk, at_s=time.time())), node="a").json()

    assert response["refused"][0]["field"] == "agent.sample.id"
    assert state(other)[0] == "waiting"


def test_a_repeated_answer_changes_nothing(start: Start, ask: Ask, post: Post) -> None:
    start()
    row = ask()
    for n in (300, 200):
        response = post(line(answer_of(row.pk, at_s=time.time(), n=n)), node="a").json()
        assert response["n_refused"] == 0

    row.refresh_from_db()
    stored = load_sample(row)
    assert stored is not None
    assert stored.length_s == 30.0


def test_why_no_sample_can_be_requested(
    start: Start, ask: Ask, hot: HotStore, steady: Node, settings: Settings, now: datetime
) -> None:
    start()
    node = Node.objects.get(name="a")

    def why(of: Node = node, *, is_up: bool = True, later_s: float = 0) -> str:
        at = now + timedelta(seconds=later_s)
        return refusal_of(hot, of, of.sample_requests.first(), is_up=is_up, now=at)

    assert why() == ""
    assert why(is_up=False) == "a does not report."
    assert why(steady) == "steady has no agent, which takes the sample."
    row = ask()
    assert why() == "A sample of a is under way, requested by olga."
    with pytest.raises(FieldError, match="under way"):
        ask()
    assert why(later_s=181) == ""
    SampleRequest.objects.filter(pk=row.pk).update(answered_at=now, started_at=now)
    assert why(later_s=20) == "A node is sampled at most once a minute. Try again in 40 s."
    assert why(later_s=61) == ""
    settings.REQUEST_SAMPLES = False
    assert "TRNWATCH_REQUEST_SAMPLES=0" in why(later_s=61)


def test_without_the_setting_no_agent_is_asked(start: Start, ask: Ask, settings: Settings) -> None:
    agent = start()
    ask()
    settings.REQUEST_SAMPLES = False

    assert "sample" not in agent.send()


def test_a_request_without_an_answer_ends_and_makes_room(
    start: Start, ask: Ask, now: datetime
) -> None:
    start()
    row = ask()
    SampleRequest.objects.update(requested_at=now - timedelta(minutes=4))
    assert state(row)[0] == "no_answer"

    assert ask().pk != row.pk
    assert state(row) == ("failed", "no answer within 3\u202fmin")


def test_the_newest_samples_of_a_node_are_kept_and_old_requests_deleted(
    steady: Node, now: datetime
) -> None:
    rows = [taken(steady, now=now, ago_s=7200 - i) for i in range(KEPT_PER_NODE + 1)]
    for row in rows:
        row.refresh_from_db()

    assert [load_sample(row) is None for row in rows] == [True] + [False] * KEPT_PER_NODE
    assert rows[0].state(now) == "done"
    SampleRequest.objects.filter(pk=rows[0].pk).update(requested_at=now - timedelta(days=31))
    assert forget_samples(keep_days=30, now=now) == 1
    assert SampleRequest.objects.count() == KEPT_PER_NODE
