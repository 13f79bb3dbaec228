"""Simulated faults, end to end: each is found in a few steps, then its cause and its culprit."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from telemetry.detect import Finding, find
from telemetry.detect.causes import CLASS_OF, UNKNOWN
from telemetry.detect.hardware import BLOCK_S
from telemetry.simulate.plan import Fault
from tests.telemetry.detect.played import EPOCH, Recording, record

START_S, LASTS_S, LOOK_ON_S = 130, 240, 25
# Steps begin before a fault, hardware is compared in blocks: until each says it, and says why.
STEPS, BLOCKS = 3, 2
# Magnitudes that lift the share of every run of RUNS above its limit, small and large.
MAGNITUDES = {
    "slow_core": (1.4, 3.0),
    "hbm_slow": (0.55, 0.25),
    "efa_latency": (4.0, 10.0),
    "efa_loss": (0.005, 0.1),
}


def play(run: str, fault: Fault, *, seed: int = 7, **more: Any) -> Recording:
    return record(run, duration_s=START_S + LASTS_S, seed=seed, faults=[fault], **more)


def fault_of(
    kind: str, magnitude: float, *, node: str = "run-02", device: int | None = 5
) -> Fault:
    return Fault(
        kind=kind,
        node=node,
        device=device,
        start_s=START_S,
        duration_s=LASTS_S,
        magnitude=magnitude,
    )


def alerts(recording: Recording) -> list[tuple[int, Finding]]:
    """Return what is found, from the run's first steps until a while after the fault began."""
    until = min(START_S + LASTS_S, int(recording.breaks_at_s) + LOOK_ON_S)
    watched = recording.watch(range(20, until))
    return [(second, finding) for second, found in watched for finding in found]


def seen_within_s(recording: Recording) -> float:
    return max(STEPS * float(np.median(recording.steps.step_s)), BLOCKS * BLOCK_S)


def is_of(finding: Finding, cause: str, node: str | None) -> bool:
    """Whether a finding names the cause or its class, and its node or none."""
    causes = {cause, CLASS_OF.get(cause), UNKNOWN}
    return finding.cause in causes and finding.node in {node, None}


@pytest.mark.parametrize("run", ["trn1", "trn2", "p5"])
@pytest.mark.parametrize(
    ("kind", "magnitude"), [(kind, each) for kind, both in MAGNITUDES.items() for each in both]
)
def test_it_is_found_in_a_few_steps_and_then_its_cause_and_culprit(
    run: str, kind: str, magnitude: float
) -> None:
    recording = play(run, fault_of(kind, magnitude))
    found = alerts(recording)
    (second, first), (_, last) = found[0], found[-1]
    step_s = float(np.median(recording.steps.step_s))
    cause = expected_cause(kind, run)

    assert START_S < second <= recording.breaks_at_s + seen_within_s(recording)
    assert all(is_of(finding, cause, "run-02") for _, finding in found)
    assert {(f.cause, f.node, f.device) for s, f in found if s > second + BLOCK_S} == {
        (cause, "run-02", 5)
    }
    assert abs(first.onset_s - EPOCH - START_S) <= max(step_s, BLOCK_S)
    assert (last.rule, last.severity) == ("allreduce_share", "page")
    assert last.score > 1
    assert set(last.victims) == set(recording.plan.run.node_names) - {"run-02"}
    assert last.evidence["step_s"] > last.evidence["baseline_step_s"]
    waits = kind in {"slow_core", "hbm_slow"}
    assert last.evidence["kind"] == ("waiting" if waits else "transferring")


@pytest.mark.parametrize(
    ("kind", "run", "magnitude", "device"),
    [
        ("efa_down", "p5", 1.0, 30),
        ("efa_down", "trn1", 1.0, 0),
        ("throttle", "trn1", 1.8, 15),
        ("throttle", "trn2", 1.6, 0),
        ("input_stall", "trn1", 2.0, None),
        ("input_stall", "trn2", 1.5, None),
        ("input_stall", "p5", 0.5, None),
    ],
)
def test_so_are_the_others_that_can_lift_the_share(
    kind: str, run: str, magnitude: float, device: int | None
) -> None:
    recording = play(run, fault_of(kind, magnitude, device=device))
    found = alerts(recording)
    second, cause = found[0][0], expected_cause(kind, run)
    assert second <= recording.breaks_at_s + seen_within_s(recording)
    # Hardware may take some seconds to show what the share shows at once.
    assert all(is_of(finding, cause, "run-02") for _, finding in found)
    assert {(f.cause, f.node, f.device) for s, f in found if s > second + BLOCK_S} == {
        (cause, "run-02", device)
    }


