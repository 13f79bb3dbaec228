"""Parts that shift are found; bad input is no shift and no exception."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from telemetry.blocks import METRICS, FloatArray, Span
from telemetry.detect.hardware import Parts
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.peers import FORGET_S
from telemetry.detect.quantities import METRICS_READ, QUANTITIES, Quantity
from telemetry.detect.slowdowns import find_slowdowns
from telemetry.steps import StepBatch
from tests.telemetry.detect.playing import inputs_of, steps_of

CORES, MEMORY, LATENCY = "core_utilization_ratio", "hbm_bandwidth_bytes_per_s", "efa_latency_s"
SENT, PACKETS = "efa_tx_bytes_per_s", "efa_tx_packets_per_s"
AGAIN, HOST = "efa_retransmits_per_s", "vcpu_usage_ratio"
USUAL = {
    CORES: (0.7, 8),
    MEMORY: (4e11, 4),
    "device_power_ratio": (0.7, 4),
    LATENCY: (16e-6, 4),
    SENT: (1e9, 4),
    PACKETS: (1e5, 4),
    AGAIN: (0.2, 4),
    HOST: (0.1, 1),
    "execution_latency_p50_s": (0.3, 1),
    "executions_completed_per_s": (3.0, 1),
}
START_S = 1_000_000
Values = dict[str, FloatArray]


def healthy(n_s: int, *, n_nodes: int = 4, seed: int = 0) -> Values:
    """Return every metric, with 1 % of noise: (n_s, n_nodes, n_parts)."""
    rng = np.random.default_rng(seed)
    return {
        name: usual * (1 + 0.01 * rng.standard_normal((n_s, n_nodes, n_parts)))
        for name, (usual, n_parts) in USUAL.items()
    }


def play(
    values: Values,
    *,
    every_s: int = 1,
    now: Callable[[int], float] = float,
    parts: Parts | None = None,
) -> Parts:
    """Give a fold the seconds one after the other, each report once its period is over."""
    n_s, n_nodes = next(iter(values.values())).shape[:2]
    nodes = tuple(f"n{i}" for i in range(n_nodes))
    parts = parts or Parts(nodes, cores_per_device=2, report_every_s=every_s, false_per_year=6.0)
    for second in range(n_s):

        def hardware(metrics: Sequence[str], last_s: int, newest: int = second) -> Span:
            rows = np.arange(newest - last_s + 1, newest + 1)
            arrived = (newest + 1) // every_s * every_s
            known = (rows >= 0) & (rows < arrived)
            held = {}
            for name in metrics:
                source = values.get(name, np.zeros((n_s, n_nodes, 0)))
                held[name] = np.full((last_s, *source.shape[1:]), np.nan)
                held[name][known] = source[rows[known] // every_s * every_s]
            return Span("s", rows + START_S, nodes, held)

        parts.update(
            DetectionInput(
                run="r",
                nodes=nodes,
                steps=StepBatch.empty("r"),
                hardware=hardware,
                now_s=START_S + now(second),
                cores_per_device=2,
                report_every_s=every_s,
            )
        )
    return parts


def found(parts: Parts) -> set[tuple[str, int | None, int | None]]:
    return {(shift.quantity, shift.node, shift.part) for shift in parts.shifts}


def test_a_healthy_run_has_no_shift() -> None:
    assert not play(healthy(600)).shifts


def test_each_part_that_shifts_is_found_where_it_is() -> None:
    values = healthy(400)
    values[CORES][300:, 2, 5] *= 1.2
    values[MEMORY][300:, 1, 3] *= 0.7
    values[LATENCY][300:, 3, 0] *= 2.0
    values[SENT][300:, 0, 2] = 0.0
    values[AGAIN][300:, 0, 1] = 0.01 * values[PACKETS][300:, 0, 1]
    shifts = {(s.quantity, s.node, s.part): s for s in play(values).shifts}
    assert {
        ("core", 2, 5),
        ("device", 2, 2),
        ("memory", 1, 3),
        ("latency", 3, 0),
        ("bytes", 0, 2),
        ("retransmits", 0, 1),
    } == set(shifts)
    assert all(abs(s.onset_s - START_S - 300) <= 5 for s in shifts.values())
    assert abs(shifts["core", 2, 5].size - 0.2) < 0.02
    assert abs(shifts["memory", 1, 3].size + 0.3) < 0.02
    assert shifts["bytes", 0, 2].size < -0.99
    assert abs(shifts["retransmits", 0, 1].size - 0.01) < 0.001


def test_a_busy_host_is_found_once_it_outlasts_jobs_by_cron() -> None:
    values = healthy(800, n_nodes=8)
    values[HOST][300:320, 1] *= 3.0
    values[HOST][400:, 2] *= 2.0
    assert not play({name: array[:330] for name, array in values.items()}).shifts
    assert found(play(values)) == {("host", 2, None)}


def test_a_shift_ends_when_the_part_is_well_again() -> None:
    values = healthy(500)
    values[CORES][200:300, 2, 5] *= 1.2
    before = play({name: array[:300] for name, array in values.items()})
    assert ("core", 2, 5) in found(before)
    assert not play(values).shifts


def test_one_wild_second_is_no_shift() -> None:
    values = healthy(400)
    values[LATENCY][300, 3, 0] *= 20.0
    values[CORES][310, 1, 1] *= 1.4
    parts = play({name: array[:330] for name, array in values.items()})
    assert not parts.shifts


def test_lasting_differences_are_no_shift() -> None:
    values = healthy(600)
    values[CORES] *= 1 + 0.01 * np.random.default_rng(1).standard_normal((4, 8))
    values[LATENCY][:, 3] *= 1.4
    values["execution_latency_p50_s"][:, :2] *= 3.0
    assert not play(values).shifts


def test_a_part_that_is_far_from_its_peers_from_the_start_is_found() -> None:
    values = healthy(120)
    values[MEMORY][:, 2, 1] *= 0.5
    assert ("memory", 2, 1) in found(play(values))


def test_a_latency_without_an_execution_is_none() -> None:
    values = healthy(400)
    values["execution_latency_p50_s"][300:, 2] *= 1.1
    assert ("execution", 2, None) in found(play(values))
    values["executions_completed_per_s"][300:] = 0.0
    assert not play(values).shifts


def test_held_values_count_once() -> None:
    """Reports each 15 s are found later than seconds, not by fifteen equal seconds."""
    values = healthy(600)
    assert not play(values, every_s=15).shifts
    values[CORES][450:, 2, 5] *= 1.2
    assert ("core", 2, 5) in found(play(values, every_s=15))


def test_a_node_at_rest_says_nothing() -> None:
    values = healthy(400)
    for name in (CORES, MEMORY, SENT, PACKETS):
        values[name][300:, 2] *= 0.001
    values[CORES][300:, 2, 5] *= 3.0
    assert not play(values).shifts


def test_the_size_of_every_quantity_is_known_since_a_moment() -> None:
    values = healthy(400)
    values[CORES][340:, 2, 5] *= 1.02
    effects = play(values).effects(START_S + 345)
    core = effects["core"]
    assert core.size.shape == (4, 8)
    assert abs(core.size[2, 5] - np.log(1.02)) < 4 * core.error[2, 5] < 0.03
    assert effects["host"].size.shape == (4,)
    of_all = {each.of_all for each in QUANTITIES if each.of_all}
    assert set(effects) == {each.name for each in QUANTITIES} | of_all
    assert np.isnan(play(healthy(60)).effects(START_S + 100)["core"].size).all()


def test_a_quantity_of_any_metric_has_a_unit() -> None:
    units = {name: Quantity("new", name, 1, "run").unit for name in METRICS}
    assert units["device_memory_used_bytes"] == "bytes"
    assert units["hbm_bandwidth_bytes_per_s"] == "bytes_per_s"
    assert units["mem_ecc_corrected"] == "count"


VALUES = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(deadline=None, max_examples=20)
@given(data=st.data(), n_nodes=st.integers(1, 3), n_parts=st.integers(1, 3))
def test_bad_values_are_no_exception(data: st.DataObject, n_nodes: int, n_parts: int) -> None:
    shape = (25, n_nodes, n_parts)
    values = {name: data.draw(arrays(np.float32, shape, elements=VALUES)) for name in METRICS_READ}
    parts = play(values)
    parts.effects(START_S)
    assert all(np.isfinite(shift.nats) for shift in parts.shifts)


@settings(deadline=None, max_examples=10)
@given(level=st.floats(0, 1e12), n_nodes=st.integers(1, 3), n_parts=st.integers(1, 3))
def test_constant_values_are_no_shift(level: float, n_nodes: int, n_parts: int) -> None:
    values = {name: np.full((60, n_nodes, n_parts), level) for name in METRICS_READ}
    assert not play(values).shifts


@settings(deadline=None, max_examples=10)
@given(jumps=st.lists(st.integers(-5000, 5000), min_size=60, max_size=60))
def test_clocks_that_jump_are_no_shift(jumps: list[int]) -> None:
    parts = play(healthy(60), now=lambda second: float(second + jumps[second]))
    assert not parts.shifts


@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_nodes_and_metrics_that_come_and_go_are_no_shift(data: st.DataObject) -> None:
    values = healthy(120)
    for name in values:
        gaps = data.draw(st.lists(st.tuples(st.integers(0, 119), st.integers(0, 3)), max_size=4))
        for first, node in gaps:
            values[name][first : first + 20, node] = np.nan
    for name in data.draw(st.sets(st.sampled_from(METRICS_READ[1:]))):
        del values[name]
    parts = play(values)
    assert not parts.shifts
    assert not play(healthy(60, seed=1), parts=parts).shifts


def test_a_fold_that_missed_more_than_is_kept_is_stale() -> None:
    nodes = ("n0", "n1")
    parts = Parts(nodes, cores_per_device=2, report_every_s=1, false_per_year=6.0)
    assert not parts.is_stale(1_000_000.0)

    steps = steps_of(20)
    inputs = replace(inputs_of(steps), nodes=nodes, now_s=1_000_000.0)
    parts.update(inputs)
    assert not parts.is_stale(1_000_000.0 + FORGET_S)
    assert parts.is_stale(1_000_001.0 + FORGET_S)

    cache: dict[str, Any] = {}
    find_slowdowns(replace(inputs, watches=cache))
    first, parts = cache["r"], cache["r"].parts
    find_slowdowns(replace(inputs, watches=cache, now_s=1_000_010.0))
    assert cache["r"] is first
    find_slowdowns(replace(inputs, watches=cache, now_s=1_001_000.0))
    assert cache["r"] is first
    assert first.parts is not parts
