"""Runs without collective times, or with occasional ones."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from telemetry.blocks import FloatArray, Span
from telemetry.detect import find
from telemetry.simulate.plan import Fault
from telemetry.steps import StepBatch
from tests.telemetry.detect.played import Recording, record
from tests.telemetry.detect.runs import CHARACTERS, inputs, steps_at, steps_of


def untimed(recording: Recording, *, every: int | None) -> Recording:
    """Leave the exchange untimed but in every so many steps: it is part of the compute time."""
    steps = recording.steps
    dark = (steps.step % every != 0) if every else np.ones(len(steps), dtype=bool)
    phases = {name: values.copy() for name, values in steps.phases.items()}
    for name in ("wait_s", "transfer_s"):
        phases["compute_s"][dark] += phases[name][dark]
        phases[name][dark] = np.nan
    return replace(recording, steps=replace(steps, phases=phases))


def without_agents(recording: Recording) -> Recording:
    """Let no node report anything but its steps."""
    values = {name: np.full_like(x, np.nan) for name, x in recording.span.values.items()}
    return replace(recording, span=replace(recording.span, values=values))


def found(recording: Recording, seconds: range) -> dict[tuple[str, str, str | None], int]:
    """Return what was found, and in which second first."""
    first: dict[tuple[str, str, str | None], int] = {}
    for second, findings in recording.watch(seconds):
        for each in findings:
            first.setdefault((each.rule, each.cause, each.node), second)
    return first


def fault(kind: str, **more: Any) -> Fault:
    return Fault(kind=kind, start_s=120, duration_s=90, **more)


@pytest.mark.parametrize("every", [None, 20])
def test_a_second_of_input_on_one_of_eight_nodes_is_noticed(every: int | None) -> None:
    stall = fault("input_stall", node="run-03", magnitude=1.0)
    recording = without_agents(
        untimed(record("trn1", duration_s=180, faults=[stall]), every=every)
    )
    (what,) = (seen := found(recording, range(100, 180))).items()
    assert what[0] == ("input_stall", "input_stall", "run-03")
    assert seen[what[0]] <= 135


@pytest.mark.parametrize("every", [None, 20])
@pytest.mark.parametrize(
    ("broken", "wanted", "until_s"),
    [
        (fault("input_stall", run="run", magnitude=1.0), ("input_stall", None), 140),
        (fault("checkpoint_slow", run="run", magnitude=6.0), ("checkpoint_slow", None), 200),
        (fault("throttle", run="run", magnitude=1.4), ("unknown", None), 155),
        (fault("slow_core", node="run-03", device=3, magnitude=1.5), ("unknown", None), 155),
    ],
    ids=lambda each: each.kind if isinstance(each, Fault) else "",
)
def test_what_needs_no_split_is_found_by_steps_alone(
    broken: Fault, wanted: tuple[str, str | None], until_s: int, every: int | None
) -> None:
    recording = untimed(record("trn1", duration_s=until_s, faults=[broken]), every=every)
    seen = found(without_agents(recording), range(100, until_s))
    assert {(cause, node) for _, cause, node in seen} == {wanted}


@pytest.mark.parametrize("every", [None, 20])
def test_a_machine_that_accuses_itself_is_the_only_finding(every: int | None) -> None:
    link = Fault(
        kind="efa_latency",
        node="run-03",
        device=1,
        start_s=120,
        duration_s=100,
        magnitude=6.0,
    )
    recording = untimed(record("trn1", duration_s=300, faults=[link]), every=every)
    seen = found(recording, range(100, 300))
    assert set(seen) == {("efa_degraded", "efa_latency", "run-03")}


@pytest.mark.parametrize("run", ["trn1", "trn2", "p5"])
@pytest.mark.parametrize("every", [None, 20])
def test_a_calm_run_without_a_split_has_no_finding(run: str, every: int | None) -> None:
    recording = untimed(record(run, duration_s=600), every=every)
    assert found(recording, range(20, 600)) == {}


def test_the_share_of_untimed_steps_is_unknown_and_never_zero() -> None:
    steps = steps_of([[1.0, 1.0, 1.0, 1.0]] * 30 + [[1.5, 1.5, 1.5, 1.5]] * 30)
    phases = dict(steps.phases)
    for name in ("wait_s", "transfer_s"):
        phases[name] = np.full_like(phases[name], np.nan)
    (finding,) = find(inputs(replace(steps, phases=phases)))
    assert (finding.rule, finding.evidence["kind"]) == ("step_slow", "step")
    assert finding.evidence["wait_ratio"] is None
    assert finding.evidence["transfer_ratio"] is None


def test_a_share_that_is_timed_in_every_fifth_step_fires_by_those() -> None:
    steps = steps_at([0.1] * 40 + [0.4] * 40)
    dark = steps.step % 5 != 0
    phases = {name: values.copy() for name, values in steps.phases.items()}
    phases["compute_s"][dark] += phases["transfer_s"][dark]
    for name in ("wait_s", "transfer_s"):
        phases[name][dark] = np.nan
    rules = {each.rule for each in find(inputs(replace(steps, phases=phases)))}
    assert "allreduce_share" in rules


def slower(compute_s: list[float], *, n_workers: int = 4) -> list[str | None]:
    """Causes and nodes found in a run of one-second steps that then compute for so long."""
    compute = [[1.0] * n_workers] * 30 + [[each] * n_workers for each in compute_s]
    steps = steps_of(compute, workers=(*CHARACTERS, *(f"n-{i}" for i in range(4, n_workers))))
    phases = dict(steps.phases)
    for name in ("wait_s", "transfer_s"):
        phases[name] = np.full_like(phases[name], np.nan)
    data = inputs(replace(steps, phases=phases))
    return [part for each in find(data) for part in (each.cause, each.node)]


@pytest.mark.parametrize(
    ("step_s", "n_steps"), [(10.8, 5), (11.6, 3), (14.0, 2)], ids=["small", "clear", "large"]
)
def test_the_larger_a_rise_the_fewer_steps_show_it(step_s: float, n_steps: int) -> None:
    steps = steps_of([[10.0] * 4] * 20 + [[step_s] * 4] * n_steps)
    phases = dict(steps.phases)
    for name in ("wait_s", "transfer_s"):
        phases[name] = np.full_like(phases[name], np.nan)
    whole = replace(steps, phases=phases)
    assert [each.rule for each in find(inputs(whole))] == ["step_slow"]
    assert find(inputs(whole[:-1])) == []


def test_steps_that_are_long_now_and_then_are_not_slow() -> None:
    # As a healthy exchange gives them: the rare long ones may come close together.
    usual, burst = [[10.0] * 4] * 30, [11.3, 10.0, 11.5, 10.8]
    for n_steps in range(1, 5):
        steps = steps_of([*usual, *([each] * 4 for each in burst[:n_steps])])
        phases = dict(steps.phases)
        for name in ("wait_s", "transfer_s"):
            phases[name] = np.full_like(phases[name], np.nan)
        assert find(inputs(replace(steps, phases=phases))) == []


def test_the_only_node_of_a_run_is_accused_where_its_steps_are_longer_alike() -> None:
    rng = np.random.default_rng(1)
    varied = (1.2 + rng.random(30)).tolist()
    assert slower([1.4] * 30, n_workers=1) == ["slow_compute", "steady"]
    assert slower(varied, n_workers=1)[1] is None
    assert slower([1.4] * 30, n_workers=2) == ["unknown", None]


@pytest.mark.parametrize(("spread_s", "cause"), [(0.02, "unknown"), (0.1, "seq_imbalance")])
def test_longer_steps_that_vary_no_more_than_an_exchange_have_no_uneven_work(
    spread_s: float, cause: str
) -> None:
    longer_s = 1.5 + spread_s * np.random.default_rng(2).standard_normal(60)
    for n_steps in range(30, 60, 5):
        assert slower(longer_s[:n_steps].tolist(), n_workers=24) == [cause, None]


def test_steps_that_vary_by_chance_are_not_slow() -> None:
    rng = np.random.default_rng(4)
    steps = steps_of(np.repeat(5 * np.exp(0.04 * rng.standard_normal((400, 1))), 4, axis=1))
    phases = dict(steps.phases)
    for name in ("wait_s", "transfer_s"):
        phases[name] = np.full_like(phases[name], np.nan)
    whole = replace(steps, phases=phases)
    for end in range(8, 400):
        assert find(inputs(whole[max(0, end - 40) : end])) == []


def test_what_a_trace_showed_is_no_share_above_its_limit_once_steps_are_fast() -> None:
    compute = np.full((60, 4), 8.0)
    compute[40:58, 1] += 6.0
    whole = steps_of(compute)
    phases = {name: values.copy() for name, values in whole.phases.items()}
    for name in ("wait_s", "transfer_s"):
        phases["compute_s"][:45] += phases[name][:45]
        phases[name][:45] = np.nan
    traced = replace(whole, phases=phases)
    assert traced.timed.allreduce_share_ratio[:-2].min() > 0.25
    assert [each.rule for each in find(inputs(traced))] == []
    assert "allreduce_share" in {each.rule for each in find(inputs(traced[:-2]))}


def test_a_trace_without_an_agent_says_nothing_of_hosts() -> None:
    compute = np.ones((60, 4))
    late = np.zeros((60, 4))
    late[-8:, 1] = 0.8
    steps = steps_of(compute, other_s=late)

    def nothing(metrics: Sequence[str], last_s: int) -> Span:
        values = {name: np.zeros((last_s, 4, 0)) for name in metrics}
        return Span("none", np.arange(last_s), CHARACTERS, values)

    (found,) = find(inputs(steps, nothing))
    assert (found.rule, found.node) == ("allreduce_share", "limping")


def whole(step_s: FloatArray) -> StepBatch:
    """Steps of four workers as hooks report them: the exchange is part of the compute time."""
    steps = steps_of(np.repeat(step_s[:, None], 4, axis=1))
    phases = {**steps.phases, "compute_s": steps.phases["compute_s"] + 0.1}
    phases |= {name: np.full((len(step_s), 4), np.nan) for name in ("wait_s", "transfer_s")}
    return replace(steps, phases=phases)


@pytest.mark.parametrize(("pause_s", "n_found"), [(60.0, 1), (26.0, 0)])
def test_a_pause_does_not_make_later_long_steps_likely(pause_s: float, n_found: int) -> None:
    step_s = np.array([20.0] * 18 + [pause_s] + [20.0] * 21 + [26.0] * 2)
    step_s *= 1 + 0.002 * np.random.default_rng(3).standard_normal(step_s.size)
    findings = find(inputs(whole(step_s)))
    assert [each.rule for each in findings] == ["step_slow"] * n_found
    for each in findings:
        assert each.onset_s == pytest.approx(whole(step_s).ended_at_s[-3], abs=0.1)


@pytest.mark.parametrize("input_s", [0.0, 3.0])
def test_the_only_node_of_a_run_is_accused_whatever_part_of_its_steps_is_input(
    input_s: float,
) -> None:
    compute = np.full((60, 1), 2.0) * (1 + 0.002 * np.random.default_rng(3).random((60, 1)))
    compute[-8:] *= 1.4
    steps = steps_of(compute, input_s=np.full((60, 1), input_s))
    unknown = {name: np.full((60, 1), np.nan) for name in ("wait_s", "transfer_s")}
    seen = inputs(replace(steps, phases={**steps.phases, **unknown}))
    assert [(each.cause, each.node) for each in find(seen)] == [("slow_compute", "steady")]