@pytest.mark.parametrize(
    ("kind", "run", "magnitude"),
    [
        ("slow_core", "trn1", 1.8),
        ("slow_core", "trn2", 3.0),
        ("throttle", "trn2", 1.6),
        ("hbm_slow", "trn1", 0.4),
    ],
)
def test_where_waiting_cores_are_busy_the_node_is_named(
    kind: str, run: str, magnitude: float
) -> None:
    found = alerts(play(run, fault_of(kind, magnitude), is_busy=True))
    assert all(is_of(finding, kind, "run-02") for _, finding in found)
    last = found[-1][1]
    # Memory shows which device it is; busy cores show nothing.
    named = ("hbm_slow", 5) if kind == "hbm_slow" else ("slow_compute", None)
    assert (last.node, last.cause, last.device) == ("run-02", *named)


def expected_cause(kind: str, run: str) -> str:
    """Name a slow core as detection does: on an accelerator of one core it is the accelerator."""
    return "throttle" if (kind, run) == ("slow_core", "p5") else kind


@pytest.mark.parametrize(("pp", "batch"), [(4, 64), (2, 256)])
def test_a_long_stage_blames_no_machine(pp: int, batch: int) -> None:
    fault = fault_of("stage_imbalance", 0.9, device=None)
    found = alerts(play("staged", fault, pp=pp, global_batch=batch))
    assert {(f.cause, f.node, f.device) for _, f in found} == {("stage_imbalance", None, None)}


@pytest.mark.parametrize("run", ["trn2", "p5"])
def test_uneven_sequences_blame_no_machine(run: str) -> None:
    fault = Fault(
        kind="seq_imbalance", run="run", start_s=START_S, duration_s=LASTS_S, magnitude=1.5
    )
    found = [finding for _, finding in alerts(play(run, fault))]
    assert {f.node for f in found} == {None}
    assert found[-1].cause == "seq_imbalance"


@pytest.mark.parametrize(("kind", "magnitude"), [("efa_latency", 6.0), ("efa_loss", 0.02)])
def test_a_sick_fabric_blames_no_machine(kind: str, magnitude: float) -> None:
    fault = Fault(kind=kind, run="run", start_s=START_S, duration_s=LASTS_S, magnitude=magnitude)
    found = [finding for _, finding in alerts(play("trn2", fault))]
    assert {(f.node, f.device) for f in found} == {(None, None)}
    assert {f.cause for f in found} <= {kind, "network"}
    assert found[-1].cause == kind


@pytest.mark.parametrize(("kind", "magnitude"), [("throttle", 1.4), ("hbm_slow", 0.6)])
def test_what_all_machines_have_accuses_none(kind: str, magnitude: float) -> None:
    """A lower clock moves as many bytes a step, slower memory fewer."""
    fault = Fault(kind=kind, run="run", start_s=START_S, duration_s=LASTS_S, magnitude=magnitude)
    recording = play("trn2", fault)
    found = [f for _, each in recording.watch(range(20, START_S + 60)) for f in each]
    assert {(f.node, f.device) for f in found} == {(None, None)}
    assert all(is_of(finding, kind, None) for finding in found)
    assert found[-1].cause == kind


@pytest.mark.parametrize(
    ("kind", "magnitude"), [("hbm_slow", 0.4), ("throttle", 1.8), ("slow_core", 1.8)]
)
def test_the_slow_accelerator_of_a_node_with_only_one_is_named_by_its_class_at_least(
    kind: str, magnitude: float
) -> None:
    small: dict[str, Any] = {
        "model": "bert-large",
        "instance": "trn1.2xlarge",
        "nodes": 4,
        "tp": 1,
    }
    small |= {"seq_len": 512, "global_batch": 1024}
    found = [f for _, f in alerts(play("trn1", fault_of(kind, magnitude, device=0), **small))]
    # Steps of eleven seconds say who is late; blocks of hardware are parts of them, and scatter.
    assert all(is_of(f, kind, "run-02") for f in found)
    assert found[-1].node == "run-02"
    assert found[-1].cause in {kind, CLASS_OF[kind]}


