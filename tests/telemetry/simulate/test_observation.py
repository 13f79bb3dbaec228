"""Input tiers: what of a simulated run is observed, and when."""

from typing import Any

import msgspec
import numpy as np
import pytest

from drills.observation import (
    ACTIVITIES,
    HEARTBEAT_EVERY_S,
    arrival_s,
    arrived_until,
    newest_heartbeats,
    observed,
    played_activities,
    report_phases,
)
from drills.scenario import load_scenario
from telemetry.blocks import Span
from telemetry.errors import FieldError
from telemetry.simulate.inputs import FULL, TIERS, Inputs
from telemetry.simulate.plan import Fault, Plan
from telemetry.simulate.shard import play, start_clock
from telemetry.steps import StepBatch
from tests.telemetry.simulate.played import SMALL

NODES = tuple(f"n-{i}" for i in range(8))
TICKS = np.arange(1000, 1250)


def counted(name: str = "efa_tx_bytes_per_s") -> Span:
    """A metric whose value is its second, the same for all nodes."""
    values = np.broadcast_to(TICKS[:, None, None], (len(TICKS), len(NODES), 2)).astype(float)
    return Span("s", TICKS, NODES, {name: values.copy()})


def test_every_tier_of_the_design_is_there() -> None:
    assert list(TIERS) == [
        "full",
        "agent_collectives",
        "agent_trace",
        "agent_hooks",
        "hooks_only",
        "agent_only",
        "prometheus_15s",
    ]


def test_a_report_holds_the_mean_of_its_period_and_arrives_when_it_ends() -> None:
    inputs = TIERS["agent_hooks"]
    phases = report_phases(1, NODES)
    assert len(set((phases % 5).tolist())) > 1

    seen = observed(inputs, counted(), phases).values["efa_tx_bytes_per_s"]

    for node, phase in enumerate(phases):
        end = int(1100 + (phase - 1100) % 5)
        rows = slice(end - 4 - 1000, end + 1 - 1000)
        assert seen[rows, node].tolist() == [[end - 2.0] * 2] * 5
        assert arrived_until(inputs, phases, end)[node] == end
        assert arrived_until(inputs, phases, end + 4)[node] == end


def test_power_is_the_mean_of_the_minute_before() -> None:
    inputs, phases = TIERS["agent_collectives"], report_phases(1, NODES)

    seen = observed(inputs, counted("device_power_ratio"), phases).values["device_power_ratio"]

    for node, phase in enumerate(phases):
        end = int(1120 + (phase - 1120) % 60)
        assert seen[end + 1 - 1000 : end + 61 - 1000, node, 0].tolist() == [end - 29.5] * 60


def test_a_silent_node_reports_no_power() -> None:
    inputs, phases = TIERS["agent_collectives"], report_phases(1, NODES)
    truth = counted("device_power_ratio")
    truth.values["device_power_ratio"][-30:, 0] = np.nan

    seen = observed(inputs, truth, phases).values["device_power_ratio"]

    assert np.isnan(seen[-30:, 0]).all()
    assert np.isfinite(seen[-30:, 1]).all()


def test_an_exporter_shows_gauges_of_its_last_period_and_rates_between_scrapes() -> None:
    inputs, phases = TIERS["prometheus_15s"], report_phases(1, NODES)
    end = int(1100 + (phases[0] - 1100) % 15)

    rate = observed(inputs, counted(), phases).values["efa_tx_bytes_per_s"]
    gauge = observed(inputs, counted("vcpu_usage_ratio"), phases).values["vcpu_usage_ratio"]

    assert rate[end - 1000, 0, 0] == end - 7
    assert gauge[end - 1000, 0, 0] == end - 2
    assert arrived_until(inputs, phases, end)[0] == end - 15
    assert arrived_until(inputs, phases, end + 5)[0] == end


def test_a_report_without_all_of_its_seconds_is_a_gap() -> None:
    inputs, phases = TIERS["agent_hooks"], report_phases(1, NODES)
    span = counted()
    end = int(1100 + (phases[0] - 1100) % 5)
    span.values["efa_tx_bytes_per_s"][end - 2 - 1000, 0] = np.nan

    seen = observed(inputs, span, phases).values["efa_tx_bytes_per_s"][:, 0, 0]

    assert np.isnan(seen[end - 4 - 1000 : end + 1 - 1000]).all()
    assert np.isfinite(seen[[end - 5 - 1000, end + 1 - 1000]]).all()


