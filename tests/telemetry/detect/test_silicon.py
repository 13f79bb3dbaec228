"""Slow cores, throttled accelerators and slow memories, by their machines' own account."""

from typing import Any

import numpy as np
import pytest

from telemetry.blocks import Span
from telemetry.detect import Finding, find
from telemetry.detect.findings import strongest
from telemetry.detect.inputs import DetectionInput, OpenProblem
from telemetry.detect.pace import case_since
from telemetry.detect.parts import score_parts
from tests.telemetry.detect.runs import CHARACTERS, T0, Machines, inputs, steps_at, steps_of

CORE, MEMORY = "core_utilization_ratio", "hbm_bandwidth_bytes_per_s"
SINCE_S = T0 + 190


def seen(machines: Machines, *, n_workers: int = 4, **more: Any) -> DetectionInput:
    steps = steps_at([0.1] * 200, n_workers=n_workers)
    return inputs(steps, machines, hardware_at=machines.hardware_at, cores_per_device=2, **more)


def until(seconds: float) -> Machines:
    return Machines(SINCE_S + seconds)


def limp(machines: Machines, *cores: int, times: float = 1.3) -> Machines:
    """Let all cores of node 1 idle a bit but these."""
    others = [core for core in range(8) if core not in cores]
    for core in others:
        machines.mark(CORE, (1, core), times=1 / times, since_s=SINCE_S)
    return machines


def places(findings: list[Finding]) -> set[tuple[str, str, str | None, int | None]]:
    return {(f.rule, f.cause, f.node, f.device) for f in findings}


def test_a_core_that_stays_busy_while_its_neighbours_wait_is_slow() -> None:
    found = find(seen(limp(until(9), 6)))
    assert places(found) == {("core_slow", "slow_core", "limping", 6)}
    assert abs(found[0].onset_s - SINCE_S) <= 1
    assert set(found[0].victims) == set(CHARACTERS) - {"limping"}


def test_it_is_not_reported_before_it_has_lasted() -> None:
    assert find(seen(limp(until(3), 6, times=2.0))) == []


def test_a_glitch_of_three_seconds_is_over_before_anybody_is_called() -> None:
    machines = limp(until(9), 6, times=2.0)
    for core in range(8):
        machines.mark(CORE, (1, core), times=1.0 if core == 6 else 2.0, since_s=SINCE_S + 3)
    assert find(seen(machines)) == []


def test_both_cores_of_an_accelerator_alike_are_a_throttled_accelerator() -> None:
    assert places(find(seen(limp(until(9), 4, 5)))) == {("core_slow", "throttle", "limping", 2)}


def test_a_slow_memory_explains_its_busy_cores() -> None:
    machines = limp(until(9), 4, 5).mark(MEMORY, (1, 2), times=0.5, since_s=SINCE_S)
    assert places(find(seen(machines))) == {("hbm_slow", "hbm_slow", "limping", 2)}


def test_a_core_that_always_held_other_work_is_no_fault() -> None:
    machines = until(9).mark(CORE, (1, 6), times=1.08, since_s=T0 - 900)
    assert find(seen(machines)) == []


def test_a_fault_older_than_memory_is_reported_by_peers_that_play_the_same_role() -> None:
    machines = until(9).mark(CORE, (1, 6), times=1.4, since_s=T0 - 900)
    assert places(find(seen(machines))) == {("core_slow", "slow_core", "limping", 6)}


def test_a_machine_alone_is_compared_with_its_own_past() -> None:
    machines = limp(until(9), 6)
    machines.n_nodes = 1
    machines.marks = [(m, (0, part), t, s) for m, (_, part), t, s in machines.marks]
    assert places(find(seen(machines, n_workers=1))) == {("core_slow", "slow_core", "steady", 6)}


def open_alert() -> tuple[OpenProblem, ...]:
    return (OpenProblem("core_slow", "slow_core", "limping", 6),)


def test_an_open_alert_lasts_until_five_good_seconds() -> None:
    mended = limp(until(20), 6)
    for core in range(8):
        if core != 6:
            mended.mark(CORE, (1, core), times=1.3, since_s=SINCE_S + 14)
    assert find(seen(mended, open_problems=open_alert())) == []
    mended.until_s = SINCE_S + 17
    assert places(find(seen(mended, open_problems=open_alert()))) == {
        ("core_slow", "slow_core", "limping", 6)
    }


