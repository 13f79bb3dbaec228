"""Steps that take longer: who or what takes the time, and what is no fault of anybody's."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.detect import Finding, find
from telemetry.detect.findings import CauseScore
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.pace import PhaseRise, open_baseline
from telemetry.detect.slow import LEAST_RATIO, STAGE_LATE_RATIO, _lag, _may_be_chance
from telemetry.detect.stragglers import lateness
from telemetry.steps import StepBatch
from tests.telemetry.detect.runs import CHARACTERS, T0, Machines, inputs, steps_of

NAMES = tuple(f"n{i}" for i in range(8))
CORE, MEMORY = "core_utilization_ratio", "hbm_bandwidth_bytes_per_s"


def computing(n_steps: int = 60, *, step_s: float = 2.0, seed: int = 5) -> FloatArray:
    rng = np.random.default_rng(seed)
    return step_s * (1 + 0.003 * rng.standard_normal((n_steps, 8)))


def without_bandwidth_and_probes(machines: Machines) -> Any:
    """Read what an agent of a real node reports."""
    missing = {MEMORY, "efa_latency_s"}
    return lambda metrics, last_s: machines([m for m in metrics if m not in missing], last_s)


def run(compute: FloatArray, **more: Any) -> StepBatch:
    return steps_of(compute, workers=NAMES, **more)


def found_in(steps: StepBatch, machines: Machines | None = None, **more: Any) -> list[Finding]:
    seen = inputs(steps, **more)
    if machines is not None:
        seen = replace(seen, hardware=machines, hardware_at=machines.hardware_at)
    return find(replace(seen, nodes=NAMES))


def test_a_calm_run_has_no_finding() -> None:
    for seed in range(10):
        assert found_in(run(computing(seed=seed))) == []


@pytest.mark.parametrize("by", ["sequences", "stage"])
def test_that_the_cause_is_unknown_is_never_excluded(by: str) -> None:
    compute = computing()
    if by == "stage":
        compute[-5:, 6:] *= 1.2
    else:
        compute[-4:] *= 1 + 0.3 * np.random.default_rng(2).random((4, 8)) ** 3
    (found,) = found_in(run(compute), n_stages=4 if by == "stage" else 1)
    assert "unknown" not in found.evidence["ruled_out"]


@pytest.mark.parametrize(
    ("median_times", "longest_times", "cause"),
    [(1.0, 1.5, "network"), (1.3, 1.0, "slow_compute"), (1.3, 0.4, "unknown")],
    ids=["the exchange takes longer", "compute takes longer", "all executions are alike"],
)
def test_executions_show_the_transfer_that_a_runtime_trace_counts_as_compute(
    median_times: float, longest_times: float, cause: str
) -> None:
    compute = computing()[:, :4]
    compute[-16:] *= 1.3
    steps = steps_of(compute, transfer_s=0.0)
    since_s = float(steps.ended_at_s[-17])
    machines = Machines(float(steps.ended_at_s[-1]))
    machines.mark("execution_latency_p50_s", (slice(None), 0), times=median_times, since_s=since_s)
    machines.mark(
        "execution_latency_p100_s",
        (slice(None), 0),
        times=longest_times,
        since_s=T0 - 900 if longest_times < 1 else since_s,
    )
    hardware = without_bandwidth_and_probes(machines)
    seen = replace(inputs(steps), hardware=hardware, hardware_at=machines.hardware_at)
    assert [(f.rule, f.cause, f.node) for f in find(seen)] == [("step_slow", cause, None)]


@pytest.mark.parametrize(
    ("n_longer", "longer", "step_s", "times", "node"),
    [
        (20, 1.0, 2.0, 1.3, None),
        (20, 1.3, 2.0, 1.3, "limping"),
        (1, 1.3, 40.0, 1.3, None),
        # A little longer: something else makes the steps longer.
        (20, 1.3, 2.0, 1.1, None),
    ],
)
def test_longer_executions_name_a_node_only_while_steps_take_as_much_longer(
    n_longer: int, longer: float, step_s: float, times: float, node: str | None
) -> None:
    compute = computing(step_s=step_s)[:, :4]
    compute[-n_longer:] *= longer
    steps = steps_of(compute)
    phases = dict(steps.phases)
    # As hooks report: the exchange is part of the compute time.
    phases["compute_s"] = phases["compute_s"] + phases["wait_s"] + phases["transfer_s"]
    phases |= {name: np.full_like(compute, np.nan) for name in ("wait_s", "transfer_s")}
    machines = Machines(float(steps.ended_at_s[-1]))
    since_s = float(steps.ended_at_s[-n_longer - 1]) if longer > 1 else T0 - 900
    machines.mark("execution_latency_p50_s", (1, 0), times=times, since_s=since_s)
    hardware = without_bandwidth_and_probes(machines)
    # While a node is accused, a single longer step is looked at.
    accused = (OpenProblem("core_slow", "slow_compute", "steady", 3),) if n_longer == 1 else ()
    seen = inputs(replace(steps, phases=phases), open_problems=accused)
    seen = replace(seen, hardware=hardware, hardware_at=machines.hardware_at)

    expected = [] if node is None else [node]
    assert [f.node for f in find(seen) if f.node not in {None, "steady"}] == expected


def rests_of_one(sizes: FloatArray | float, *, host: float = 1.0) -> list[Finding]:
    """Let one of four workers rest between executions in its newest 6 steps."""
    rests_s = np.zeros((60, 4))
    rests_s[-6:, 1] = sizes
    steps = steps_of(computing()[:, :4], other_s=rests_s)
    since_s = float(steps.ended_at_s[-7])
    machines = Machines(float(steps.ended_at_s[-1]))
    machines.mark("vcpu_usage_ratio", (1, 0), times=host, since_s=since_s)
    seen = replace(inputs(steps), hardware=machines, hardware_at=machines.hardware_at)
    return find(seen)


@pytest.mark.parametrize(
    ("host", "named"), [(1.0, ("step_slow", "unknown")), (1.5, ("input_stall", "input_stall"))]
)
def test_a_worker_that_rests_is_named_and_a_busy_host_says_why(
    host: float, named: tuple[str, str]
) -> None:
    found = [(f.rule, f.cause, f.node) for f in rests_of_one(0.5, host=host)]
    assert found == [(*named, "limping")]


@pytest.mark.parametrize(
    "sizes", [0.05, np.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.5]), np.array([0.1, 1, 0.1, 0.6, 0.1, 1])]
)
def test_rests_that_are_short_or_few_or_uneven_name_no_worker(sizes: FloatArray | float) -> None:
    assert [f for f in rests_of_one(sizes) if f.node is not None] == []


def test_an_alert_about_a_worker_that_rests_ends_with_the_rests() -> None:
    (found,) = rests_of_one(0.5)
    held = OpenProblem(found.rule, found.cause, found.node, None, found.evidence)
    rests_s = np.zeros((60, 4))
    assert find(inputs(steps_of(computing()[:, :4], other_s=rests_s), open_problems=(held,))) == []
    rests_s[-6:, 1] = 0.5, 0.9, 0.5, 0.3, 0.5, 0.5
    uneven = steps_of(computing()[:, :4], other_s=rests_s)
    assert [f.rule for f in find(inputs(uneven, open_problems=(held,)))] == ["step_slow"]


def test_a_long_stage_is_reported_by_its_workers() -> None:
    compute = computing()
    compute[-5:, 6:] *= 1.2
    (found,) = found_in(run(compute), n_stages=4)
    assert (found.rule, found.cause, found.node) == ("step_slow", "stage_imbalance", None)
    assert found.severity == "warn"
    assert set(found.evidence["late_workers"]) == {"n6", "n7"}


def test_an_alert_holds_though_its_worker_was_always_a_little_later_than_the_others() -> None:
    compute = computing(step_s=15.0)
    compute[:, 6] *= 1.03
    compute[-1, 6] *= 1.2
    compute[-1, 7] *= 1.19
    (found,) = found_in(run(compute), n_stages=4)
    held = OpenProblem(found.rule, found.cause, evidence=found.evidence)
    (still,) = found_in(run(compute), n_stages=4, open_problems=(held,))
    assert (still.cause, still.onset_s) == ("stage_imbalance", found.onset_s)
    compute[-1] = compute[-2]
    assert found_in(run(compute), n_stages=4, open_problems=(held,)) == []


def test_an_alert_holds_through_a_step_in_which_another_worker_is_delayed() -> None:
    compute, paused = computing()[:, :2], np.zeros((60, 2))
    compute[-12:, 1] *= 1.3

    def found_while(**more: Any) -> list[Finding]:
        return find(inputs(steps_of(compute, other_s=paused), n_stages=2, **more))

    (found,) = found_while()
    held = OpenProblem(found.rule, found.cause, found.node, evidence=found.evidence)
    paused[-2, 0] = 1.0
    (still,) = found_while(open_problems=(held,))
    assert still.cause == found.cause == "stage_imbalance"
    paused[-1, 0] = 1.0
    assert found_while(open_problems=(held,)) == []


def test_of_three_workers_a_small_delay_of_another_ends_no_alert() -> None:
    compute = np.array([[28.8, 28.0, 28.0]] * 20 + [[28.8, 35.7, 28.0]] * 3)
    compute += 0.03 * np.random.default_rng(3).standard_normal(compute.shape)

    def found_while(**more: Any) -> list[Finding]:
        return find(inputs(steps_of(compute, transfer_s=0.2), n_stages=3, **more))

    (found,) = found_while()
    held = OpenProblem(found.rule, found.cause, found.node, evidence=found.evidence)
    compute[-1, 0] += 0.7
    (still,) = found_while(open_problems=(held,))
    assert still.cause == found.cause
    compute[-1, 1] -= 7.5
    compute[-2, 1] -= 7.5
    assert found_while(open_problems=(held,)) == []


def test_a_stage_that_was_always_long_is_a_layout() -> None:
    compute = computing()
    compute[:, 6:] *= 1.2
    assert found_in(run(compute), n_stages=4) == []


def test_uneven_sequences_blame_no_machine() -> None:
    compute = computing()
    compute[-4:] *= 1 + 0.3 * np.random.default_rng(2).random((4, 8)) ** 3
    (found,) = found_in(run(compute))
    assert (found.rule, found.cause, found.node) == ("step_slow", "seq_imbalance", None)


def slowed(times: float) -> StepBatch:
    compute = computing()
    compute[-8:] *= times
    return run(compute)


def test_clocks_that_are_lower_everywhere_do_the_same_work_more_slowly() -> None:
    steps = slowed(1.25)
    machines = Machines(steps.ended_at_s[-1], n_nodes=4)
    machines.mark(MEMORY, (slice(None), slice(None)), times=0.8, since_s=steps.ended_at_s[-9])
    (found,) = found_in(steps, machines)
    assert (found.rule, found.cause, found.node) == ("core_slow", "throttle", None)


def test_a_much_lower_clock_makes_workers_that_always_differ_no_more_uneven() -> None:
    differ = 1.0 + 0.1 * np.linspace(-1.0, 1.0, 8)
    compute = computing(step_s=4.0) * differ
    compute[-4:] *= 2.9
    steps = run(compute)
    machines = Machines(steps.ended_at_s[-1], n_nodes=4)
    machines.mark(MEMORY, (slice(None), slice(None)), times=0.35, since_s=steps.ended_at_s[-5])
    (found,) = found_in(steps, machines)
    assert (found.rule, found.cause, found.node) == ("core_slow", "throttle", None)


def test_memory_that_is_slower_everywhere_moves_fewer_bytes() -> None:
    steps = slowed(1.25)
    machines = Machines(steps.ended_at_s[-1], n_nodes=4)
    machines.mark(MEMORY, (slice(None), slice(None)), times=0.5, since_s=steps.ended_at_s[-9])
    (found,) = found_in(steps, machines)
    assert (found.rule, found.cause, found.node) == ("hbm_slow", "hbm_slow", None)


def test_without_evidence_no_cause_is_named_and_no_one_is_called_at_once() -> None:
    assert found_in(slowed(1.25)[:-5]) == []
    compute = computing(n_steps=80)
    compute[-16:] *= 1.25
    (found,) = found_in(run(compute))
    assert (found.rule, found.cause, found.severity) == ("step_slow", "slow_compute", "warn")
    assert found.evidence["baseline_step_s"] == pytest.approx(2.1, rel=0.01)


def test_an_open_alert_remembers_what_was_usual_when_all_it_sees_is_slow() -> None:
    steps = run(2.5 * computing(step_s=1.0))
    evidence = {"kind": "computing", "baseline_phase_s": 2.0, "tokens": 4e6}
    open_problems = (OpenProblem("step_slow", "throttle", evidence=evidence),)
    assert [f.cause for f in found_in(steps, open_problems=open_problems)] == ["throttle"]
    mended = run(computing())
    assert found_in(mended, open_problems=open_problems) == []


def test_twice_the_batch_takes_twice_as_long_and_is_no_fault() -> None:
    compute = computing()
    compute[-10:] *= 2
    tokens = np.where(np.arange(60) < 50, 4e6, 8e6)
    assert found_in(replace(run(compute), tokens=tokens)) == []


def test_half_the_workers_take_twice_as_long_and_are_no_fault() -> None:
    compute = computing()
    compute[-10:] *= 2
    compute[-10:, 4:] = np.nan
    assert found_in(run(compute)) == []


def test_checkpoints_and_evaluations_are_not_slow_steps() -> None:
    pause = np.zeros((60, 8))
    pause[[20, 40, 59]] = 60.0
    assert found_in(run(computing(), other_s=pause)) == []


def test_input_that_comes_late_on_one_node_names_it() -> None:
    late = np.full((60, 8), 0.002)
    late[-5:, 3] = 0.4
    (found,) = found_in(run(computing(), input_s=late))
    assert (found.rule, found.cause, found.node) == ("input_stall", "input_stall", "n3")
    assert set(found.victims) == set(NAMES) - {"n3"}


def test_late_input_lasts_while_its_alert_is_open_and_some_of_it_is_left() -> None:
    late = np.full((60, 8), 0.002)
    late[-5:, 3] = 0.4
    (found,) = found_in(run(computing(), input_s=late))
    late[-2:, 3] = 0.05, 0.03
    held = OpenProblem(found.rule, found.cause, found.node, None, found.evidence)
    (lasting,) = found_in(run(computing(), input_s=late), open_problems=(held,))
    assert (lasting.rule, lasting.node) == (found.rule, found.node)


def test_input_that_comes_late_everywhere_names_no_one() -> None:
    late = np.full((60, 8), 0.002)
    late[-5:] = 0.4 * (1 + 0.2 * np.random.default_rng(4).standard_normal((5, 8)))
    (found,) = found_in(run(computing(), input_s=late))
    assert (found.rule, found.cause, found.node) == ("input_stall", "input_stall", None)


@pytest.mark.parametrize("host", [1.0, 1.2])
def test_without_input_times_longer_rests_and_busier_hosts_mean_late_input(host: float) -> None:
    rests_s = np.zeros((60, 4))
    rests_s[-6:] = 0.3
    steps = steps_of(computing()[:, :4], other_s=rests_s)
    machines = Machines(float(steps.ended_at_s[-1]))
    since_s = float(steps.ended_at_s[-7])
    machines.mark("vcpu_usage_ratio", (slice(None), 0), times=host, since_s=since_s)
    seen = replace(inputs(steps), hardware=machines, hardware_at=machines.hardware_at)
    found = [(f.rule, f.cause, f.node) for f in find(seen)]
    assert found == ([("input_stall", "input_stall", None)] if host > 1 else [])


def test_one_slow_read_calls_no_one() -> None:
    late = np.full((60, 8), 0.002)
    late[-1, 3] = 1.0
    assert found_in(run(computing(), input_s=late)) == []


def test_a_slow_core_explains_the_worker_that_is_late_and_both_are_one_finding() -> None:
    compute = computing()
    compute[-6:, 1] *= 1.2
    steps = run(compute)
    machines = Machines(steps.ended_at_s[-1], n_nodes=4)
    for core in range(7):
        machines.mark(CORE, (1, core), times=1 / 1.2, since_s=float(steps.ended_at_s[-7]))
    seen = inputs(steps, machines, hardware_at=machines.hardware_at, cores_per_device=2)
    names = ("steady", "limping", "calm", "quiet", *NAMES[4:])
    seen = replace(seen, nodes=names, steps=replace(steps, workers=names))
    (found,) = find(seen)
    assert (found.rule, found.cause, found.node, found.device) == (
        "core_slow",
        "slow_core",
        "limping",
        7,
    )


@pytest.mark.parametrize("mended_s", [0.0, 10.0])
def test_a_slow_step_that_ends_after_its_core_is_well_again_is_no_new_problem(
    mended_s: float,
) -> None:
    compute = computing(step_s=10.0)[:, :1]
    compute[-3:] *= 1.4
    steps = steps_of(compute)
    ended_s, began_s = float(steps.ended_at_s[-1]), float(steps.ended_at_s[-4])
    machines = Machines(ended_s, n_nodes=1)
    if mended_s:
        for since_s, times in ((began_s, 1 / 1.4), (ended_s - mended_s, 1.4)):
            machines.mark(CORE, (0, slice(7)), times=times, since_s=since_s)
    seen = inputs(steps, machines, hardware_at=machines.hardware_at, cores_per_device=2)
    assert bool(find(replace(seen, nodes=CHARACTERS[:1]))) == (not mended_s)


@pytest.mark.parametrize(("transfer_s", "n_found"), [(0.5, 1), (0.3, 0)])
def test_a_transfer_of_twice_its_length_is_the_network_from_two_steps_on(
    transfer_s: float, n_found: int
) -> None:
    transfer = np.full((60, 8), 0.18)
    transfer[-2:] = transfer_s
    found = found_in(run(computing(step_s=6.0), transfer_s=transfer))
    assert [(f.rule, f.cause, f.node) for f in found] == [("step_slow", "network", None)] * n_found


def test_waits_for_a_worker_whose_report_is_lost_are_no_transfer() -> None:
    compute = computing(step_s=6.0)
    compute[:, 3] *= 1.2
    whole = run(compute)
    lost = {name: values.copy() for name, values in whole.phases.items()}
    for values in lost.values():
        values[-1, 3] = np.nan
    lost["transfer_s"][-1, :] += np.nanmin(lost["wait_s"][-1])
    lost["wait_s"][-1, :] -= np.nanmin(lost["wait_s"][-1])
    assert found_in(replace(whole, phases=lost)) == []


def test_two_troubles_of_a_whole_run_are_two_findings() -> None:
    compute = computing()
    compute[-8:] *= 1.25
    transfer = np.full((60, 8), 0.1)
    transfer[-8:] = 0.4
    steps = run(compute, transfer_s=transfer)
    since_s = float(steps.ended_at_s[-9])
    everywhere: Any = (slice(None), slice(None))
    machines = Machines(steps.ended_at_s[-1], n_nodes=4)
    machines.mark(MEMORY, everywhere, times=0.8, since_s=since_s)
    machines.mark("efa_latency_s", everywhere, times=3, since_s=since_s)
    found = found_in(steps, machines, hardware_at=machines.hardware_at)
    assert {(f.rule, f.cause, f.node) for f in found} == {
        ("core_slow", "throttle", None),
        ("efa_degraded", "efa_latency", None),
    }


@pytest.mark.parametrize(("n_steps", "severity"), [(2, "warn"), (3, "page")])
def test_late_input_of_one_node_is_a_page_from_the_third_step_on(
    n_steps: int, severity: str
) -> None:
    late = np.zeros((60, 4))
    late[-n_steps:, 2] = 1.5
    (found,) = find(inputs(steps_of(np.full((60, 4), 8.0), input_s=late)))
    assert (found.cause, found.node, found.severity) == ("input_stall", "calm", severity)


def test_a_step_without_late_input_makes_no_page_of_an_alert_about_it() -> None:
    late = np.zeros((60, 4))
    late[-3:-1, 2] = 1.5
    steps = steps_of(np.full((60, 4), 8.0), input_s=late)
    (first,) = find(inputs(steps[:-1]))
    held = OpenProblem(first.rule, first.cause, node=first.node, evidence=first.evidence)
    (found,) = find(inputs(steps, open_problems=(held,)))
    assert (found.node, found.severity, found.evidence["stalled_steps"]) == ("calm", "warn", 2)


def test_where_all_wait_for_data_by_chance_the_last_one_is_not_accused() -> None:
    for seed in range(20):
        late = np.random.default_rng(seed).uniform(0.28, 0.42, (60, 8))
        assert find(inputs(run(np.full((60, 8), 0.6), input_s=late))) == []


@pytest.mark.parametrize("row", [-1, -2])
def test_a_lost_report_ends_no_alert_about_late_input(row: int) -> None:
    late = np.zeros((60, 4))
    late[-8:, 2] = 0.4
    compute = np.full((60, 4), 8.0)
    (found,) = find(inputs(steps_of(compute, input_s=late)))
    held = OpenProblem(found.rule, found.cause, node=found.node, evidence=found.evidence)
    compute[row, 2] = late[row, 2] = np.nan
    steps = steps_of(compute, input_s=late)
    assert [each.node for each in find(inputs(steps, open_problems=(held,)))] == ["calm"]


def test_a_step_in_which_another_worker_waits_ends_no_alert_about_late_input() -> None:
    late = np.zeros((60, 2))
    late[-20:, 0] = 0.04
    compute = np.full((60, 2), 0.5)
    (found,) = find(inputs(steps_of(compute, input_s=late)))
    held = OpenProblem(found.rule, found.cause, node=found.node, evidence=found.evidence)
    late[-1, 1] = 0.2
    (still,) = find(inputs(steps_of(compute, input_s=late), open_problems=(held,)))
    assert (still.node, still.severity) == (found.node, "page")
    late[-8:, 0] = 0.0
    assert find(inputs(steps_of(compute, input_s=late), open_problems=(held,))) == []


def test_a_sick_link_and_late_input_of_one_node_are_two_findings() -> None:
    late = np.full((60, 4), 0.002)
    late[-8:, 1] = 0.8
    transfer = np.full((60, 4), 0.1)
    transfer[-8:] = 0.35
    steps = steps_of(np.ones((60, 4)), transfer_s=transfer, input_s=late)
    machines = Machines(steps.ended_at_s[-1])
    machines.mark("efa_latency_s", (1, 2), times=4, since_s=float(steps.ended_at_s[-9]))
    found = find(inputs(steps, machines, hardware_at=machines.hardware_at))
    assert {(f.cause, f.node, f.device) for f in found} == {
        ("input_stall", "limping", None),
        ("efa_latency", "limping", 2),
    }


def test_two_sick_parts_of_one_node_are_two_findings() -> None:
    steps = steps_of(np.ones((60, 4)))
    since_s = float(steps.ended_at_s[-1]) - 9
    machines = Machines(steps.ended_at_s[-1])
    # Core 0 is slow, and so is the memory of accelerator 3 with cores 6 and 7.
    for core in range(1, 6):
        machines.mark(CORE, (1, core), times=0.6, since_s=since_s)
    machines.mark(CORE, (1, 0), times=0.75, since_s=since_s)
    machines.mark(CORE, (1, slice(6, 8)), times=0.85, since_s=since_s)
    machines.mark(MEMORY, (1, 3), times=0.5, since_s=since_s)
    found = find(inputs(steps, machines, hardware_at=machines.hardware_at, cores_per_device=2))
    assert {(f.rule, f.cause, f.node, f.device) for f in found} == {
        ("hbm_slow", "hbm_slow", "limping", 3),
        ("core_slow", "slow_core", "limping", 0),
    }


def test_the_core_of_an_accelerator_with_one_is_reported_as_throttled() -> None:
    steps = steps_of(np.ones((60, 4)))
    machines = Machines(steps.ended_at_s[-1])
    for core in range(7):
        since_s = float(steps.ended_at_s[-1]) - 9
        machines.mark(CORE, (1, core), times=0.7, since_s=since_s)
    (found,) = find(inputs(steps, machines, hardware_at=machines.hardware_at, cores_per_device=1))
    assert (found.rule, found.cause, found.device) == ("core_slow", "throttle", 7)


def test_two_culprits_are_two_findings() -> None:
    steps = steps_of(np.ones((60, 4)))
    since_s = float(steps.ended_at_s[-1]) - 9
    machines = Machines(steps.ended_at_s[-1])
    for core in range(7):
        machines.mark(CORE, (1, core), times=0.7, since_s=since_s)
    machines.mark("efa_latency_s", (2, 1), times=4, since_s=since_s)
    found = find(inputs(steps, machines, hardware_at=machines.hardware_at))
    assert {(f.rule, f.node) for f in found} == {
        ("core_slow", "limping"),
        ("efa_degraded", "calm"),
    }


LEAST_S = LEAST_RATIO * 2.0


def lag(*excess: float) -> PhaseRise | None:
    """Find the rise of one worker's lag, in units of the smallest rise that counts."""
    values = LEAST_S * np.array(excess)
    steps = steps_of(np.full((len(values), 8), 2.0), transfer_s=0.0, workers=NAMES)
    return _lag(inputs(steps), steps, values, n_now=3)


