"""EFA devices that answer late, lose packets or carry nothing, whether steps feel it or not."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from telemetry.blocks import Span
from telemetry.detect import Finding, find
from telemetry.detect.inputs import DetectionInput, OpenProblem
from tests.telemetry.detect.runs import T0, Machines, inputs, steps_at

LATENCY, AGAIN = "efa_latency_s", "efa_retransmits_per_s"
CARRIED = ("efa_tx_bytes_per_s", "efa_rx_bytes_per_s", "efa_tx_packets_per_s", AGAIN)
SINCE_S = T0 + 190


def seen(machines: Machines, **more: Any) -> DetectionInput:
    return inputs(steps_at([0.1] * 200), machines, hardware_at=machines.hardware_at, **more)


def until(seconds: float) -> Machines:
    return Machines(SINCE_S + seconds)


def places(findings: list[Finding]) -> set[tuple[str, str, str | None, int | None]]:
    return {(f.rule, f.cause, f.node, f.device) for f in findings}


def test_healthy_links_are_left_in_peace() -> None:
    for seed in range(20):
        assert find(seen(Machines(SINCE_S, seed=seed))) == []


def test_a_device_that_answers_late_is_found_before_any_step_is_slow() -> None:
    machines = until(8).mark(LATENCY, (2, 1), times=1.5, since_s=SINCE_S)
    (found,) = find(seen(machines))
    assert places([found]) == {("efa_degraded", "efa_latency", "calm", 1)}
    assert abs(found.onset_s - SINCE_S) <= 1


def test_it_must_last() -> None:
    assert find(seen(until(4).mark(LATENCY, (2, 1), times=9, since_s=SINCE_S))) == []


def test_a_device_that_always_answered_a_little_later_sits_farther_away() -> None:
    assert find(seen(until(8).mark(LATENCY, (2, 1), times=1.25, since_s=T0 - 900))) == []


def test_a_node_in_another_rack_is_not_accused_for_its_distance() -> None:
    for times in (1.25, 1.45):
        machines = until(90).mark(LATENCY, (2, slice(None)), times=times, since_s=T0 - 900)
        assert find(seen(machines)) == []


def beginning(machines: Machines, began_s: float) -> DetectionInput:
    """Return what detection sees of nodes that reported nothing before."""

    def hardware_at(metrics: Sequence[str], ages_s: Sequence[int]) -> Span:
        span = machines.hardware_at(metrics, ages_s)
        for values in span.values.values():
            values[span.ticks < began_s] = np.nan
        return span

    return inputs(steps_at([0.1] * 200), machines, hardware_at=hardware_at)


@pytest.mark.parametrize("known_s", [36, 40, 65])
def test_one_early_answer_of_a_far_node_is_not_its_past(known_s: int) -> None:
    machines = until(8).mark(LATENCY, (2, slice(None)), times=1.4, since_s=T0 - 900)
    machines.mark(LATENCY, (2, 1), times=0.8, since_s=machines.until_s - 37)
    machines.mark(LATENCY, (2, 1), times=1 / 0.8, since_s=machines.until_s - 36)
    assert find(beginning(machines, machines.until_s - known_s)) == []


@pytest.mark.parametrize("before_s", [5, 20, 45])
def test_a_device_that_answers_late_soon_after_its_node_began_is_found(before_s: int) -> None:
    """As soon as half a minute of its past is known."""
    machines = until(max(8, 40 - before_s)).mark(LATENCY, (2, 1), times=1.3, since_s=SINCE_S)
    (found,) = find(beginning(machines, SINCE_S - before_s))
    assert places([found]) == {("efa_degraded", "efa_latency", "calm", 1)}


def test_a_burst_of_loss_is_no_problem_until_it_lasts() -> None:
    def lossy(seconds: float, times: float, **more: Any) -> set[str]:
        machines = until(seconds).mark(AGAIN, (0, 3), times=times, since_s=SINCE_S)
        return {each.cause for each in find(seen(machines, **more))}

    # A thousandth of all packets, then a hundredth.
    assert lossy(8, 480) == lossy(40, 480) == set()
    assert lossy(70, 480) == {"efa_loss"}
    assert lossy(8, 4_800) == {"efa_loss"}
    slow = OpenProblem("step_slow", "unknown", evidence={"kind": "step", "onset_s": SINCE_S})
    assert "efa_loss" not in lossy(8, 480, open_problems=(slow,))
    held = OpenProblem("efa_degraded", "efa_loss", "steady", 3, {"onset_s": SINCE_S})
    assert "efa_loss" in lossy(8, 480, open_problems=(held,))


def test_a_burst_of_loss_that_follows_another_one_is_no_problem() -> None:
    machines, times = until(58), 480.0
    for after_s in (0, 30, 46):
        machines.mark(AGAIN, (0, 3), times=times, since_s=SINCE_S + after_s)
        times = 1 / times
    assert find(seen(machines)) == []


def test_loss_explains_the_latency_that_comes_with_it() -> None:
    machines = until(8).mark(AGAIN, (0, 3), times=9_000, since_s=SINCE_S)
    machines.mark(LATENCY, (0, 3), times=1.4, since_s=SINCE_S)
    assert places(find(seen(machines))) == {("efa_degraded", "efa_loss", "steady", 3)}


def quiet_link(until_s: float, lost_at: Sequence[int]) -> DetectionInput:
    """Links with 600 packets per second, one of which retransmits a packet at these seconds."""
    machines = Machines(until_s)

    def read(metrics: Sequence[str], last_s: int) -> Span:
        span = machines(metrics, last_s)
        for name, level in (("efa_tx_packets_per_s", 600.0), (AGAIN, 0.0)):
            if name in span.values:
                span.values[name][:] = level
        if AGAIN in span.values:
            span.values[AGAIN][np.isin(span.ticks, lost_at), 1, 3] = 1.0
        return span

    return inputs(steps_at([0.1] * 200), read)


def test_a_link_with_little_traffic_is_lossy_after_enough_losses() -> None:
    until_s = int(SINCE_S)
    lossy = range(until_s - 280, until_s, 5)
    assert places(find(quiet_link(until_s - 1, lossy))) == {
        ("efa_degraded", "efa_loss", "limping", 3)
    }


def test_a_retransmit_after_a_loss_has_ended_is_not_another_loss() -> None:
    until_s = int(SINCE_S)
    ended = range(until_s - 250, until_s - 120)
    assert find(quiet_link(until_s, ended)) == []
    assert find(quiet_link(until_s, [*ended, until_s - 1])) == []


def test_two_bursts_on_a_link_with_little_traffic_are_no_lasting_loss() -> None:
    until_s = int(SINCE_S)
    bursts = [*range(until_s - 150, until_s - 120), *range(until_s - 30, until_s, 2)]
    assert find(quiet_link(until_s - 1, bursts)) == []
    lasting = range(until_s - 150, until_s, 4)
    assert [f.cause for f in find(quiet_link(until_s - 1, lasting))] == ["efa_loss"]


def test_a_dead_device_is_the_one_that_used_to_carry() -> None:
    machines = until(8).mark(LATENCY, (1, 0), times=np.nan, since_s=SINCE_S)
    for metric in CARRIED:
        machines.mark(metric, (1, 0), times=0.0, since_s=SINCE_S)
        machines.mark(metric, (1, 1), times=2.0, since_s=SINCE_S)
    assert places(find(seen(machines))) == {("efa_degraded", "efa_down", "limping", 0)}


def test_a_device_that_no_one_uses_is_not_dead() -> None:
    machines = Machines(SINCE_S)
    for metric in CARRIED:
        machines.mark(metric, (slice(None), 0), times=0.0, since_s=T0 - 900)
    assert find(seen(machines)) == []


def test_most_devices_of_a_node_are_the_node() -> None:
    machines = until(8).mark(LATENCY, (2, slice(0, 3)), times=2, since_s=SINCE_S)
    assert places(find(seen(machines))) == {("efa_degraded", "efa_latency", "calm", None)}


def test_all_devices_at_once_blame_no_machine_in_any_second() -> None:
    for seconds in range(1, 25):
        machines = until(seconds).mark(LATENCY, (slice(None), slice(None)), times=2,
                                       since_s=SINCE_S)  # fmt: skip
        found = places(find(seen(machines)))
        assert found <= {("efa_degraded", "efa_latency", None, None)}
    assert found


def test_loss_on_all_devices_blames_no_machine_and_explains_their_latency() -> None:
    every = (slice(None), slice(None))
    for seconds in range(6, 25):
        machines = until(seconds).mark(AGAIN, every, times=9_000, since_s=SINCE_S)
        machines.mark(LATENCY, every, times=1.5, since_s=SINCE_S)
        assert places(find(seen(machines))) == {("efa_degraded", "efa_loss", None, None)}


def test_a_device_that_loses_most_while_all_lose_is_not_accused() -> None:
    machines = until(12).mark(AGAIN, (slice(None), slice(None)), times=9_000, since_s=SINCE_S)
    machines.mark(AGAIN, (0, 3), times=4, since_s=SINCE_S)
    assert places(find(seen(machines))) == {("efa_degraded", "efa_loss", None, None)}


def test_a_loss_of_all_that_one_node_reports_earlier_or_longer_is_not_its_own() -> None:
    of_run = {("efa_degraded", "efa_loss", None, None)}
    ends_s = SINCE_S + 30
    for seconds in range(5, 50):
        machines = until(seconds)
        for rows, later_s in ((slice(0, 1), 0), (slice(1, 4), 4)):
            every = (rows, slice(None))
            machines.mark(AGAIN, every, times=9_000, since_s=SINCE_S + later_s)
            machines.mark(AGAIN, every, times=1 / 9_000, since_s=ends_s + 4 - later_s)
        found = places(find(seen(machines)))
        assert found <= of_run
        assert (found == of_run) or not 10 < seconds <= 30


def test_real_nodes_measure_no_latency_and_are_not_accused_for_it() -> None:
    machines = until(8)

    def real(metrics: Any, last_s: int) -> Span:
        span = machines(metrics, last_s)
        span.values.get(LATENCY, np.zeros(1))[:] = np.nan
        return span

    assert find(inputs(steps_at([0.1] * 200), real)) == []


def test_an_open_alert_ends_with_five_good_seconds_and_not_with_silence() -> None:
    open_problems = (OpenProblem("efa_degraded", "efa_latency", "calm", 1),)
    assert find(seen(until(8), open_problems=open_problems)) == []
    mute = until(8)
    for metric in (LATENCY, *CARRIED):
        mute.mark(metric, (2, slice(None)), times=np.nan, since_s=T0)
    assert places(find(seen(mute, open_problems=open_problems))) == {
        ("efa_degraded", "efa_latency", "calm", 1)
    }
