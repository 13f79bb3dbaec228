"""Drills: what may be injected, into what, and how the workers hear of it."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from pytest_django import Settings

from fleet.models import InjectedFault, Node, Run
from fleet.simulated.drilling import DrillError, inject
from fleet.simulated.plans import REMEMBER, plan_of, publish_plan, publish_plans
from telemetry.simulate.plan import Plan, RunSpec
from telemetry.store.hot import HotStore

NOW = datetime.now(UTC).replace(microsecond=0)
GOOD: Mapping[str, Any] = {
    "kind": "slow_core",
    "device": 17,
    "magnitude": 1.5,
    "duration_s": 120.0,
}


@pytest.fixture
def simulated(run: Run) -> Run:
    spec = RunSpec(
        name="llama",
        model="llama2-7b",
        instance="trn1.32xlarge",
        nodes=4,
        tp=8,
        seq_len=4096,
        global_batch=64,
    )
    run.plan, run.is_simulated = msgspec.to_builtins(spec), True
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
    with pytest.raises(DrillError) as refusal:
        inject(hot, simulated, node=node, by="alice", now=NOW, **{**GOOD, field: value})

    assert refusal.value.field == names
    assert InjectedFault.objects.count() == 0
    assert hot.plans() == {}


def test_a_real_run_is_never_drilled(hot: HotStore, simulated: Run, node: Node) -> None:
    simulated.is_simulated = False

    with pytest.raises(DrillError, match="only a simulated run"):
        inject(hot, simulated, node=node, by="alice", now=NOW, **GOOD)


def test_a_stranger_among_the_nodes_is_refused(hot: HotStore, simulated: Run, node: Node) -> None:
    node.run_id = None

    with pytest.raises(DrillError, match="node: llama-02 is not a node of llama"):
        inject(hot, simulated, node=node, by="alice", now=NOW, **GOOD)


def test_outside_the_demo_drills_must_be_asked_for(
    hot: HotStore, simulated: Run, node: Node, settings: Settings
) -> None:
    settings.ALLOW_DRILLS = settings.DEMO = False

    with pytest.raises(DrillError, match="TRNWATCH_ALLOW_DRILLS"):
        inject(hot, simulated, node=node, by="alice", now=NOW, **GOOD)


def test_faults_long_past_leave_the_plan(hot: HotStore, simulated: Run, node: Node) -> None:
    fault = inject(hot, simulated, node=node, by="", now=NOW, **GOOD)

    publish_plan(hot, simulated, now=fault.ends_at + REMEMBER + timedelta(seconds=1))

    assert plan_in(hot).faults == ()


def test_a_redis_that_lost_everything_is_told_again(hot: HotStore, simulated: Run) -> None:
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
