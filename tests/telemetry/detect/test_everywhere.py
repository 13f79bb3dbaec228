"""The same faulty part on most nodes at once is one problem of the run, without a culprit."""

from typing import Any

import numpy as np
import pytest

from telemetry.detect import Finding, find
from telemetry.detect.fabric import merge_common
from telemetry.detect.findings import CauseScore, problem_of
from telemetry.detect.inputs import DetectionInput, OpenProblem
from tests.telemetry.detect.runs import T0, Machines, inputs, steps_at, steps_of

LATENCY = "efa_latency_s"
SINCE_S = T0 + 190
Place = tuple[str, str, str | None, int | None]


def seen(machines: Machines, **more: Any) -> DetectionInput:
    return inputs(steps_at([0.1] * 200), machines, hardware_at=machines.hardware_at, **more)


def places(findings: list[Finding]) -> set[Place]:
    return {(f.rule, f.cause, f.node, f.device) for f in findings}


def late(*nodes: int, until_s: float = 8, device: int = 1) -> Machines:
    machines = Machines(SINCE_S + until_s)
    for node in nodes:
        machines.mark(LATENCY, (node, device), times=6, since_s=SINCE_S)
    return machines


def test_one_rail_of_most_nodes_is_one_finding_about_the_run() -> None:
    found = find(seen(late(0, 1, 2)))
    assert places(found) == {("efa_degraded", "efa_latency", None, 1)}


def test_two_machines_are_two_findings() -> None:
    assert {f.node for f in find(seen(late(0, 3)))} == {"steady", "quiet"}


def test_a_far_node_that_alone_reports_is_not_all_links_becoming_slow() -> None:
    machines = Machines(SINCE_S + 20)
    machines.mark(LATENCY, (3, slice(None)), times=1.4, since_s=0.0)
    for node in range(3):
        machines.mark(LATENCY, (node, slice(None)), times=np.nan, since_s=SINCE_S)
    assert find(seen(machines)) == []


def test_it_lasts_until_the_rail_is_well() -> None:
    (found,) = find(seen(late(0, 1, 2, 3)))
    open_problems = (OpenProblem(found.rule, found.cause, None, found.device, found.evidence),)
    assert places(find(seen(late(0, 1, 2, 3, until_s=20), open_problems=open_problems))) == places(
        [found]
    )
    assert find(seen(Machines(SINCE_S + 8), open_problems=open_problems)) == []


def test_when_the_share_mends_last_no_single_node_is_blamed() -> None:
    transfer = np.full((60, 4), 0.1)
    transfer[40:] = 0.6
    steps = steps_of(np.ones((60, 4)), transfer_s=transfer)
    began_s, mended_s = float(steps.ended_at_s[39]), float(steps.ended_at_s[59])
    machines = Machines(mended_s)
    for node in range(4):
        machines.mark(LATENCY, (node, 1), times=6 + node, since_s=began_s)
        machines.mark(LATENCY, (node, 1), times=1 / (6 + node), since_s=mended_s - 5)
    open_problems = (
        OpenProblem("allreduce_share", "efa_latency", None, 1, {"share_ratio": 0.37}),
    )
    found = find(
        inputs(steps, machines, hardware_at=machines.hardware_at, open_problems=open_problems)
    )
    assert ("allreduce_share", "efa_latency", None, 1) in places(found)
    assert {f.node for f in found} == {None}


@pytest.mark.parametrize(("nodes", "n_nodes", "expected"), [(3, 5, 1), (3, 6, 3), (2, 3, 2)])
def test_most_are_three_at_least_and_more_than_half(
    nodes: int, n_nodes: int, expected: int
) -> None:
    scores = [
        CauseScore("efa_loss", i, "m", 1.0, 0.5, 3, "ratio", node=f"n{i}", device=4)
        for i in range(nodes)
    ]
    found = merge_common(
        [problem_of(score, 100.0 - i) for i, score in enumerate(scores)], n_nodes=n_nodes
    )
    assert len(found) == expected
    if expected == 1:
        assert (found[0].node, found[0].strength) == (None, nodes - 1)
        assert found[0].onset_s == 100.0 - (nodes - 1)