def test_the_only_accelerator_of_a_node_is_shown_next_to_those_of_other_nodes() -> None:
    small: dict[str, Any] = {"model": "bert-large", "instance": "trn1.2xlarge", "nodes": 8}
    small |= {"tp": 1, "seq_len": 128, "global_batch": 16384}
    found = [f for _, f in alerts(play("trn1", fault_of("hbm_slow", 0.46, device=0), **small))]
    culprits = [f.evidence["culprit"] for f in found if f.cause == "hbm_slow"]
    assert {each["n_peers"] for each in culprits} == {7}
    assert culprits[-1]["value"] < 0.8 * culprits[-1]["peers_median"]


@pytest.mark.parametrize(
    ("kind", "magnitude"),
    [("slow_core", 2.5), ("hbm_slow", 0.2), ("efa_latency", 6.0), ("efa_loss", 0.05)],
)
def test_two_nodes_are_enough_to_find_the_worse(kind: str, magnitude: float) -> None:
    fault = fault_of(kind, magnitude, node="run-01")
    found = alerts(play("trn1", fault, nodes=2, global_batch=32))
    assert {(f.cause, f.node, f.device) for _, f in found} == {(kind, "run-01", 5)}


def test_of_two_slow_cores_the_worse_is_named_and_then_the_other() -> None:
    faults = [
        msgspec.structs.replace(fault_of("slow_core", 1.9), duration_s=60),
        fault_of("slow_core", 1.5, node="run-05", device=40),
    ]
    recording = record("trn2", duration_s=260, faults=faults)
    named = [(s, f.node, f.device) for s, each in recording.watch(range(20, 260)) for f in each]
    assert named[0][1:] == ("run-02", 5)
    assert named[-1][1:] == ("run-05", 40)
    assert {(node, device) for _, node, device in named} <= {("run-02", 5), ("run-05", 40)}


def test_the_first_of_two_problems_ends_while_the_other_keeps_steps_long() -> None:
    faults = [
        msgspec.structs.replace(fault_of("efa_latency", 6.0), duration_s=80),
        msgspec.structs.replace(
            fault_of("slow_core", 1.5, node="run-05", device=40),
            start_s=START_S + 20,
            duration_s=300,
        ),
    ]
    recording = record("trn2", duration_s=400, faults=faults)
    said = [(s, {f.node for f in each}) for s, each in recording.watch(range(20, 400))]
    ended_s = START_S + 80
    assert {"run-02", "run-05"} in [nodes for s, nodes in said if s <= ended_s]
    over_s = next(s for s, nodes in said if s > ended_s and "run-02" not in nodes)
    assert over_s <= ended_s + 2 * 60
    assert all(nodes == {"run-05"} for s, nodes in said if s >= over_s)


def test_sequences_that_become_uneven_while_a_core_is_slow_are_another_problem() -> None:
    faults = [
        fault_of("slow_core", 1.4),
        Fault(
            kind="seq_imbalance",
            run="run",
            start_s=START_S + 60,
            duration_s=LASTS_S,
            magnitude=1.5,
        ),
    ]
    recording = record("trn2", duration_s=START_S + LASTS_S, faults=faults)
    said = {
        s: {(f.cause, f.node) for f in each}
        for s, each in recording.watch(range(20, START_S + LASTS_S))
    }
    slow, uneven = ("slow_core", "run-02"), ("seq_imbalance", None)
    assert slow in said[START_S + 59]
    assert uneven not in said[START_S + 59]
    assert {slow, uneven} <= said[START_S + LASTS_S - 1]


@pytest.mark.parametrize(("kind", "magnitude"), [("slow_core", 1.5), ("efa_latency", 6.0)])
@pytest.mark.parametrize("joins_s", [60, START_S + 60])
def test_a_node_that_joins_later_moves_no_finding_to_another_node(
    kind: str, magnitude: float, joins_s: int
) -> None:
    recording = record("trn2", duration_s=300, faults=[fault_of(kind, magnitude)])
    said = [(s, {f.node for f in each}) for s, each in watch_joining("run-00", recording, joins_s)]
    assert {node for _, nodes in said for node in nodes} <= {"run-02", None}
    assert all("run-02" in nodes for s, nodes in said if s >= START_S + LOOK_ON_S)


