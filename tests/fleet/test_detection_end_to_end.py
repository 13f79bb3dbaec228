"""Detection through to alerts: one fault is one alert from start to end."""

from typing import Any

import pytest

from drills.playback import play_scenario
from drills.scenario import scenario_of
from fleet.simulation.scoring import Firing

pytestmark = pytest.mark.django_db

RUN = {
    "name": "llama",
    "model": "llama2-7b",
    "instance": "trn1.32xlarge",
    "nodes": 4,
    "tp": 8,
    "seq_len": 4096,
    "global_batch": 64,
    "compile_s": 0,
}


def play(
    *faults: dict[str, Any],
    duration_s: float = 400,
    benign: tuple[dict[str, Any], ...] = (),
    is_busy: bool = False,
    tier: str = "full",
    probe_on_request: bool = False,
    trace_on_request: bool = False,
    is_measured: bool = True,
    **run: Any,
) -> tuple[Firing, ...]:
    """Play a run with these faults; they begin at 120 s and last for 60 unless they say else.

    ``is_busy``: cores that wait for others count as busy. ``probe_on_request``: agents answer
    requested probes. ``trace_on_request``: workers trace when an alert asks. Without
    ``is_measured`` steps hardly vary.
    """
    apart = {
        "busy_while_waiting": is_busy,
        "probe_on_request": probe_on_request,
        "trace_on_request": trace_on_request,
    }
    usual = {"start_s": 120.0, "duration_s": 60.0}
    table = {
        "name": "lives",
        "duration_s": duration_s,
        "seed": 3,
        "inputs": {"tier": tier, **apart},
        "noise": {"measured": is_measured},
        "run": [RUN | run],
        "fault": [usual | fault for fault in faults],
        "benign": [{"run": "llama"} | event for event in benign],
    }
    return play_scenario(scenario_of(table)).firings


def crash(node: int = 1, **more: Any) -> dict[str, Any]:
    return {"kind": "node_crash", "node": f"llama-{node:02d}"} | more


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_crash_its_hang_and_its_restart_are_one_alert(*, is_busy: bool) -> None:
    (firing,) = play(crash(), duration_s=300, is_busy=is_busy)
    assert (firing.rule, firing.cause, firing.node) == ("node_silent", "node_crash", "llama-01")
    assert firing.resolved_s is not None
    assert 236 <= firing.resolved_s <= 245


@pytest.mark.parametrize(("tier", "is_busy"), [("agent_only", True), ("prometheus_15s", False)])
def test_a_crash_is_one_alert_where_reports_are_seldom(tier: str, *, is_busy: bool) -> None:
    (firing,) = play(crash(duration_s=200.0), tier=tier, is_busy=is_busy)
    assert (firing.rule, firing.cause, firing.node) == ("node_silent", "node_crash", "llama-01")
    assert firing.fired_s <= 120 + 90


def test_a_crashed_node_that_reports_again_without_its_run_is_still_crashed() -> None:
    (firing,) = play(crash(0, duration_s=105.0), duration_s=300, tier="agent_trace", nodes=1)
    assert (firing.rule, firing.cause, firing.node) == ("node_silent", "node_crash", "llama-00")
    # The first report, at 228 s, has no rates; the job restarts at 240 s and compiles 1 s later.
    assert firing.resolved_s == 241


@pytest.mark.parametrize("tier", ["agent_only", "prometheus_15s"])
def test_the_end_of_an_announced_compile_is_no_recompile(tier: str) -> None:
    announced = {"kind": "planned_compile", "start_s": 200.0, "duration_s": 90.0}
    assert play(benign=(announced,), tier=tier, is_busy=True) == ()


def test_a_slow_checkpoint_before_the_step_time_is_known_has_no_alert_of_its_own() -> None:
    slow = {"kind": "checkpoint_slow", "run": "llama", "start_s": 40.0, "magnitude": 30.0}
    found = play(slow | {"duration_s": 250.0}, duration_s=300, tier="agent_only")
    assert "checkpoint_slow" not in {firing.rule for firing in found}


@pytest.mark.parametrize(("duration_s", "resolved_s"), [(60.0, 240), (200.0, 321)])
def test_a_crash_that_ends_the_run_is_over_once_the_node_is_heard_of(
    duration_s: float, resolved_s: float
) -> None:
    (firing,) = play(crash(duration_s=duration_s), restarts=False)
    assert firing.cause == "node_crash"
    assert firing.resolved_s == pytest.approx(resolved_s, abs=4)


def test_memory_errors_far_apart_are_one_alert() -> None:
    sick = {
        "kind": "ecc_uncorrected",
        "node": "llama-01",
        "device": 5,
        "magnitude": 0.08,
        "duration_s": 400.0,
    }
    (firing,) = play(sick, duration_s=500, nodes=2)
    assert (firing.rule, firing.node, firing.device) == ("ecc_uncorrected", "llama-01", 5)
    assert (firing.fired_s, firing.resolved_s) == (121, None)


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_hang_while_another_node_is_mute_is_two_alerts(*, is_busy: bool) -> None:
    mute = {"kind": "node_silent", "node": "llama-02", "start_s": 100.0, "duration_s": 120.0}
    hanging = {"kind": "hang", "node": "llama-01"}
    found = play(hanging, mute, duration_s=300, is_busy=is_busy)
    assert {(each.rule, each.cause, each.node) for each in found} == {
        ("hang", "hang", "llama-01"),
        ("node_silent", "node_silent", "llama-02"),
    }
    assert len(found) == 2


