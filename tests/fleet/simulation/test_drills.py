"""Drills: valid faults and targets, and delivery to the workers."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pytest_django import Settings
from redis import Redis

from fleet.models import InjectedFault, Node, Run
from fleet.simulation.drills import end, inject, previewed
from fleet.simulation.runs import REMEMBER, plan_of, publish_plan, publish_plans
from telemetry.errors import FieldError
from telemetry.simulate.plan import Fault, Plan, RunSpec
from telemetry.store.hot import HotStore, StoreUnavailable
from tests.helpers import LLAMA, redis_server

NOW = datetime.now(UTC).replace(microsecond=0)
GOOD: Mapping[str, Any] = {
    "kind": "slow_core",
    "device": 17,
    "magnitude": 1.5,
    "duration_s": 120.0,
}


@pytest.fixture
def simulated(run: Run) -> Run:
    run.plan, run.is_simulated = msgspec.to_builtins(LLAMA), True
    run.started_at = NOW - timedelta(hours=1)
    run.save()
    return run


@pytest.fixture
def node(simulated: Run) -> Node:
    return Node.objects.create(
        name="llama-02",
        instance_type="trn1.32xlarge",
        source=Node.Source.SIMULATED,
        shard="llama/0",
        run=simulated,
        rank=2,
        n_cores=32,
        n_devices=16,
        n_efa=8,
        first_seen_at=NOW,
    )


@pytest.fixture(autouse=True)
def _drills_allowed(settings: Settings) -> None:
    settings.ALLOW_DRILLS = True


def plan_in(hot: HotStore) -> Plan:
    return msgspec.json.decode(hot.plans()["llama"], type=Plan)


def test_a_drill_reaches_the_workers_for_the_next_ticks(
    hot: HotStore, simulated: Run, node: Node
) -> None:
    fault = inject(hot, simulated, node=node, by="alice", now=NOW, **GOOD)

    [planned] = plan_in(hot).faults
    assert (planned.kind, planned.node, planned.device) == ("slow_core", "llama-02", 17)
    assert planned.start_s == 3600 + (fault.starts_at - NOW).total_seconds()
    assert fault.starts_at > NOW
    assert fault.injected_by == "alice"


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("kind", "gremlins", "kind"),
        ("device", 32, "device"),
        ("device", -1, "device"),
        ("magnitude", -2.0, "magnitude"),
        ("magnitude", 1e9, "magnitude"),
        ("duration_s", 0.0, "duration_s"),
        ("duration_s", 1e6, "duration_s"),
    ],
)
def test_a_bad_field_is_named_and_nothing_is_stored(
    hot: HotStore, simulated: Run, node: Node, field: str, value: object, names: str
) -> None:
    with pytest.raises(FieldError) as refusal:
        inject(hot, simulated, node=node, by="alice", now=NOW, **{**GOOD, field: value})

    assert refusal.value.field == names
    assert InjectedFault.objects.count() == 0
    assert hot.plans() == {}


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Redis]:
    """Give a Redis that can be read, but takes nothing for as long as it is full."""
    with redis_server(tmp_path) as url, Redis.from_url(url) as redis:
        yield redis


def test_what_the_store_does_not_take_is_neither_recorded_nor_played(
    full: Redis, simulated: Run, node: Node
) -> None:
    hot = HotStore(full)
    full.config_set("maxmemory", 1)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            inject(hot, simulated, node=node, by="alice", now=NOW, **GOOD)
    assert not InjectedFault.objects.exists()

    full.config_set("maxmemory", 0)
    publish_plans(hot, now=NOW)
    assert plan_in(hot).faults == ()
    inject(hot, simulated, node=node, by="alice", now=NOW, **GOOD)
    assert InjectedFault.objects.count() == len(plan_in(hot).faults) == 1


def test_a_drill_whose_end_was_refused_continues(full: Redis, simulated: Run, node: Node) -> None:
    hot = HotStore(full)
    fault = inject(hot, simulated, node=node, by="alice", now=NOW, **GOOD)
    ends_at, later = fault.ends_at, NOW + timedelta(seconds=30)
    full.config_set("maxmemory", 1)

    with pytest.raises(StoreUnavailable):
        end(hot, fault, now=later)
    assert fault.ends_at == InjectedFault.objects.get().ends_at == ends_at

    full.config_set("maxmemory", 0)
    end(hot, fault, now=later)
    assert InjectedFault.objects.get().ends_at < ends_at
    assert plan_in(hot).faults[0].duration_s < GOOD["duration_s"]


def test_a_store_that_hung_does_not_find_the_drill_when_it_wakes(
    simulated: Run, node: Node, tmp_path: Path
) -> None:
    with redis_server(tmp_path) as url, Redis.from_url(url) as redis:
        pid = redis.info("server")["process_id"]
        os.kill(pid, signal.SIGSTOP)
        try:
            with (
                Redis.from_url(url, socket_timeout=0.2, retry=None) as short,
                pytest.raises(StoreUnavailable),
            ):
                inject(HotStore(short), simulated, node=node, by="alice", now=NOW, **GOOD)
        finally:
            os.kill(pid, signal.SIGCONT)

        assert HotStore(redis).plans() == {}
    assert not InjectedFault.objects.exists()


def test_a_real_run_is_never_drilled(hot: HotStore, simulated: Run, node: Node) -> None:
    simulated.is_simulated = False

    with pytest.raises(FieldError, match="only a simulated run"):
        inject(hot, simulated, node=node, by="alice", now=NOW, **GOOD)


def test_an_unknown_node_is_refused(hot: HotStore, simulated: Run, node: Node) -> None:
    node.run_id = None

    with pytest.raises(FieldError, match="node: llama-02 is not a node of llama"):
        inject(hot, simulated, node=node, by="alice", now=NOW, **GOOD)


def test_outside_the_demo_drills_must_be_asked_for(
    hot: HotStore, simulated: Run, node: Node, settings: Settings
) -> None:
    settings.ALLOW_DRILLS = False

    with pytest.raises(FieldError, match="TRNWATCH_ALLOW_DRILLS"):
        inject(hot, simulated, node=node, by="alice", now=NOW, **GOOD)


def test_faults_long_past_leave_the_plan(hot: HotStore, simulated: Run, node: Node) -> None:
    fault = inject(hot, simulated, node=node, by="", now=NOW, **GOOD)

    publish_plan(hot, simulated, now=fault.ends_at + REMEMBER + timedelta(seconds=1))

    assert plan_in(hot).faults == ()


def test_a_redis_that_lost_everything_is_reported_again(hot: HotStore, simulated: Run) -> None:
    clock = {"tick": int(time.time()), "phase": "training"}
    simulated.clock = {"llama/0": clock}
    simulated.save()

    publish_plans(hot, now=NOW)

    assert plan_in(hot) == plan_of(simulated, [])
    assert msgspec.json.decode(hot.clock("llama/0") or b"") == clock


def test_a_clock_that_redis_still_has_is_left_alone(hot: HotStore, simulated: Run) -> None:
    hot.commit("llama/0", before=None, after=b'{"tick":5}', blocks=(), steps=None)
    simulated.clock = {"llama/0": {"tick": 1}}
    simulated.save()

    publish_plans(hot, now=NOW)

    assert hot.clock("llama/0") == b'{"tick":5}'


def test_a_run_that_is_over_is_no_longer_played(hot: HotStore, simulated: Run) -> None:
    publish_plans(hot, now=NOW)
    simulated.finished_at = NOW
    simulated.save()

    publish_plans(hot, now=NOW)

    assert hot.plans() == {}


@pytest.mark.parametrize(("tier", "is_right"), [("", False), ("hooks_only", True)])
def test_the_class_of_a_cause_is_right_where_the_run_shows_no_more(
    simulated: Run, tier: str, *, is_right: bool
) -> None:
    spec = RunSpec(**simulated.plan | {"tier": tier})
    fault = Fault(kind="efa_latency", node="llama-02", magnitude=6.0, start_s=0.0, duration_s=60.0)

    assert ("network" in previewed(spec, fault).causes) is is_right