def test_a_slow_node_that_joins_later_is_named() -> None:
    recording = record("trn2", duration_s=300, faults=[fault_of("efa_latency", 6.0)])
    found = [f for s, each in watch_joining("run-02", recording, 60) for f in each if s >= 250]
    assert {(f.cause, f.node, f.device) for f in found} == {("efa_latency", "run-02", 5)}


def test_a_pipeline_that_is_declared_during_a_problem_changes_no_finding() -> None:
    recording = record("staged", duration_s=260, faults=[fault_of("slow_core", 2.0)])
    watches: dict[str, Any] = {}
    found: list[Finding] = []
    for second in range(60, 260):
        now = replace(recording.at(second, open_problems=found), watches=watches)
        found = find(now if second >= 200 else replace(now, n_stages=1))
        if second >= START_S + LOOK_ON_S:
            assert {(f.cause, f.node, f.device) for f in found} == {("slow_core", "run-02", 5)}


def watch_joining(
    node: str, recording: Recording, at_s: int
) -> Iterator[tuple[int, list[Finding]]]:
    """Look once each second at a run of which one node is unknown until some second."""

    def look(second: int, _: list[Finding], watches: dict[str, Any]) -> list[Finding]:
        now = replace(recording.at(second), watches=watches)
        known = tuple(name for name in now.nodes if name != node or second >= at_s)
        return find(replace(now, nodes=known))

    return recording.watch(range(20, 300), look, about=(node, at_s))


@pytest.mark.parametrize(("kind", "of_run"), [("slow_core", False), ("throttle", True)])
def test_a_problem_that_comes_again_and_again_is_named_each_time(
    kind: str, *, of_run: bool
) -> None:
    """What was long before is no reference: usual are the steps of the pauses."""
    place: dict[str, Any] = {"run": "run"} if of_run else {"node": "run-02", "device": 5}
    starts_s = (START_S, START_S + 130, START_S + 260)
    faults = [
        Fault(kind=kind, start_s=start, duration_s=100, magnitude=1.4, **place)
        for start in starts_s
    ]
    recording = record("trn2", duration_s=START_S + 370, faults=faults)
    healthy = recording.steps.ended_at_s < EPOCH + START_S
    usual_s = float(np.median(recording.steps.step_s[healthy]))
    found = dict(recording.watch(range(20, START_S + 370)))
    for start in starts_s:
        [finding] = found[start + 90]
        assert (finding.cause, finding.node) == (kind, place.get("node"))
        assert finding.evidence["baseline_step_s"] == pytest.approx(usual_s, rel=0.02)


def test_a_machine_that_is_mute_is_named_for_being_late_but_no_part_of_it() -> None:
    silent = Fault(kind="node_silent", node="run-02", start_s=100, duration_s=300)
    recording = record("trn2", duration_s=160, faults=[silent, fault_of("slow_core", 1.8)])
    found = [f for _, each in recording.watch(range(20, 160)) for f in each]
    assert {(f.cause, f.node, f.device) for f in found} == {("slow_compute", "run-02", None)}
    assert found[-1].evidence["late_workers"] == ["run-02"]


def test_an_uncorrected_error_is_found_in_the_second_it_is_counted() -> None:
    recording = record("trn2", duration_s=150, faults=[fault_of("ecc_uncorrected", 6.0)])
    found = [(s, f) for s, each in recording.watch(range(120, 150)) for f in each]
    assert found[0][0] <= START_S + 1
    assert {(f.rule, f.node, f.device) for _, f in found} == {("ecc_uncorrected", "run-02", 5)}


@pytest.mark.parametrize("kind", ["hang", "node_crash", "checkpoint_slow"])
def test_what_stops_the_steps_does_not_pass_for_a_high_share(kind: str) -> None:
    recording = record("trn2", duration_s=420, faults=[fault_of(kind, 5.0, device=None)])
    found = [f for _, each in recording.watch(range(120, 420, 2)) for f in each]
    assert {f.rule for f in found} <= {"hang", "checkpoint_slow"}
