"""Runs without step reports: their pace follows from the executions of their nodes."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from telemetry.blocks import FloatArray, Span
from telemetry.detect import DetectionInput, Finding, find
from telemetry.detect.inputs import reporting_interval
from telemetry.steps import StepBatch

NODES = ("a", "b", "c", "d")
NOW, LENGTH_S = 10_000, 900


def watched(values: Mapping[str, FloatArray]) -> list[Finding]:
    """Find what is wrong with a run of which only hardware is known."""

    def hardware(metrics: Sequence[str], last_s: int) -> Span:
        known = {
            name: values[name][-last_s:] if name in values else np.zeros((last_s, len(NODES), 0))
            for name in metrics
        }
        return Span("x", np.arange(NOW - last_s + 1, NOW + 1), NODES, known)

    def hardware_at(metrics: Sequence[str], ages_s: Sequence[int]) -> Span:
        return Span.join_times([one_second(metrics, age) for age in ages_s]) or hardware(
            metrics, 1
        )

    def one_second(metrics: Sequence[str], age: int) -> Span:
        span = hardware(metrics, age + 1)
        first = {name: array[:1] for name, array in span.values.items()}
        return Span("x", span.ticks[:1], NODES, first)

    return find(
        DetectionInput(
            run="llama",
            nodes=NODES,
            steps=StepBatch.empty("llama", NODES),
            hardware=hardware,
            hardware_at=hardware_at,
            now_s=float(NOW),
            phase_since_s=float(NOW - LENGTH_S),
        )
    )


def run_of(slow_for_s: int, *, factor: float = 1.3) -> dict[str, FloatArray]:
    """Executions, cores and hosts; at the end each step takes longer by a factor."""
    rng = np.random.default_rng(7)
    shape = (LENGTH_S, len(NODES), 1)
    executions = 100.0 * (1 + 0.01 * rng.standard_normal(shape))
    executions[LENGTH_S - slow_for_s :] /= factor
    return {
        "executions_completed_per_s": executions,
        "core_utilization_ratio": np.full(shape, 0.97),
        "vcpu_usage_ratio": 0.1 * (1 + 0.03 * rng.standard_normal(shape)),
    }


def test_a_steady_run_raises_nothing() -> None:
    assert watched(run_of(0)) == []


def test_a_slowdown_shows_in_executions() -> None:
    (found,) = watched(run_of(45))
    assert (found.rule, found.cause, found.node) == ("step_slow", "unknown", None)
    assert found.evidence["slowdown_ratio"] == pytest.approx(1.3, abs=0.1)


def test_a_pause_is_no_slowdown() -> None:
    values = run_of(0)
    values["executions_completed_per_s"][-20:] = 0.0
    assert [each.rule for each in watched(values)] == []


def test_a_host_that_works_harder_while_its_cores_rest_starves() -> None:
    values = run_of(60)
    values["vcpu_usage_ratio"][-60:, 2] *= 1.8
    values["core_utilization_ratio"][-60:, 2] *= 0.7
    (found,) = watched(values)
    assert (found.rule, found.node) == ("input_stall", "c")


def test_a_report_that_stands_for_seconds_counts_once() -> None:
    rng = np.random.default_rng(3)
    each_s = rng.random((60, 2, 1))
    held = np.repeat(rng.random((12, 2, 1)), 5, axis=0)
    ticks = np.arange(60)
    assert reporting_interval(Span("x", ticks, ("a", "b"), {"vcpu_usage_ratio": each_s})) == 1
    assert reporting_interval(Span("x", ticks, ("a", "b"), {"vcpu_usage_ratio": held})) == 5