def test_a_lag_begins_after_the_last_calm_steps() -> None:
    found = lag(0.0, 0.0, 0.0, 0.6, 3.0, 3.0, 3.0, 3.0)
    assert found is not None
    assert (found.at, found.usual) == (3, 0.0)


def test_a_lag_without_calm_steps_begins_at_the_likeliest_change() -> None:
    found = lag(*[1.0] * 6, *[3.0] * 6)
    assert found is not None
    assert found.at == 6
    assert found.usual == pytest.approx(LEAST_S)


@pytest.mark.parametrize(
    ("n_slow", "ratio", "expected"),
    [(2, 0.04, True), (3, 0.04, False), (2, 0.06, False), (2, STAGE_LATE_RATIO, False)],
)
def test_several_late_workers_of_a_stage_are_chance_only_if_brief_and_small(
    n_slow: int, ratio: float, *, expected: bool
) -> None:
    compute = np.full((20, 4), 0.5)
    compute[:, 2:] = 1.0
    steps = steps_of(compute, transfer_s=0.0, workers=NAMES)
    late = lateness(steps)
    assert set(late.late) == {2, 3}
    # Steps take one second.
    found = PhaseRise(0.0, ratio, len(steps) - n_slow)
    score = CauseScore("stage_imbalance", 2.0, "own_s", 1.5, 1.0, 1, "s")
    assert _may_be_chance(steps, found, late, [score]) is expected


