"""Simulated faults, end to end: each is found in two steps, with its cause and its culprit."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from telemetry import catalog
from telemetry.detect import Finding, find
from telemetry.simulate.plan import Fault
from tests.telemetry.detect.played import EPOCH, RUNS, Recording, record

START_S, LASTS_S, LOOK_ON_S = 130, 240, 25
PARTS = {
    "slow_core": "n_cores",
    "hbm_slow": "n_devices",
    "throttle": "n_devices",
    "efa_latency": "n_efa",
    "efa_loss": "n_efa",
}
# Magnitudes that lift the share of every run of RUNS above its limit, small to large.
MAGNITUDES = {
    "slow_core": (1.4, 1.8, 3.0),
    "hbm_slow": (0.55, 0.4, 0.25),
    "efa_latency": (4.0, 6.0, 10.0),
    "efa_loss": (0.005, 0.02, 0.1),
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


def alerts(recording: Recording) -> Iterator[tuple[int, Finding]]:
    """Yield what is found from before the fault until a while after it was."""
    until = min(START_S + LASTS_S, int(recording.breaks_at_s) + LOOK_ON_S)
    for second, found in recording.watch(range(START_S - 30, until)):
        for finding in found:
            yield second, finding


@pytest.mark.parametrize("run", ["trn1", "trn2", "p5"])
@pytest.mark.parametrize(
    ("kind", "magnitude"), [(kind, each) for kind, three in MAGNITUDES.items() for each in three]
)
def test_it_is_found_in_two_steps_by_cause_and_culprit(
    run: str, kind: str, magnitude: float
) -> None:
    recording = play(run, fault_of(kind, magnitude))
    found = list(alerts(recording))
    second, first = next((s, f) for s, f in found if f.rule == "allreduce_share")
    step_s = float(np.median(recording.steps.step_s))

    assert second == math.ceil(recording.breaks_at_s)
    cause = expected_cause(kind, run)
    assert (first.cause, first.node) in {(cause, "run-02"), ("unknown", None)}
    assert {(f.cause, f.node, f.device) for s, f in found if abs(s - second) > 1} == {
        (cause, "run-02", 5)
    }
    assert abs(first.onset_s - EPOCH - START_S) <= step_s
    assert first.severity == "page"
    assert first.score > 1
    assert set(found[-1][1].victims) == set(recording.plan.run.node_names) - {"run-02"}
    assert first.evidence["step_s"] > first.evidence["baseline_step_s"]
    waits = kind in {"slow_core", "hbm_slow"}
    assert first.evidence["kind"] == ("waiting" if waits else "transferring")


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
    found = list(alerts(play(run, fault_of(kind, magnitude, device=device))))
    (second, first), cause = found[0], expected_cause(kind, run)
    # Hardware may take some seconds to show what the share shows at once.
    assert (first.cause, first.node) in {(cause, "run-02"), ("unknown", None)}
    assert {(f.cause, f.node, f.device) for s, f in found if s > second} == {
        (cause, "run-02", device)
    }


@pytest.mark.parametrize(
    ("kind", "run", "magnitude"),
    [
        ("slow_core", "trn1", 1.8),
        ("slow_core", "trn2", 3.0),
        ("slow_core", "p5", 1.8),
        ("throttle", "trn1", 1.8),
        ("throttle", "trn2", 1.6),
        ("hbm_slow", "trn1", 0.4),
    ],
)
def test_power_shows_the_slow_device_where_waiting_cores_are_busy(
    kind: str, run: str, magnitude: float
) -> None:
    recording = play(run, fault_of(kind, magnitude), is_busy=True)
    found = [f for _, f in alerts(recording)]
    cause = expected_cause(kind, run)
    assert {f.node for f in found[2:]} == {"run-02"}
    assert {f.cause for f in found[2:]} <= {cause, "slow_compute"}
    # Power shows the accelerator of a slow core, and not which of its cores is slow.
    device = None if cause == "slow_core" else 5
    assert (found[-1].cause, found[-1].device) == (cause, device)


def expected_cause(kind: str, run: str) -> str:
    """Name a slow core as detection does: on an accelerator of one core it is the accelerator."""
    return "throttle" if (kind, run) == ("slow_core", "p5") else kind


@pytest.mark.parametrize(("pp", "batch"), [(4, 64), (2, 256)])
def test_a_long_stage_blames_no_machine(pp: int, batch: int) -> None:
    fault = fault_of("stage_imbalance", 0.9, device=None)
    recording = play("staged", fault, pp=pp, global_batch=batch)
    found = [finding for _, finding in alerts(recording)]
    assert {(f.cause, f.node, f.device) for f in found} == {("stage_imbalance", None, None)}
    assert "run-02" in found[-1].evidence["late_workers"]
    assert "run-02" not in found[-1].victims


@pytest.mark.parametrize("run", ["trn1", "trn2", "p5", "staged"])
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
    assert {(f.cause, f.node, f.device) for f in found} == {(kind, None, None)}


def test_the_slow_accelerator_of_a_node_with_only_one_is_distinguished_from_its_memory() -> None:
    small: dict[str, Any] = {
        "model": "bert-large",
        "instance": "trn1.2xlarge",
        "nodes": 4,
        "tp": 1,
    }
    small |= {"seq_len": 512, "global_batch": 1024}
    for kind, magnitude in (("hbm_slow", 0.4), ("throttle", 1.8), ("slow_core", 1.8)):
        found = list(alerts(play("trn1", fault_of(kind, magnitude, device=0), **small)))
        assert {(f.cause, f.node, f.device) for _, f in found} == {(kind, "run-02", 0)}


def test_two_nodes_are_enough_to_find_the_worse() -> None:
    for kind in ("slow_core", "hbm_slow", "efa_latency", "efa_loss"):
        magnitude = {"slow_core": 2.5, "hbm_slow": 0.2, "efa_latency": 6.0, "efa_loss": 0.05}[kind]
        fault = fault_of(kind, magnitude, node="run-01")
        found = list(alerts(play("trn1", fault, nodes=2, global_batch=32)))
        assert {(f.cause, f.node, f.device) for _, f in found} == {(kind, "run-01", 5)}


def test_of_any_sixty_faults_no_machine_is_wronged() -> None:
    rng = np.random.default_rng(2026)
    n_fired = n_right = n_wronged = 0
    for _ in range(60):
        run = str(rng.choice(["trn1", "trn2", "p5"]))
        kind = str(rng.choice(sorted(MAGNITUDES)))
        three = MAGNITUDES[kind]
        magnitude = float(rng.uniform(min(three), max(three)))
        instance = catalog.training_instance(RUNS[run]["instance"])
        device = int(rng.integers(getattr(instance, PARTS[kind])))
        node = f"run-{int(rng.integers(RUNS[run]['nodes'])):02d}"
        fault = fault_of(kind, magnitude, node=node, device=device)
        recording = play(run, fault, seed=int(rng.integers(1_000)))
        (first,) = find(recording.at(math.ceil(recording.breaks_at_s)))
        n_fired += 1
        n_right += (first.cause, first.node, first.device) == (
            expected_cause(kind, run),
            node,
            device,
        )
        n_wronged += first.node not in {None, node}
    assert n_wronged == 0
    assert n_right / n_fired >= 0.97


def test_of_two_slow_cores_the_worse_is_named_and_then_the_other() -> None:
    faults = [
        msgspec.structs.replace(fault_of("slow_core", 1.9), duration_s=60),
        fault_of("slow_core", 1.5, node="run-05", device=40),
    ]
    recording = record("trn2", duration_s=260, faults=faults)
    named = [(s, f.node, f.device) for s, each in recording.watch(range(120, 260)) for f in each]
    assert named[0][1:] == ("run-02", 5)
    assert named[-1][1:] == ("run-05", 40)
    assert {(node, device) for _, node, device in named} <= {("run-02", 5), ("run-05", 40)}


def test_a_machine_that_is_mute_is_named_for_being_late_but_no_part_of_it() -> None:
    silent = Fault(kind="node_silent", node="run-02", start_s=100, duration_s=300)
    recording = record("trn2", duration_s=160, faults=[silent, fault_of("slow_core", 1.8)])
    (finding,) = find(recording.at(159))
    assert (finding.cause, finding.node, finding.device) == ("slow_compute", "run-02", None)
    assert finding.evidence["late_workers"] == ["run-02"]


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


def test_what_happened_since_an_alert_began_is_no_baseline() -> None:
    recording = play("trn1", fault_of("efa_loss", 0.0002))
    (link,) = find(recording.at(START_S + 75))
    assert link.rule == "efa_degraded"
    assert link.evidence["baseline_step_s"] is not None
    older = {**link.evidence, "onset_s": link.onset_s - 3600}
    (same,) = find(recording.at(START_S + 75, open_problems=[replace(link, evidence=older)]))
    assert same.rule == "efa_degraded"
    assert same.evidence["baseline_step_s"] is None
    assert "lowered" not in same.evidence["symptoms"].values()