def test_an_open_alert_outlasts_silence_and_standstill_but_not_leave() -> None:
    def quiet(node: int | slice, times: float) -> Machines:
        machines = until(30)
        for core in range(8):
            machines.mark(CORE, (node, core), times=times, since_s=SINCE_S)
        return machines

    for machines in (quiet(1, np.nan), quiet(slice(None), 0.01), quiet(1, 0.01)):
        assert len(find(seen(machines, open_problems=open_alert()))) == 1
    left = seen(quiet(1, 0.01), open_problems=open_alert())
    for values in left.steps.phases.values():
        values[-1, 1] = np.nan
    assert find(left) == []


def test_nodes_that_report_no_bandwidth_are_not_accused_for_it() -> None:
    machines = until(9)

    def real(metrics: Any, last_s: int) -> Span:
        span = machines(metrics, last_s)
        span.values.get(MEMORY, np.zeros(1))[:] = np.nan
        return span

    assert find(inputs(steps_at([0.1] * 200), real, hardware_at=machines.hardware_at)) == []


@pytest.mark.parametrize(
    ("left", "accused"),
    [
        ((1.0, 1.0, 1.0, 1.0), None),
        # More work takes more power, of one device more than of another.
        ((1.03, 1.1, 1.03, 1.03), None),
        ((0.8, 0.86, 0.8, 0.8), ("throttle", 1)),
        # All of them wait for a part that power does not show.
        ((0.8, 0.8, 0.8, 0.8), ("slow_compute", None)),
    ],
)
def test_power_tells_a_slow_node_from_one_with_more_work(
    left: tuple[float, ...], accused: tuple[str, int | None] | None
) -> None:
    machines = Machines(SINCE_S + 10)
    levels = {**Machines.HEALTHY, "device_power_ratio": (4, 0.6)}
    vars(machines)["HEALTHY"] = levels
    for device, times in enumerate(left):
        machines.mark("device_power_ratio", (1, device), times=times, since_s=SINCE_S)
    steps = steps_at([0.1] * 200)
    case = case_since(inputs(steps, machines, hardware_at=machines.hardware_at), steps, 190)
    found = strongest(score_parts(case, "limping", is_alone=True))
    assert (found and (found.cause, found.device)) == accused


def test_power_after_another_change_of_the_run_accuses_no_node() -> None:
    machines = Machines(SINCE_S + 10)
    vars(machines)["HEALTHY"] = {**Machines.HEALTHY, "device_power_ratio": (4, 0.6)}
    for device in range(4):
        machines.mark("device_power_ratio", (1, device), times=0.8, since_s=SINCE_S)
    # Steps became longer ten steps before this node did.
    exchange = np.repeat([[0.1], [0.9]], (180, 20), axis=0)
    steps = steps_of(np.full((200, 4), 0.9), transfer_s=np.repeat(exchange, 4, axis=1))
    case = case_since(inputs(steps, machines, hardware_at=machines.hardware_at), steps, 190)
    scores = score_parts(case, "limping", is_alone=True)

    assert [score for score in scores if score.metric == "device_power_ratio"] == []


def test_power_whose_past_is_gone_proves_nothing() -> None:
    machines = Machines(SINCE_S + 10)
    vars(machines)["HEALTHY"] = {**Machines.HEALTHY, "device_power_ratio": (4, 0.6)}
    machines.mark("device_power_ratio", (1, 1), times=0.9, since_s=SINCE_S)

    def recent(metrics: Any, last_s: int) -> Span:
        return machines(metrics, min(last_s, 9))

    def gone(metrics: Any, ages_s: Any) -> Span:
        values = {metric: np.zeros((len(ages_s), len(CHARACTERS), 0)) for metric in metrics}
        return Span("s", SINCE_S - np.array(ages_s), CHARACTERS, values)

    steps = steps_at([0.1] * 200)
    case = case_since(inputs(steps, recent, hardware_at=gone), steps, 190)
    scores = score_parts(case, "limping", is_alone=True)

    assert [score for score in scores if score.metric == "device_power_ratio"] == []