@pytest.mark.parametrize(("paused_s", "expected"), [(0.0, False), (1.2, True)])
def test_a_pause_between_two_slow_steps_is_no_third_one(
    paused_s: float, *, expected: bool
) -> None:
    compute, paused = computing(), np.zeros((60, 8))
    compute[-3:, 6] += 0.14
    paused[-2, 6] = paused_s
    compute[-2, 6] -= 0.14 if paused_s else 0.0
    steps = run(compute, other_s=paused)
    found = PhaseRise(0.0, 0.14, len(steps) - 3)
    power = CauseScore("slow_core", 2.0, "device_power_ratio", 0.4, 0.5, 7, "ratio", NAMES[6])
    assert _may_be_chance(steps, found, lateness(steps[-3:]), [power]) is expected


def test_the_baseline_of_an_open_alert_holds_for_steps_with_its_tokens() -> None:
    steps = run(computing())

    def usual(*tokens: float | None) -> float | None:
        alerts = tuple(
            OpenProblem(
                "step_slow",
                "unknown",
                evidence={"kind": "waiting", "baseline_phase_s": 1.0 + i, "tokens": n},
            )
            for i, n in enumerate(tokens)
        )
        return open_baseline(inputs(steps, open_problems=alerts), steps, kind="waiting")

    assert usual(4e6) == usual(None) == 1.0
    assert usual(8e6) is None
    assert usual(8e6, 4e6) == 2.0