def test_a_silent_node_whose_run_compiles_on_purpose_has_not_crashed() -> None:
    mute = {"kind": "node_silent", "node": "llama-02", "duration_s": 150.0}
    announced = {"kind": "planned_compile", "start_s": 115.0, "duration_s": 120.0}
    (firing,) = play(mute, benign=(announced,), duration_s=360)
    assert (firing.rule, firing.cause) == ("node_silent", "node_silent")


def test_nothing_is_reported_of_nodes_that_come_and_go_nor_of_a_run_that_is_over() -> None:
    events = (
        {"kind": "node_joins", "node": "llama-03", "start_s": 120.0},
        {"kind": "node_leaves", "node": "llama-02", "start_s": 260.0},
    )
    assert play(benign=events, duration_s=420) == ()
    assert play(max_steps=60, duration_s=360) == ()


SLOW_LINK = {"kind": "efa_latency", "node": "llama-01", "device": 3, "magnitude": 8.0}


@pytest.mark.parametrize(("tier", "named_after_s"), [("agent_collectives", 33)])
def test_a_slow_link_is_placed_by_requested_probes(tier: str, named_after_s: float) -> None:
    fault = SLOW_LINK | {"duration_s": 150.0}
    (unplaced,) = play(fault, tier=tier, duration_s=270)
    assert unplaced.cause in {"network", "unknown"}
    assert (unplaced.node, unplaced.located_s) == (None, None)

    (placed,) = play(fault, tier=tier, probe_on_request=True)
    assert (placed.cause, placed.node, placed.device) == ("efa_latency", "llama-01", 3)
    assert placed.fired_s == unplaced.fired_s
    assert placed.located_s is not None
    assert 0 < placed.located_s - placed.fired_s <= named_after_s
    assert placed.resolved_s is not None


def test_requested_probes_accuse_no_node_of_a_slow_fabric() -> None:
    fault = {"kind": "efa_latency", "run": "llama", "magnitude": 8.0, "duration_s": 150.0}
    firings = play(fault, tier="agent_collectives", probe_on_request=True)
    assert [(each.cause, each.accused) for each in firings] == [("network", ())]


def test_a_slow_node_is_placed_by_a_requested_trace() -> None:
    fault = {"kind": "throttle", "node": "llama-02", "device": 3, "magnitude": 1.5}
    fault |= {"duration_s": 240.0}
    of_eight: dict[str, Any] = {"nodes": 8, "global_batch": 128}
    (unplaced,) = play(fault, tier="hooks_only", duration_s=360, **of_eight)
    assert (unplaced.cause, unplaced.node) == ("unknown", None)

    # What workers did before is not known, but who is late now.
    (traced,) = play(fault, tier="hooks_only", trace_on_request=True, **of_eight)
    assert traced.rule == "step_slow"
    assert traced.node == "llama-02"
    assert traced.fired_s == unplaced.fired_s
    assert traced.resolved_s is not None
    assert 350 <= traced.resolved_s <= 400


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "seq_imbalance", "run": "llama", "magnitude": 0.5},
        {"kind": "efa_latency", "node": "llama-01", "device": 3, "magnitude": 12.0},
        {"kind": "throttle", "run": "llama", "magnitude": 1.5},
    ],
    ids=lambda fault: str(fault["kind"]),
)
def test_a_requested_trace_accuses_no_node_of_what_all_workers_share(
    fault: dict[str, Any],
) -> None:
    fault |= {"duration_s": 240.0}
    firings = play(fault, tier="hooks_only", nodes=8, global_batch=128, trace_on_request=True)
    assert [(each.rule, each.accused) for each in firings] == [("step_slow", ())]


def test_a_run_that_is_usually_just_below_its_limit_is_alerted_only_for_a_fault() -> None:
    near: dict[str, Any] = {"model": "mpt-1b", "nodes": 8, "global_batch": 128, "seq_len": 2048}
    uneven = {"kind": "seq_imbalance", "run": "llama", "magnitude": 0.3}
    uneven |= {"start_s": 400.0, "duration_s": 120.0}
    # Of steps that hardly vary a minute shows that they are below the limit.
    (firing,) = play(
        uneven, tier="agent_collectives", duration_s=700, is_busy=True, is_measured=False, **near
    )
    assert (firing.rule, firing.cause) == ("allreduce_share", "seq_imbalance")
    assert 400 <= firing.fired_s <= 415
    # Its share is never below the lower limit; a minute below the limit ends the alert.
    assert firing.resolved_s is not None
    assert firing.resolved_s <= 520 + 75
