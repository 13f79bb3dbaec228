"""EFA devices that answer late, lose packets or carry nothing while steps do not feel it."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from telemetry.blocks import Span
from telemetry.detect import Finding, find
from tests.telemetry.detect.runs import T0, Machines, inputs, steps_at

LATENCY, AGAIN = "efa_latency_s", "efa_retransmits_per_s"
PACKETS = "efa_tx_packets_per_s"
CARRIED = ("efa_tx_bytes_per_s", "efa_rx_bytes_per_s", PACKETS, AGAIN)
EVERY = (slice(None), slice(None))
SINCE_S = T0 + 250
Hardware = Callable[[Sequence[str], int], Span]
Place = tuple[str, str, str | None, int | None]


See = Callable[[Machines], Hardware]
# What was found in each second, what was found last, and what is remembered.
Watched = tuple[list[set[Place]], list[Finding], dict[str, Any]]


def go_on(watched: Watched, machines: Machines, until_s: float, hardware: Hardware) -> Watched:
    """Look once each second, in steps of a second that are all alike."""
    said, found, watches = watched
    steps, at = steps_at([0.1] * 600), machines.hardware_at
    seen = inputs(steps, hardware, watches=watches, hardware_at=at)
    for now_s in range(T0 + 5 + len(said), int(until_s) + 1):
        machines.until_s = now_s
        is_open = {finding.rule for finding in found}
        found = find(replace(seen, steps=steps[: now_s - T0], now_s=now_s), open_rules=is_open)
        said.append({(f.rule, f.cause, f.node, f.device) for f in found})
    return said, found, watches


@lru_cache
def begun(seed: int, see: See) -> Watched:
    """Watch healthy links until the second in which most tests change them."""
    machines = Machines(T0, seed=seed)
    return go_on(([], [], {}), machines, SINCE_S, see(machines))


def watch(
    machines: Machines, until_s: float = SINCE_S + 60, see: See = lambda machines: machines
) -> list[set[Place]]:
    """Return what is found in each second."""
    is_healthy = all(since_s >= SINCE_S for *_, since_s in machines.marks)
    watched: Watched = deepcopy(begun(machines.seed, see)) if is_healthy else ([], [], {})
    return go_on(watched, machines, until_s, see(machines))[0]


def places(said: list[set[Place]]) -> set[Place]:
    return set().union(*said)


def between(
    machines: Machines, metric: str, where: Any, *, times: float, since_s: float, until_s: float
) -> Machines:
    machines.mark(metric, where, times=times, since_s=since_s)
    return machines.mark(metric, where, times=1 / times, since_s=until_s)


def test_healthy_links_are_left_in_peace() -> None:
    for seed in range(4):
        assert places(watch(Machines(T0, seed=seed))) == set()


def test_a_device_that_answers_late_is_found_before_any_step_is_slow_until_it_is_well() -> None:
    machines = Machines(T0)
    between(machines, LATENCY, (2, 1), times=1.5, since_s=SINCE_S, until_s=SINCE_S + 60)
    said = watch(machines, SINCE_S + 270)
    late: set[Place] = {("efa_degraded", "efa_latency", "calm", 1)}
    assert places(said) == late
    assert said.index(late) > SINCE_S - T0 - 5
    assert said[-1] == set()


def test_it_must_last() -> None:
    machines = Machines(T0)
    between(machines, LATENCY, (2, 1), times=9, since_s=SINCE_S, until_s=SINCE_S + 4)
    assert places(watch(machines)) == set()


@pytest.mark.parametrize(("part", "times"), [(1, 1.25), (slice(None), 1.25), (slice(None), 1.45)])
def test_what_always_answered_a_little_later_is_farther_away(
    part: int | slice, times: float
) -> None:
    machines = Machines(T0).mark(LATENCY, (2, part), times=times, since_s=T0 - 900)
    assert places(watch(machines)) == set()


def test_a_burst_of_loss_is_no_problem_and_one_that_lasts_is() -> None:
    burst, lasting = Machines(T0), Machines(T0)
    # A thousandth of all packets is lost by healthy fabrics too; a hundredth by none.
    between(burst, AGAIN, (0, 3), times=480, since_s=SINCE_S, until_s=SINCE_S + 20)
    assert places(watch(burst)) == set()
    lasting.mark(AGAIN, (0, 3), times=4_800, since_s=SINCE_S)
    assert places(watch(lasting)) == {("efa_degraded", "efa_loss", "steady", 3)}


def test_loss_explains_the_latency_that_comes_with_it() -> None:
    machines = Machines(T0).mark(AGAIN, (0, 3), times=9_000, since_s=SINCE_S)
    machines.mark(LATENCY, (0, 3), times=1.4, since_s=SINCE_S)
    assert places(watch(machines)) == {("efa_degraded", "efa_loss", "steady", 3)}


def with_little_traffic(machines: Machines) -> Hardware:
    """Read links that send 600 packets a second, for half a minute one of them again."""
    lost = range(SINCE_S, SINCE_S + 30)

    def quiet(metrics: Sequence[str], last_s: int) -> Span:
        span = machines(metrics, last_s)
        for name, level in ((PACKETS, 600.0), (AGAIN, 0.0)):
            if name in span.values:
                span.values[name][:] = level
        if AGAIN in span.values:
            span.values[AGAIN][np.isin(span.ticks, lost), 1, 3] = 1.0
        return span

    return quiet


def test_a_burst_on_a_link_with_little_traffic_is_no_lasting_loss() -> None:
    assert places(watch(Machines(T0), see=with_little_traffic)) == set()


def test_a_dead_device_is_the_one_that_used_to_carry() -> None:
    machines = Machines(T0).mark(LATENCY, (1, 0), times=np.nan, since_s=SINCE_S)
    for metric in CARRIED:
        machines.mark(metric, (1, 0), times=0.0, since_s=SINCE_S)
        machines.mark(metric, (1, 1), times=2.0, since_s=SINCE_S)
    assert places(watch(machines)) == {("efa_degraded", "efa_down", "limping", 0)}


def test_a_device_that_no_one_uses_is_not_dead() -> None:
    machines = Machines(T0)
    for metric in CARRIED:
        machines.mark(metric, (slice(None), 0), times=0.0, since_s=T0 - 900)
    assert places(watch(machines)) == set()


@pytest.mark.parametrize("part", [slice(None), 3])
def test_loss_on_all_devices_blames_no_machine_and_explains_their_latency(
    part: int | slice,
) -> None:
    """Nor one whose loss is worse than that of the others."""
    machines = Machines(T0).mark(AGAIN, EVERY, times=9_000, since_s=SINCE_S)
    machines.mark(LATENCY, EVERY, times=1.5, since_s=SINCE_S)
    machines.mark(AGAIN, (0, part), times=2, since_s=SINCE_S)
    assert places(watch(machines)) == {("efa_degraded", "efa_loss", None, None)}


def test_a_loss_of_all_that_one_node_reports_earlier_or_longer_is_not_its_own() -> None:
    machines, ends_s = Machines(T0), SINCE_S + 30
    for rows, later_s in ((slice(0, 1), 0), (slice(1, 4), 4)):
        where = (rows, slice(None))
        times = {"since_s": SINCE_S + later_s, "until_s": ends_s + 4 - later_s}
        between(machines, AGAIN, where, times=9_000, **times)
    assert places(watch(machines)) == {("efa_degraded", "efa_loss", None, None)}


def without_latency(machines: Machines) -> Hardware:
    def real(metrics: Any, last_s: int) -> Span:
        span = machines(metrics, last_s)
        span.values.get(LATENCY, np.zeros(1))[:] = np.nan
        return span

    return real


def test_real_nodes_measure_no_latency_and_are_not_accused_for_it() -> None:
    assert places(watch(Machines(T0), see=without_latency)) == set()


def probed_once_a_minute(machines: Machines) -> Hardware:
    """Read latencies of the last full minute, which stand until the next probe."""

    def held(metrics: Sequence[str], last_s: int) -> Span:
        span = machines.seconds(metrics, int(machines.until_s) - np.arange(last_s)[::-1])
        if LATENCY in span.values:
            probed = machines.seconds([LATENCY], span.ticks // 60 * 60)
            span.values[LATENCY][:] = probed.values[LATENCY]
        return span

    return held


@pytest.mark.parametrize(("times", "expected"), [(1.0, set()), (1.5, {1}), (4.0, {1})])
def test_a_device_that_is_probed_once_a_minute_is_found(times: float, expected: set[int]) -> None:
    machines = Machines(T0).mark(LATENCY, (2, 1), times=times, since_s=SINCE_S)
    found = places(watch(machines, SINCE_S + 120, see=probed_once_a_minute))
    assert found == {("efa_degraded", "efa_latency", "calm", device) for device in expected}