@pytest.mark.parametrize(
    ("rule", "limit", "figures"),
    [
        ("step_slow", "least_ratio", {"step_s": 2.4, "baseline_step_s": 2.0}),
        ("hang", "late_s", {"overdue_s": 45.0}),
    ],
)
def test_a_run_may_have_a_higher_limit_of_its_own(
    rule: str, limit: str, figures: dict[str, float]
) -> None:
    seen = inputs(run(computing()))
    finding = Finding(rule, rule, "page", "run", onset_s=T0, score=1.0, evidence=figures)
    value = {"step_slow": 0.2, "hang": 45.0}[rule]

    def with_own(ratio: float, **more: Any) -> list[Finding]:
        own = {f"{rule}.{limit}": value * ratio}
        return find(replace(seen, own_limits=own, **more), rules={rule: lambda _: [finding]})

    assert with_own(0.999) == [finding]
    assert with_own(1.001) == []
    # What cannot be compared stays, and the limit of another rule is none of this one.
    bare = replace(finding, evidence={})
    assert find(replace(seen, own_limits={f"{rule}.{limit}": 9e9}), rules={rule: lambda _: [bare]})
    other = replace(seen, own_limits={"node_idle.idle_s": 9e9})
    assert find(other, rules={rule: lambda _: [finding]}) == [finding]


def test_a_late_worker_is_accused_though_an_earlier_problem_made_steps_much_longer() -> None:
    compute = np.full((40, 16), 14.0)
    compute += 0.02 * np.random.default_rng(1).standard_normal(compute.shape)
    for row in range(12):
        compute[row, row] += 21.0
    compute[35:, 3] += 2.6
    names = [f"n{i:02d}" for i in range(16)]
    steps = steps_of(compute, workers=names)
    (found,) = find(inputs(steps, nodes=tuple(names)))

    assert (found.rule, found.node, found.severity) == ("step_slow", "n03", "page")
