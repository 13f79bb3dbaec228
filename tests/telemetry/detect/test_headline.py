"""The headline rule beside other troubles: whose the share is, and what an old alert may say."""

from dataclasses import replace

import numpy as np

from telemetry.detect import Finding, find
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.share import LAYOUT
from tests.telemetry.detect.runs import T0, Machines, inputs, steps_at, steps_of

CORE, LATENCY = "core_utilization_ratio", "efa_latency_s"


def places(findings: list[Finding]) -> set[tuple[str, str, str | None]]:
    return {(each.rule, each.cause, each.node) for each in findings}


def test_the_share_stays_with_its_culprit_when_a_worse_one_of_another_kind_comes() -> None:
    compute, transfer = np.ones((60, 4)), np.full((60, 4), 0.1)
    compute[30:, 1] = 1.5
    transfer[40:] = 1.5
    steps = steps_of(compute, transfer_s=transfer)
    machines = Machines(steps.ended_at_s[-1])
    for core in range(7):
        machines.mark(CORE, (1, core), times=0.7, since_s=steps.ended_at_s[29])
    machines.mark(LATENCY, (2, 1), times=6, since_s=steps.ended_at_s[39])
    open_problems = (
        OpenProblem("core_slow", "slow_core", "limping", 7, {"share_ratio": 0.3}),
        OpenProblem("efa_degraded", "efa_latency", "calm", 1, {}),
    )
    found = find(
        inputs(
            steps,
            machines,
            hardware_at=machines.hardware_at,
            cores_per_device=2,
            open_problems=open_problems,
        )
    )
    assert places(found) == {
        ("allreduce_share", "slow_core", "limping"),
        ("efa_degraded", "efa_latency", "calm"),
    }


def test_a_layout_that_was_always_above_the_limit_is_no_news_whatever_its_noise() -> None:
    everything = steps_at([0.32] * 200 + [0.31] * 4 + [0.34] * 60)
    steps = everything[200:]
    found = find(
        inputs(steps, earlier=lambda since_s: everything[everything.ended_at_s >= since_s])
    )
    assert found == []


def test_what_comes_long_after_a_share_that_is_the_layouts_has_an_alert_of_its_own() -> None:
    compute, transfer = np.ones((90, 4)), np.full((90, 4), 0.4)
    compute[80:, 1] = 1.5
    steps = steps_of(compute, transfer_s=transfer)
    machines = Machines(steps.ended_at_s[-1])
    for core in range(7):
        machines.mark(CORE, (1, core), times=0.7, since_s=steps.ended_at_s[79])
    evidence = {"kind": LAYOUT, "onset_s": T0 - 500.0}
    seen = inputs(steps, machines, hardware_at=machines.hardware_at, cores_per_device=2)
    held = replace(
        seen, open_problems=(OpenProblem("allreduce_share", "unknown", evidence=evidence),)
    )
    found = {each.rule: each for each in find(held)}
    assert places(list(found.values())) == {
        ("allreduce_share", "unknown", None),
        ("core_slow", "slow_core", "limping"),
    }
    assert found["allreduce_share"].severity == "warn"
    assert found["allreduce_share"].onset_s == evidence["onset_s"]
    recent = {"kind": LAYOUT, "onset_s": float(steps.ended_at_s[75])}
    held = replace(
        seen, open_problems=(OpenProblem("allreduce_share", "unknown", evidence=recent),)
    )
    assert places(find(held)) == {("allreduce_share", "slow_core", "limping")}


def test_a_share_that_only_comes_back_when_steps_get_shorter_pages_no_one() -> None:
    transfer = np.full((60, 4), 0.4)
    input_s = np.zeros((60, 4))
    input_s[:40] = 2.0
    steps = steps_of(np.ones((60, 4)), transfer_s=transfer, input_s=input_s)
    (found,) = find(inputs(steps))
    assert (found.rule, found.cause, found.severity) == ("allreduce_share", "unknown", "warn")
    assert found.evidence["kind"] == LAYOUT
