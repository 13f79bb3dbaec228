"""Runs without step reports: their pace follows from the executions of their nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from telemetry.blocks import FloatArray, Span
from telemetry.detect import DetectionInput, Finding, find
from telemetry.detect.findings import Problem
from telemetry.detect.inputs import OpenProblem, reporting_interval
from telemetry.detect.slowdowns import RunWatch
from telemetry.detect.standstill import OLDEST_S
from telemetry.steps import StepBatch

NODES = ("a", "b", "c", "d")
NOW, LENGTH_S = 10_000, 900


def watched(
    values: Mapping[str, FloatArray],
    *problems: OpenProblem,
    report_every_s: int = 1,
    nodes: tuple[str, ...] = NODES,
    over: Sequence[tuple[float, float]] = (),
) -> list[Finding]:
    """Find what is wrong with a run of which only hardware is known."""

    def hardware(metrics: Sequence[str], last_s: int) -> Span:
        known = {
            name: values[name][-last_s:] if name in values else np.zeros((last_s, len(nodes), 0))
            for name in metrics
        }
        return Span("x", np.arange(NOW - last_s + 1, NOW + 1), nodes, known)

    def hardware_at(metrics: Sequence[str], ages_s: Sequence[int]) -> Span:
        return Span.join_times([one_second(metrics, age) for age in ages_s]) or hardware(
            metrics, 1
        )

    def one_second(metrics: Sequence[str], age: int) -> Span:
        span = hardware(metrics, age + 1)
        first = {name: array[:1] for name, array in span.values.items()}
        return Span("x", span.ticks[:1], nodes, first)

    inputs = DetectionInput(
        run="llama",
        nodes=nodes,
        steps=StepBatch.empty("llama", nodes),
        hardware=hardware,
        hardware_at=hardware_at,
        now_s=float(NOW),
        phase_since_s=float(NOW - LENGTH_S),
        open_problems=problems,
        report_every_s=report_every_s,
    )
    watch = RunWatch(inputs)
    watch.over = list(over)
    return find(replace(inputs, watches={"llama": watch}))


def no_read(metrics: Sequence[str], last_s: int) -> Span:
    raise AssertionError("nothing is read")


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


@pytest.mark.parametrize(("factor", "n_found"), [(1.3, 0), (1.6, 1)])
def test_without_traffic_a_smaller_slowdown_may_be_a_larger_batch(
    factor: float, n_found: int
) -> None:
    values = run_of(45, factor=factor)
    values["efa_tx_bytes_per_s"] = np.full((LENGTH_S, len(NODES), 8), 2e3)

    assert len(watched(values)) == n_found


@pytest.mark.parametrize(("latency_ratio", "n_found"), [(1.0, 0), (1.3, 1)])
def test_without_traffic_executions_that_take_longer_are_a_slowdown(
    latency_ratio: float, n_found: int
) -> None:
    values = run_of(45)
    values["efa_tx_bytes_per_s"] = np.full((LENGTH_S, len(NODES), 8), 2e3)
    for name in ("execution_latency_p50_s", "execution_latency_p100_s"):
        values[name] = np.full((LENGTH_S, len(NODES), 1), 0.5)
        values[name][-45:] *= latency_ratio

    assert len(watched(values)) == n_found


def test_a_problem_that_is_over_hides_no_other_one() -> None:
    values, began_s, ended_s = run_of(45), 700, 300
    values["executions_completed_per_s"][-began_s:-ended_s] /= 2.0
    (found,) = watched(values, over=[(NOW - began_s, NOW - ended_s)])
    assert found.rule == "step_slow"
    assert watched(values) == []


def test_times_of_problems_are_kept_for_as_long_as_hardware_is() -> None:
    watch = RunWatch(DetectionInput("llama", NODES, StepBatch.empty("llama", NODES), no_read, NOW))
    (slow,) = [Problem("unknown", None, "step", onset_s=NOW - 50.0, strength=1.0)]
    for now_s, open_ in ((NOW, [slow]), (NOW + 9, [slow]), (NOW + 10, []), (NOW + 11, [])):
        watch.note(open_, now_s)
    assert watch.over == [(NOW - 50.0, NOW + 10)]
    watch.note([], NOW + 10 + OLDEST_S)
    assert watch.over == []


def test_a_pause_is_no_slowdown() -> None:
    values = run_of(0)
    values["executions_completed_per_s"][-20:] = 0.0
    assert [each.rule for each in watched(values)] == []


def in_an_alert(values: dict[str, FloatArray], slow_for_s: int) -> list[Finding]:
    """Watch a run whose slowdown has an alert without a cause."""
    (fired,) = watched(run_of(45))
    evidence = {**fired.evidence, "onset_s": float(NOW - slow_for_s)}
    held = OpenProblem(fired.rule, fired.cause, evidence=evidence)
    return watched(values, held)


def test_a_host_that_works_harder_for_a_minute_while_its_cores_rest_starves() -> None:
    for slow_for_s, node in ((45, None), (75, "c")):
        values = run_of(slow_for_s)
        values["vcpu_usage_ratio"][-slow_for_s:, 2] *= 1.8
        values["core_utilization_ratio"][-slow_for_s:, 2] *= 0.7
        (found,) = in_an_alert(values, slow_for_s)
        assert (found.rule, found.node) == ("input_stall" if node else "step_slow", node)


def test_a_job_of_a_host_that_ends_says_nothing_of_a_slowdown() -> None:
    values = run_of(75)
    values["vcpu_usage_ratio"][-60:-40, 2] += 0.3
    values["core_utilization_ratio"][-75:, 2] *= 0.7
    (found,) = in_an_alert(values, 75)
    assert (found.rule, found.node) == ("step_slow", None)


def test_jobs_of_other_hosts_that_ended_before_accuse_no_host_that_is_as_it_was() -> None:
    values = run_of(75)
    values["vcpu_usage_ratio"][-150:-100, [0, 1, 3]] += 0.3
    values["core_utilization_ratio"][-75:, 2] *= 0.7
    (found,) = in_an_alert(values, 75)
    assert (found.rule, found.node) == ("step_slow", None)


def test_what_all_hosts_do_besides_accuses_none_of_them() -> None:
    values = run_of(75)
    values["core_utilization_ratio"][-75:] *= 0.7
    # A job of one host for 25 s, and then a checkpoint of all that is part of another third.
    values["vcpu_usage_ratio"][-48:-22, 2] += 0.3
    for third in (slice(-75, -50), slice(-25, None)):
        values["vcpu_usage_ratio"][third] *= 1.2
    (found,) = in_an_alert(values, 75)
    assert (found.rule, found.node) == ("step_slow", None)


def test_a_slowdown_that_is_over_gets_no_name() -> None:
    values = run_of(75)
    values["vcpu_usage_ratio"][-75:, 2] *= 1.8
    values["core_utilization_ratio"][-75:, 2] *= 0.7
    assert in_an_alert(values, 75)[0].node == "c"
    values["executions_completed_per_s"][-15:] *= 1.3
    assert [each.node for each in in_an_alert(values, 75)] == [None]


def test_where_all_hosts_read_in_bursts_none_of_them_is_accused() -> None:
    values = run_of(60)
    values["core_utilization_ratio"][-60:] *= 0.7
    # Every host works harder in some of its reports, and one of them in more than half.
    for node, bursts in enumerate(
        ((1, 4, 7, 9), (0, 3, 8, 11), (1, 2, 4, 6, 7, 9, 10), (2, 5, 6))
    ):
        for burst in bursts:
            first = LENGTH_S - 60 + 5 * burst
            rise = 1.3 if node == 2 else 1.5
            values["vcpu_usage_ratio"][first : first + 5, node] *= rise
    (found,) = watched(values)
    assert (found.rule, found.node) != ("input_stall", "c")


def test_a_larger_batch_is_no_slowdown() -> None:
    values = run_of(45, factor=1.2)
    traffic = np.full((LENGTH_S, len(NODES), 8), 1e9)
    traffic[-45:] /= 1.7
    assert watched({**values, "efa_tx_bytes_per_s": traffic}) == []
    traffic[-45:] = 1e9 / 1.2
    assert len(watched({**values, "efa_tx_bytes_per_s": traffic})) == 1


def test_a_slowdown_that_began_long_ago_was_part_of_another_problem() -> None:
    assert watched(run_of(200)) == []


@pytest.mark.parametrize(
    ("typical", "longest", "cause", "node"),
    [
        ((1.0, 1.0, 1.4, 1.0), (1.6, 1.6, 1.0, 1.6), "slow_compute", "c"),
        ((1.4, 1.4, 1.4, 1.4), (1.0, 1.0, 1.0, 1.0), "slow_compute", None),
        ((1.0, 1.0, 1.0, 1.0), (2.0, 2.0, 2.0, 2.0), "network", None),
        ((1.1, 1.3, 1.0, 1.2), (1.6, 1.6, 1.6, 1.6), "unknown", None),
    ],
)
def test_execution_latencies_show_who_computes_longer(
    typical: tuple[float, ...], longest: tuple[float, ...], cause: str, node: str | None
) -> None:
    values = run_of(45)
    for name, usual_s, now in (
        ("execution_latency_p50_s", 0.05, typical),
        ("execution_latency_p100_s", 0.08, longest),
    ):
        values[name] = np.full((LENGTH_S, len(NODES), 1), usual_s)
        values[name][-45:, :, 0] *= now
    (found,) = watched(values)
    assert (found.rule, found.cause, found.node) == ("step_slow", cause, node)


def test_latencies_that_hold_the_exchange_accuse_nobody() -> None:
    values = run_of(45)
    latency_s = np.full((LENGTH_S, len(NODES), 1), 0.05)
    latency_s[-45:] *= 1.3
    both = ("execution_latency_p50_s", "execution_latency_p100_s")
    (found,) = watched({**values, **dict.fromkeys(both, latency_s)})
    assert (found.cause, found.node) == ("unknown", None)


@pytest.mark.parametrize(("longest_s", "node"), [(0.3, "b"), (0.2, None)])
def test_of_two_nodes_one_may_only_wait_within_its_executions(
    longest_s: float, node: str | None
) -> None:
    values = {name: each[:, :2] for name, each in run_of(45).items()}
    for name, usual_s in (
        ("execution_latency_p50_s", 0.2),
        ("execution_latency_p100_s", longest_s),
    ):
        values[name] = np.full((LENGTH_S, 2, 1), usual_s)
    values["execution_latency_p50_s"][-45:, 1] *= 1.3
    values["execution_latency_p100_s"][-45:] *= 1.3
    (found,) = watched(values, nodes=NODES[:2])
    assert found.node == node


def test_a_report_that_stands_for_seconds_counts_once() -> None:
    rng = np.random.default_rng(3)
    each_s = rng.random((60, 2, 1))
    held = np.repeat(rng.random((12, 2, 1)), 5, axis=0)
    ticks = np.arange(60)
    assert reporting_interval(Span("x", ticks, ("a", "b"), {"vcpu_usage_ratio": each_s})) == 1
    assert reporting_interval(Span("x", ticks, ("a", "b"), {"vcpu_usage_ratio": held})) == 5


@pytest.mark.parametrize("n_rest", [0, 1])
def test_a_run_that_continues_on_fewer_nodes_is_compared_with_nothing(n_rest: int) -> None:
    run = run_of(40)
    executions = run["executions_completed_per_s"]
    executions[LENGTH_S - 40 :, len(NODES) - n_rest :] = 0.0
    assert len(watched(run)) == 1 - n_rest


def test_long_steps_do_not_end_an_alert_about_them() -> None:
    run = run_of(60, factor=1.0)
    executions = run["executions_completed_per_s"]
    # Steps of 20 seconds, of which the nodes exchange gradients for 15.
    executions[LENGTH_S - 60 :][np.arange(60) % 20 >= 5] = 0.0
    evidence = {
        "baseline_executions_per_s": 100.0,
        "executions_per_s": 25.0,
        "window_bins": 6,
        "n_working": len(NODES),
        "onset_s": NOW - 60.0,
    }
    assert watched(run, OpenProblem("step_slow", "unknown", evidence=evidence))


def test_scraped_nodes_that_left_and_came_back_are_no_slowdown() -> None:
    values = run_of(0)
    executions = values["executions_completed_per_s"]
    executions[-150:-75, 2:] = 0.0
    executions[-75:] /= 2
    held = np.repeat(executions[::15], 15, axis=0)

    assert watched({**values, "executions_completed_per_s": held}, report_every_s=15) == []


def test_a_pause_of_scraped_nodes_that_begins_is_no_slowdown() -> None:
    for paused_s in range(9, 60, 3):
        values = run_of(0)
        executions = values["executions_completed_per_s"]
        # Each node has had some pauses of its own; scrapes come at different seconds.
        executions[-45 - paused_s : -paused_s] *= 0.9
        executions[-paused_s:] = 0.0
        held = np.stack(
            [
                np.repeat(np.roll(executions[:, node], lag)[::15], 15, axis=0)
                for node, lag in enumerate((0, 4, 8, 12))
            ],
            axis=1,
        )
        values["executions_completed_per_s"] = held
        assert "step_slow" not in {f.rule for f in watched(values, report_every_s=15)}, paused_s


def test_a_pause_of_scraped_nodes_that_ended_is_no_slowdown_at_any_time() -> None:
    """Each scrape holds the mean of its 15 s, of each node at another second."""
    for ended_s in range(1, 60):
        values = run_of(0)
        executions = values["executions_completed_per_s"]
        executions[LENGTH_S - ended_s - 42 : LENGTH_S - ended_s] = 0.0
        held = np.full_like(executions, np.nan)
        for node in range(len(NODES)):
            for end in range(15 + 4 * node, LENGTH_S + 1, 15):
                held[end - 15 : end, node] = executions[end - 15 : end, node].mean()
        scraped = {**values, "executions_completed_per_s": held}
        found = watched(scraped, report_every_s=15)
        assert "step_slow" not in {each.rule for each in found}, ended_s