def test_a_node_that_falls_silent_does_not_report_the_period_in_progress() -> None:
    inputs, phases = TIERS["agent_trace"], report_phases(1, NODES)
    span = counted("execution_latency_p50_s")
    end = int(1100 + (phases[0] - 1100) % 5)
    span.values["execution_latency_p50_s"][end - 1 - 1000 :, 0] = np.nan

    seen = observed(inputs, span, phases).values["execution_latency_p50_s"][:, :, 0]

    assert np.isnan(seen[end - 4 - 1000 :, 0]).all()
    assert np.isfinite(seen[[end - 5 - 1000], 0]).all()
    assert np.isfinite(seen[end - 1000, 1])


def test_a_probe_is_held_until_the_next_one() -> None:
    inputs = TIERS["agent_hooks"]
    phases = report_phases(1, NODES)

    seen = observed(inputs, counted("efa_latency_s"), phases).values["efa_latency_s"]

    known = [np.unique(seen[80:180, node][np.isfinite(seen[80:180, node])]) for node in range(8)]
    assert all(2 <= len(values) <= 3 for values in known)
    assert all(set(np.diff(values)) == {60.0} for values in known)


@pytest.mark.parametrize("tier", [name for name in TIERS if name != "full"])
def test_no_real_node_reports_hbm_bandwidth(tier: str) -> None:
    inputs = TIERS[tier]
    seen = observed(inputs, counted("hbm_bandwidth_bytes_per_s"), report_phases(1, NODES))

    assert not seen.values


def test_without_an_agent_no_hardware_is_seen() -> None:
    inputs = TIERS["hooks_only"]

    assert not observed(inputs, counted(), report_phases(1, NODES)).values


def test_hooks_do_not_know_what_is_waiting_and_what_transferring() -> None:
    plan = Plan(run=SMALL, seed=3, epoch_s=1000)
    full = play(plan, plan.shards[0], start_clock(plan), 1120).steps
    hooked = msgspec.structs.replace(plan, inputs=TIERS["agent_hooks"])
    seen = play(hooked, plan.shards[0], start_clock(plan), 1120).steps

    assert len(full) == len(seen) > 0
    assert np.isnan(seen.phases["wait_s"]).all()
    assert np.isnan(seen.phases["transfer_s"]).all()
    np.testing.assert_allclose(seen.step_s, full.step_s, rtol=1e-5)


def test_sparse_collectives_are_timed_in_every_twentieth_step() -> None:
    sparse = msgspec.structs.replace(TIERS["agent_hooks"], collective="every_20")
    plan = Plan(run=SMALL, seed=3, epoch_s=1000, inputs=sparse)
    steps = play(plan, plan.shards[0], start_clock(plan), 1240).steps

    is_timed = np.isfinite(steps.phases["transfer_s"]).all(axis=1)
    assert (is_timed == (steps.step % 20 == 0)).all()
    assert is_timed.any()


SCENARIO = """
name = "tiers"
duration_s = 60
[[run]]
name = "tiny"
model = "llama3.1-8b"
instance = "trn2.48xlarge"
nodes = 2
tp = 8
seq_len = 4096
global_batch = 64
[inputs]
"""


def test_a_file_names_a_tier_or_sets_inputs_one_by_one() -> None:
    assert load_scenario(SCENARIO + 'tier = "agent_hooks"').inputs == TIERS["agent_hooks"]
    changed = load_scenario(SCENARIO + 'tier = "agent_hooks"\nprobe_every_s = 0').inputs
    assert (changed.tier, changed.probe_every_s, changed.agent_every_s) == ("custom", 0, 5)
    assert not changed.probe_on_request
    scenario = load_scenario(SCENARIO + 'tier = "agent_trace"\nprobe_on_request = true')
    assert scenario.inputs == msgspec.structs.replace(TIERS["agent_trace"], probe_on_request=True)
    assert scenario.at_tier("agent_collectives").inputs.probe_on_request


@pytest.mark.parametrize(
    ("line", "field", "remedy"),
    [
        ('tier = "agent"', "inputs.tier", "choose one of full"),
        ("hbm_bandwith = true", "inputs.hbm_bandwith", "did you mean 'hbm_bandwidth'"),
        ('collective = "each"', "inputs.collective", "'each'"),
        ("lost_ratio = 2", "inputs.lost_ratio", "2"),
        ("agent_every_s = 3", "inputs.agent_every_s", "unknown key"),
        ("probe_on_request = 1", "inputs.probe_on_request", "1"),
        (
            'tier = "hooks_only"\nprobe_on_request = true',
            "inputs.probe_on_request",
            "hooks_only has none; choose agent_collectives",
        ),
        (
            'tier = "agent_only"\ntrace_on_request = true',
            "inputs.trace_on_request",
            "agent_only has none; choose agent_hooks",
        ),
    ],
)
def test_wrong_inputs_are_refused_by_name(line: str, field: str, remedy: str) -> None:
    with pytest.raises(FieldError) as refusal:
        load_scenario(SCENARIO + line)

    assert refusal.value.field == field
    assert remedy in str(refusal.value)


