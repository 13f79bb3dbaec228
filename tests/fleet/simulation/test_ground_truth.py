"""Ground truth: cost of a fault, compared with the same run without it."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from drills.report import truths_of
from drills.scenario import Scenario, scenario_of
from fleet.simulation.ground_truth import FaultTruth
from telemetry.simulate.plan import Noise
from telemetry.simulate.script import script_of

RUN = {
    "name": "tiny",
    "model": "llama3.1-8b",
    "instance": "trn2.48xlarge",
    "nodes": 4,
    "tp": 8,
    "seq_len": 4096,
    "global_batch": 64,
    "compile_s": 0,
}


def scenario(*faults: dict[str, Any], duration_s: float = 900, **run: Any) -> Scenario:
    # Cores that wait for others are idle here, so slow ones can be distinguished.
    inputs = {"busy_while_waiting": False}
    head = {"name": "small", "duration_s": duration_s, "seed": 3, "inputs": inputs}
    return scenario_of(head | {"run": [RUN | run], "fault": list(faults)})


def fault(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "node": "tiny-01", "start_s": 200, "duration_s": 200} | fields


def ground_truths(*faults: dict[str, Any], **fields: Any) -> list[FaultTruth]:
    made = scenario(*faults, **fields)
    return truths_of(made, made.plans(epoch_s=1_000_000))


def ratio(truth: FaultTruth) -> float:
    assert truth.step_slowdown_ratio is not None
    return truth.step_slowdown_ratio


def test_a_slow_core_costs_about_what_it_is_slow() -> None:
    [truth] = ground_truths(fault("slow_core", magnitude=2.0))

    assert 1.7 < ratio(truth) < 2.0
    assert (truth.start_s, truth.end_s) == (200, 400)


def test_a_fault_that_only_hardware_shows_costs_nothing() -> None:
    [truth] = ground_truths(fault("ecc_uncorrected"))

    assert ratio(truth) == pytest.approx(1)
    assert truth.counts


def test_a_hang_lasts_as_long_as_its_only_step() -> None:
    [truth] = ground_truths(fault("hang"))

    assert ratio(truth) > 100
    assert truth.felt_until_s >= 400


def test_where_no_step_gets_on_there_is_no_ratio() -> None:
    [truth] = ground_truths(fault("node_crash", duration_s=100))

    assert truth.step_slowdown_ratio is None
    assert truth.counts


def test_an_accident_is_felt_for_longer_than_it_lasts() -> None:
    [truth] = ground_truths(
        {"kind": "recompile", "run": "tiny", "start_s": 200, "duration_s": 10, "magnitude": 300}
    )

    assert truth.end_s == 210
    assert truth.felt_until_s > 500


def test_faults_at_the_same_time_do_not_hide_each_other() -> None:
    alone = ground_truths(fault("slow_core", magnitude=2.0))[0]
    small, large = ground_truths(
        fault("slow_core", magnitude=2.0), fault("slow_core", node="tiny-02", magnitude=3.0)
    )

    assert ratio(small) == pytest.approx(ratio(alone))
    assert ratio(large) > ratio(small)


def test_they_come_in_the_order_of_the_file() -> None:
    later, sooner = ground_truths(
        fault("slow_core", magnitude=1.5, start_s=600), fault("throttle", magnitude=1.5)
    )

    assert (later.start_s, sooner.start_s) == (600, 200)


def test_the_scenario_s_end_is_the_fault_s_end() -> None:
    [truth] = ground_truths(fault("slow_core"), duration_s=300)

    assert truth.end_s == 300


@pytest.mark.parametrize("noise", [Noise(measured=False, background=True), Noise(measured=True)])
def test_noise_does_not_change_what_a_fault_costs(noise: Noise) -> None:
    made = scenario(fault("slow_core", magnitude=1.1), fault("hang", start_s=600))
    noisy = msgspec.structs.replace(made, noise=noise)
    # Nodes and runs differ for good, with noise and without.
    [plan] = noisy.plans(epoch_s=1_000_000)
    script = script_of(plan)
    paces = Noise(measured=False, node_cv=script.node_cv, run_to_run_cv=script.run_to_run_cv)
    steady = msgspec.structs.replace(made, noise=paces)
    plain, truth = (truths_of(each, each.plans(epoch_s=1_000_000)) for each in (steady, noisy))

    assert [replace(t, felt_until_s=0) for t in truth] == [
        replace(t, felt_until_s=0) for t in plain
    ]
    # A delay moves the end of the step under way.
    assert truth[0].felt_until_s == pytest.approx(plain[0].felt_until_s, abs=10)


def test_on_accelerators_of_one_core_throttling_looks_like_a_slow_core() -> None:
    [on_gpu] = ground_truths(fault("throttle", magnitude=1.5), instance="p5.48xlarge", tp=4)
    [on_trn2] = ground_truths(fault("throttle", magnitude=1.5))

    assert "slow_core" in on_gpu.causes
    assert on_trn2.causes == ("throttle",)
