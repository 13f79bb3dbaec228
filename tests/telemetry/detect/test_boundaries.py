"""Nothing to look at, or only part of it, is no reason to stumble or to cry wolf."""

import json

import numpy as np
import pytest

from telemetry.detect import find
from telemetry.steps import StepBatch
from tests.telemetry.detect.runs import Machines, inputs, steps_at, steps_of

OPEN = {"allreduce_share"}


def test_no_steps_break_nothing() -> None:
    assert find(inputs(StepBatch.empty("llama", ("steady",)))) == []
    assert find(inputs(StepBatch.empty("llama")), open_rules=OPEN) == []


def test_steps_that_no_one_reported_count_for_nothing() -> None:
    steps = steps_at([0.3] * 6)
    for values in steps.phases.values():
        values[:] = np.nan
    assert find(inputs(steps)) == []


def test_a_phase_that_no_one_splits_out_is_part_of_the_others() -> None:
    steps = steps_at([0.1] * 5 + [0.3] * 5)
    for phase in ("input_s", "checkpoint_s", "other_s"):
        steps.phases[phase][:] = np.nan
    (finding,) = find(inputs(steps))
    assert finding.evidence["share_ratio"] == pytest.approx(0.3)


def test_a_step_of_no_length_is_no_division_by_zero() -> None:
    steps = steps_at([0.1] * 6)
    for values in steps.phases.values():
        values[2] = 0.0
    assert find(inputs(steps)) == []


def test_a_run_of_one_node_exchanges_nothing() -> None:
    assert find(inputs(steps_of(np.ones((20, 1)), transfer_s=0.0))) == []


def test_one_node_above_the_limit_by_itself_is_no_one_s_fault() -> None:
    steps = steps_at([0.1] * 10 + [0.4] * 5, n_workers=1)
    (finding,) = find(inputs(steps, Machines(2e9, n_nodes=1)))
    assert (finding.cause, finding.node) == ("unknown", None)


def test_nodes_without_hardware_have_findings_all_the_same() -> None:
    (finding,) = find(inputs(steps_at([0.1] * 10 + [0.3] * 5)))
    assert (finding.cause, finding.node, finding.device) == ("unknown", None, None)


def test_evidence_is_plain_json() -> None:
    compute = np.ones((20, 4))
    compute[10:, 1] = 2.0
    compute[:, 3] = np.nan
    steps = steps_of(compute)
    (finding,) = find(inputs(steps, Machines(steps.ended_at_s[-1])))
    assert json.loads(json.dumps(finding.evidence, allow_nan=False)) == finding.evidence


def test_workers_finer_than_nodes_lead_to_their_node() -> None:
    compute = np.ones((20, 4))
    compute[10:, 2] = 2.0
    names = ("steady/0", "steady/1", "limping/0", "limping/1")
    steps = steps_of(compute, workers=names)
    (finding,) = find(inputs(steps, nodes=("steady", "limping")))
    assert finding.evidence["kind"] == "waiting"
    assert min(finding.evidence["wait_by_worker"], key=finding.evidence["wait_by_worker"].get) == (
        "limping/0"
    )