def played(inputs: Inputs, **run: Any) -> tuple[Plan, StepBatch]:
    spec = msgspec.structs.replace(SMALL, **run)
    plan = Plan(run=spec, seed=3, epoch_s=1000, inputs=inputs)
    return plan, play(plan, plan.shards[0], start_clock(plan), 1300).steps


def test_a_step_is_known_when_the_last_worker_has_sent_it() -> None:
    inputs = msgspec.structs.replace(TIERS["agent_collectives"], clock_skew_s=0, report_every_s=5)
    plan, steps = played(inputs)

    waits_s = arrival_s(plan, steps) - steps.ended_at_s
    assert waits_s.min() > 0
    assert waits_s.max() <= 5.2
    # Three workers that send in turn: the last one's turn is later than a mean turn.
    assert waits_s.mean() > 2.5


def test_clocks_that_are_off_move_when_a_step_ended_and_nothing_else() -> None:
    right = msgspec.structs.replace(TIERS["agent_collectives"], clock_skew_s=0)
    (plan, true), (skewed_plan, steps) = played(right), played(TIERS["agent_collectives"])

    off_s = steps.ended_at_s - true.ended_at_s
    assert np.ptp(off_s) < 1e-6
    assert 0 < abs(off_s[0]) <= 2
    np.testing.assert_allclose(arrival_s(plan, true), arrival_s(skewed_plan, steps))
    np.testing.assert_array_equal(steps.phases["wait_s"], true.phases["wait_s"])


def test_a_lost_report_leaves_its_worker_unknown_and_its_step_waits_for_it() -> None:
    inputs = msgspec.structs.replace(TIERS["agent_collectives"], lost_ratio=0.1)
    plan, steps = played(inputs)

    is_lost = np.isnan(steps.phases["compute_s"])
    assert is_lost.mean() == pytest.approx(0.1, abs=0.03)
    # The one that waited least of those who reported transfers all the time.
    least_s = np.nanmin(steps.phases["wait_s"][~is_lost.all(axis=1)], axis=1)
    np.testing.assert_array_equal(least_s, 0)
    late_s = arrival_s(plan, steps) - steps.ended_at_s
    is_whole = ~is_lost.any(axis=1)
    assert late_s[~is_whole & ~is_lost.all(axis=1)].min() > late_s[is_whole].max() + 5


def test_a_runtime_trace_shows_waits_but_not_which_transfer_is_exposed() -> None:
    _, full = played(FULL)
    _, traced = played(TIERS["agent_trace"])

    np.testing.assert_array_equal(traced.phases["wait_s"], full.phases["wait_s"])
    np.testing.assert_allclose(
        traced.phases["compute_s"],
        full.phases["compute_s"] + full.phases["transfer_s"],
        rtol=1e-5,
    )
    assert (traced.phases["transfer_s"] == 0).all()
    assert np.isnan(traced.phases["input_s"]).all()
    np.testing.assert_allclose(traced.step_s, full.step_s, rtol=1e-5)


def doing(*faults: Fault, until_s: int = 300) -> tuple[Plan, Any]:
    plan = Plan(run=SMALL, seed=3, epoch_s=1000, inputs=TIERS["hooks_only"], faults=tuple(faults))
    return plan, played_activities(plan, start_clock(plan), 1000 + until_s)


def test_workers_say_that_they_compile_input_or_save() -> None:
    faults = (
        Fault(kind="recompile", run=SMALL.name, start_s=100, duration_s=1, magnitude=30),
        Fault(
            kind="input_stall", node=SMALL.node_names[1], start_s=160, duration_s=40, magnitude=9
        ),
        Fault(kind="checkpoint_slow", run=SMALL.name, start_s=240, duration_s=1, magnitude=20),
    )
    _, codes = doing(*faults)
    said = np.array(ACTIVITIES)[codes]

    assert set(said[115]) == {"compile"}
    assert {"input", "step"} <= set(said[170:190, 1])
    assert set(said[170:190, 0]) == {"step"}
    assert "checkpoint" in said[241:260, 0]


def test_a_crashed_node_sends_no_heartbeat() -> None:
    crash = Fault(kind="node_crash", node=SMALL.node_names[1], start_s=200, duration_s=90)
    plan, codes = doing(crash)
    ticks = np.arange(1000, 1270)
    newest = newest_heartbeats(plan, ticks, codes[:270] >= 0)[-1]

    assert 1200 - HEARTBEAT_EVERY_S <= ticks[newest[1]] < 1200
    assert min(ticks[newest[[0, 2]]]) > 1269 - HEARTBEAT_EVERY_S
