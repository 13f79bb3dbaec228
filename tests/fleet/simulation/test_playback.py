"""Playback: detection reads the same from a scenario as from the store."""

import msgspec
import numpy as np
import pytest

from drills.playback import KEEP_S, ScenarioPlayback, phases
from telemetry.simulate.inputs import tier_named
from telemetry.simulate.plan import Benign, Fault, Plan, RunSpec
from telemetry.simulate.shard import clock_at, start_clock
from telemetry.store.hot import HotStore

EPOCH = 1_767_225_600
SPEC = RunSpec(
    name="tiny",
    model="llama3.1-8b",
    instance="trn2.48xlarge",
    nodes=4,
    tp=8,
    seq_len=4096,
    global_batch=64,
    compile_s=0,
)
SILENT = Fault(kind="node_silent", node="tiny-02", start_s=100, duration_s=60)
METRICS = ("core_utilization_ratio", "efa_latency_s", "mem_ecc_uncorrected")


@pytest.fixture
def plan() -> Plan:
    return Plan(run=SPEC, seed=3, epoch_s=EPOCH, faults=(SILENT,), shard_size=3)


@pytest.fixture
def played(plan: Plan) -> ScenarioPlayback:
    """Play four minutes in two stretches, and stand in the middle of the silence."""
    made = ScenarioPlayback([plan])
    made.play(EPOCH + 120)
    made.play(EPOCH + 240)
    made.turn_to(EPOCH + 130)
    return made


def test_a_report_between_two_stretches_is_no_gap(plan: Plan) -> None:
    inputs = tier_named("agent_hooks")
    made = ScenarioPlayback([msgspec.structs.replace(plan, faults=(), inputs=inputs)])
    for until in (120, 240):
        made.play(EPOCH + until)
    made.turn_to(EPOCH + 200)
    span = made.window(plan.shards, ["vcpu_usage_ratio"], start=EPOCH + 100, end=EPOCH + 140)
    assert np.isfinite(span.values["vcpu_usage_ratio"]).all()


def test_it_is_read_as_the_hot_store_would_be(
    played: ScenarioPlayback, plan: Plan, hot: HotStore
) -> None:
    other = ScenarioPlayback([plan])
    other.play(EPOCH + 130)
    playback = other.acts["tiny"].playback
    assert playback is not None
    hot.now = lambda: EPOCH + 130.0
    hot.append(playback.window((), start=EPOCH, end=EPOCH + 130).blocks())
    hot.append_steps(playback.steps("tiny", since_s=0))
    start, end = EPOCH + 60, EPOCH + 130

    mine, stored = (
        played.window(plan.shards, METRICS, start=start, end=end),
        hot.window("tiny/0", METRICS, start=start, end=end),
    )

    assert mine.nodes == stored.of(mine.nodes).nodes
    for name in METRICS:
        np.testing.assert_array_equal(mine.values[name], stored.of(mine.nodes).values[name])
    assert played.last_seen() == hot.last_seen()


def test_nothing_to_come_can_be_read(played: ScenarioPlayback) -> None:
    span = played.window("tiny/0", METRICS, start=EPOCH + 125, end=EPOCH + 140)
    steps = played.steps("tiny", since_s=0)

    assert np.isfinite(span.values["core_utilization_ratio"][:6, 0]).all()
    assert np.isnan(span.values["core_utilization_ratio"][6:]).all()
    assert steps.ended_at_s[-1] <= EPOCH + 130
    assert played.newest_step_at("tiny") == steps.ended_at_s[-1]


def test_a_silent_node_was_seen_at_its_last_report(played: ScenarioPlayback) -> None:
    seen = played.last_seen()

    assert seen["tiny-02"] == EPOCH + 100
    assert seen["tiny-01"] == EPOCH + 130


def test_a_node_that_never_reported_was_never_seen() -> None:
    joins = Benign(kind="node_joins", run="tiny", node="tiny-03", start_s=200)
    played = ScenarioPlayback([Plan(run=SPEC, seed=3, epoch_s=EPOCH, benign=(joins,))])
    played.play(EPOCH + 60)
    played.turn_to(EPOCH + 60)

    assert "tiny-03" not in played.last_seen()


def test_it_forgets_what_the_store_would_have_forgotten(plan: Plan) -> None:
    played = ScenarioPlayback([plan])
    for until in range(300, 1800, 300):
        played.play(EPOCH + until)
    now = EPOCH + 1500
    played.turn_to(now)

    old = played.window("tiny/0", METRICS, start=now - KEEP_S - 30, end=now - KEEP_S - 10)

    assert old.nodes == ()
    assert played.steps("tiny", since_s=0).ended_at_s[0] > now - KEEP_S - 400


def test_a_metric_that_no_rule_reads_is_refused(played: ScenarioPlayback) -> None:
    with pytest.raises(ValueError, match="core_flops_per_s"):
        played.window("tiny/0", ["core_flops_per_s"], start=EPOCH, end=EPOCH + 1)


def test_runs_are_kept_apart(plan: Plan) -> None:
    other = Plan(run=RunSpec(**(SPEC_FIELDS | {"name": "other"})), seed=4, epoch_s=EPOCH)
    played = ScenarioPlayback([plan, other])
    played.play(EPOCH + 60)
    played.turn_to(EPOCH + 60)

    assert (
        played.window("other/0", METRICS, start=EPOCH + 50, end=EPOCH + 60).nodes[0] == "other-00"
    )
    assert played.window((), METRICS, start=EPOCH, end=EPOCH + 1).nodes == ()
    assert set(played.newest()) == {"tiny/0", "tiny/1", "other/0"}
    assert len(played.steps("missing", since_s=0)) == 0


SPEC_FIELDS = {name: getattr(SPEC, name) for name in RunSpec.__struct_fields__}


def test_every_phase_is_entered_at_its_second() -> None:
    compiles = Benign(kind="planned_compile", run="tiny", start_s=100, duration_s=30)
    plan = Plan(run=SPEC, seed=3, epoch_s=EPOCH, benign=(compiles,))
    before = start_clock(plan)
    after = clock_at(plan, before, EPOCH + 300)

    entered = [(c.phase, c.tick) for c in phases(plan, before, after)]

    assert [phase for phase, _ in entered] == [
        "warming_up",
        "training",
        "compiling",
        "warming_up",
        "training",
    ]
    for phase, tick in entered:
        assert clock_at(plan, before, tick).phase == phase
        assert clock_at(plan, before, tick - 1).phase != phase
