"""Steps become findings: one per problem, with its cause, its place and its end."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.detect import find
from telemetry.detect.causes import CLASSES, UNKNOWN
from telemetry.detect.findings import Finding
from telemetry.steps import StepBatch
from tests.telemetry.detect.playing import (
    STEP_S,
    USUAL,
    both,
    found,
    from_step,
    inputs_of,
    joined,
    sampled,
    steps_of,
    uneven,
    untimed,
)

N, AT = 200, 140


def reported(
    steps: StepBatch, *, every: int = 10, n_stages: int = 1, nodes: tuple[str, ...] | None = None
) -> list[tuple[int, list[Finding]]]:
    """Return what is found after each so many steps, as they are reported."""
    cache: dict[str, Any] = {}
    return [
        (end, found(steps[:end], cache=cache, n_stages=n_stages, nodes=nodes))
        for end in range(every, len(steps) + 1, every)
    ]


def alone(findings: list[Finding]) -> Finding:
    [finding] = findings
    return finding


def last(steps: StepBatch, *, n_stages: int = 1) -> list[Finding]:
    return reported(steps, n_stages=n_stages)[-1][1]


def test_a_healthy_run_has_no_finding() -> None:
    for _, findings in reported(steps_of(N)):
        assert findings == []


def test_a_slow_node_is_accused_with_what_it_costs() -> None:
    steps = steps_of(N, change=from_step(AT, "compute_s", 1.2, workers=[2]))
    looks = reported(steps)

    assert all(not findings for end, findings in looks if end <= AT)
    assert looks[-6][1], "found within ten steps"
    finding = alone(looks[-1][1])
    assert (finding.rule, finding.node, finding.severity) == ("step_slow", "n2", "page")
    # Without hardware it is not known what slows it.
    assert finding.cause == "slow_compute"
    assert finding.run == "r"
    assert finding.onset_s == pytest.approx(float(steps.ended_at_s[AT - 1]), abs=2.0)
    assert finding.score > 1.0
    evidence = finding.evidence
    # The others wait for it.
    assert evidence["baseline_phase_s"] == pytest.approx(0.0, abs=0.01)
    assert evidence["phase_s"] == pytest.approx(0.2 * USUAL["compute_s"], abs=0.01)
    assert evidence["nats"] > evidence["level_nats"] > 10.0


@pytest.mark.parametrize(
    ("phase", "factor", "workers", "rule", "cause", "node"),
    [
        ("compute_s", 1.2, None, "step_slow", "slow_compute", None),
        ("transfer_s", 1.5, None, "step_slow", "network", None),
        ("input_s", 6.0, None, "input_stall", "input_stall", None),
        ("input_s", 6.0, [1], "input_stall", "input_stall", "n1"),
    ],
)
def test_the_phase_that_is_longer_is_the_cause(
    phase: str, factor: float, workers: list[int] | None, rule: str, cause: str, node: str | None
) -> None:
    steps = steps_of(N, change=from_step(AT, phase, factor, workers=workers))

    finding = alone(last(steps))

    assert (finding.rule, finding.cause, finding.node) == (rule, cause, node)


@pytest.mark.parametrize("n_workers", [4, 8, 16])
def test_uneven_sequences_accuse_no_node(n_workers: int) -> None:
    looks = reported(steps_of(N, n_workers=n_workers, change=uneven(AT)))

    assert looks[-1][1]
    for _, findings in looks:
        assert all(finding.node is None for finding in findings)
    if n_workers > 4:
        assert looks[-1][1][0].cause == "seq_imbalance"


@pytest.mark.parametrize("seed", [1, 3, 9])
def test_of_uneven_sequences_the_worker_that_is_late_most_often_is_not_accused(seed: int) -> None:
    """It is late more often than before, but no more than the worst of 16 is by chance."""
    change = uneven(AT, scatter=0.4, seed=seed)

    looks = reported(steps_of(N, n_workers=16, change=change), every=2)

    assert looks[-1][1]
    assert all(finding.node is None for _, findings in looks for finding in findings)


@pytest.mark.parametrize("n_stages", [2, 4])
def test_a_longer_stage_is_named_and_none_of_its_nodes(n_stages: int) -> None:
    rows = list(range(8 // n_stages))
    steps = steps_of(N, n_workers=8, change=from_step(AT, "compute_s", 1.2, workers=rows))

    finding = alone(last(steps, n_stages=n_stages))

    assert (finding.cause, finding.node) == ("stage_imbalance", None)


def test_a_problem_that_ends_is_no_finding_any_more_and_the_next_one_is() -> None:
    steps = steps_of(
        N + 120,
        change=both(
            from_step(AT, "compute_s", 1.2, workers=[2], until=N),
            from_step(N + 80, "input_s", 6.0, workers=[1]),
        ),
    )
    looks = dict(reported(steps))

    assert alone(looks[N]).node == "n2"
    assert looks[N + 20] == looks[N + 70] == []
    assert alone(looks[N + 120]).node == "n1"
    assert alone(looks[N + 120]).cause == "input_stall"


def test_what_a_problem_does_not_explain_is_a_second_one() -> None:
    steps = steps_of(
        N + 60,
        change=both(
            from_step(AT, "compute_s", 1.12, workers=[2]),
            from_step(N, "transfer_s", 1.6),
        ),
    )
    looks = dict(reported(steps))

    first = alone(looks[N])
    assert (first.cause, first.node) == ("slow_compute", "n2")
    both_open = looks[N + 60]
    assert ("slow_compute", "n2") in {(each.cause, each.node) for each in both_open}
    onsets_s = {each.onset_s for each in both_open}
    assert min(onsets_s) == first.onset_s


def test_a_cause_is_not_forgotten_for_a_vaguer_one() -> None:
    steps = steps_of(N + 60, change=from_step(AT, "input_s", 6.0, workers=[1]))
    causes = [(findings[0].cause, findings[0].node) for _, findings in reported(steps) if findings]

    named = causes.index(("input_stall", "n1"))
    assert set(causes[named:]) == {("input_stall", "n1")}


def test_other_work_and_a_restart_are_no_problem() -> None:
    before = steps_of(AT)
    end_s = float(before.ended_at_s[-1])
    longer = from_step(0, "compute_s", 1.5)
    larger = steps_of(60, change=longer, first=AT, start_s=end_s, tokens=2e6)
    assert all(not findings for _, findings in reported(joined(before, larger)))

    same = steps_of(60, change=longer, first=AT, start_s=end_s)
    assert reported(joined(before, same))[-1][1]
    cache: dict[str, Any] = {}
    again = steps_of(60, change=longer, first=50, start_s=end_s + 60.0)
    assert found(before, cache=cache) == found(again, cache=cache) == []


@pytest.mark.parametrize("see", [untimed, lambda steps: sampled(steps, every=20)])
def test_where_few_exchanges_are_timed_a_slow_run_is_found(
    see: Callable[[StepBatch], StepBatch],
) -> None:
    for workers in ([2], None):
        change = from_step(AT, "compute_s", 1.3, workers=workers)
        findings = last(see(steps_of(N + 60, change=change)))

        assert findings
        for finding in findings:
            assert finding.node in ((None, "n2") if workers else (None,))
            assert finding.onset_s >= float(steps_of(N).ended_at_s[AT - 2])


def test_without_timed_exchanges_no_phase_of_theirs_is_a_cause() -> None:
    finding = alone(
        last(untimed(steps_of(N, change=from_step(AT, "compute_s", 1.3, workers=[2]))))
    )
    assert finding.node is None
    assert finding.cause in (UNKNOWN, *CLASSES)


def test_the_latest_worker_of_a_node_is_what_its_node_is_accused_by() -> None:
    steps = steps_of(N, n_workers=8, change=from_step(AT, "compute_s", 1.2, workers=[5]))
    named = StepBatch(
        steps.run,
        tuple(f"n{i // 2}/{i % 2}" for i in range(8)),
        steps.step,
        steps.ended_at_s,
        steps.phases,
        steps.tokens,
    )

    assert alone(last(named)).node == "n2"


def test_a_quick_node_is_no_problem() -> None:
    def change(phases: dict[str, FloatArray]) -> None:
        phases["compute_s"][AT:, 0] *= 0.8

    assert last(steps_of(N, change=change)) == []


def test_a_shift_below_the_level_is_no_finding() -> None:
    steps = steps_of(AT + 3, change=from_step(AT, "compute_s", 1.005, workers=[2]))
    assert last(steps) == []
    noise = np.exp(0.15 * np.random.default_rng(1).standard_normal((AT, 4)))

    def noisy(phases: dict[str, FloatArray]) -> None:
        phases["compute_s"] *= noise

    assert [f for _, fs in reported(steps_of(AT, change=noisy)) for f in fs if f.node] == []


def problems(steps: StepBatch) -> dict[str | int | None, str]:
    """Return the cause of each open problem by the row of its node."""
    cache: dict[str, Any] = {}
    for end in range(10, len(steps) + 1, 10):
        found(steps[:end], cache=cache)
    return {p.explanation.node: p.explanation.cause for p in cache["r"].problems}


@pytest.mark.parametrize(
    ("second", "cause"), [("compute_s", "slow_compute"), ("input_s", "input_stall")]
)
@pytest.mark.parametrize("apart", [0, 30])
def test_two_nodes_at_once_are_two_problems(second: str, cause: str, apart: int) -> None:
    factor = 1.12 if second == "compute_s" else 4.5
    steps = steps_of(
        N + 60,
        n_workers=8,
        change=both(
            from_step(AT, "compute_s", 1.2, workers=[2]),
            from_step(AT + apart, second, factor, workers=[5]),
        ),
    )

    assert problems(steps) == {2: "slow_compute", 5: cause}


def test_a_slow_node_and_a_slow_network_at_once_are_two_problems() -> None:
    steps = steps_of(
        N + 60,
        n_workers=8,
        change=both(
            from_step(AT, "compute_s", 1.2, workers=[2]),
            from_step(AT, "transfer_s", 1.6),
        ),
    )

    assert problems(steps) == {2: "slow_compute", None: "network"}


@pytest.mark.parametrize(("phase", "factor"), [("compute_s", 1.2), ("input_s", 6.0)])
def test_an_accused_node_is_compared_with_what_its_peers_work(phase: str, factor: float) -> None:
    steps = steps_of(N, change=from_step(AT, phase, factor, workers=[2]))

    culprit = alone(last(steps)).evidence["culprit"]

    own_s = USUAL["compute_s"] + USUAL["input_s"] + USUAL["other_s"]
    assert culprit["value"] == pytest.approx(own_s + (factor - 1.0) * USUAL[phase], rel=0.02)
    assert culprit["peers_median"] == pytest.approx(own_s, rel=0.02)
    assert (culprit["metric"], culprit["unit"], culprit["n_peers"]) == ("own_s", "s", 3)


def test_a_slow_run_has_no_peers_to_be_compared_with() -> None:
    culprit = alone(last(steps_of(N, change=from_step(AT, "transfer_s", 1.5)))).evidence["culprit"]

    assert (culprit["value"], culprit["peers_median"]) == (None, None)


def test_a_culprit_has_its_figure_at_worst_until_its_problem_ends() -> None:
    worse = from_step(AT, "compute_s", 1.5, workers=[2], until=AT + 30)
    still = from_step(AT + 30, "compute_s", 1.35, workers=[2])
    looks = reported(steps_of(N, change=both(worse, still)))

    figures = [alone(found).evidence["culprit"]["value"] for _, found in looks if found]

    own_s = USUAL["compute_s"] + USUAL["input_s"] + USUAL["other_s"]
    assert figures == sorted(figures)
    assert figures[-1] == pytest.approx(own_s + 0.5 * USUAL["compute_s"], rel=0.02)


def test_the_only_node_of_a_run_is_accused() -> None:
    slow = from_step(120, "compute_s", 1.4)
    finding = alone(last(steps_of(200, n_workers=1, change=slow)))
    assert (finding.cause, finding.node, finding.severity) == ("slow_compute", "n0", "page")


@pytest.mark.parametrize(
    ("phase", "workers", "cause", "node"),
    [
        ("compute_s", [2], "slow_compute", "n2"),
        ("input_s", [2], "input_stall", "n2"),
        ("other_s", [2], UNKNOWN, "n2"),
        ("compute_s", [0, 1, 2, 3], UNKNOWN, None),
    ],
)
def test_what_is_long_now_and_then_is_found_in_a_run_that_is_not_young(
    phase: str, workers: list[int], cause: str, node: str | None
) -> None:
    def now_and_then(phases: dict[str, FloatArray]) -> None:
        phases[phase][np.ix_(range(420, 700, 8), workers)] += STEP_S

    seen = reported(steps_of(700, n_workers=4, change=now_and_then))
    assert {f.node for _, found in seen for f in found} == {node}
    finding = alone(seen[-1][1])
    assert (finding.cause, finding.node) == (cause, node)
    assert 7 * STEP_S < finding.evidence["every_s"] < 10 * STEP_S


@pytest.mark.parametrize(("ratio", "n_found"), [(0.1, 1), (0.5, 0)])
def test_below_the_limit_that_a_run_has_of_its_own_steps_are_not_slow(
    ratio: float, n_found: int
) -> None:
    steps = steps_of(200, change=from_step(140, "compute_s", 1.3))
    seen = replace(inputs_of(steps), own_limits={"step_slow.least_ratio": ratio})
    assert len(find(seen)) == n_found
