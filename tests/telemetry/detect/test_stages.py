"""A stage that became longer is found by stages, whichever of its workers are the usual ones."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.detect import Finding, find
from telemetry.detect.inputs import OpenProblem
from tests.telemetry.detect.runs import inputs, steps_of

NAMES = ("n0", "n1", "n2")


def even(n_steps: int = 60, *, step_s: float = 3.0) -> FloatArray:
    rng = np.random.default_rng(8)
    return step_s * (1 + 0.003 * rng.standard_normal((n_steps, 3)))


def found_in(compute: FloatArray, *, open_problems: tuple[OpenProblem, ...] = ()) -> list[Finding]:
    """Three nodes in two stages: the first node is one, the others are the second."""
    steps = steps_of(compute, workers=NAMES)
    return find(replace(inputs(steps, n_stages=2, open_problems=open_problems), nodes=NAMES))


@pytest.mark.parametrize("times", [1.08, 1.2, 1.6])
def test_a_stage_of_most_workers_that_became_longer_is_found(times: float) -> None:
    compute = even()
    compute[-4:, 1:] *= times
    (found,) = found_in(compute)
    assert (found.rule, found.cause, found.node) == ("step_slow", "stage_imbalance", None)
    assert found.severity == "warn"
    assert set(found.evidence["late_workers"]) == {"n1", "n2"}


def test_single_lost_reports_do_not_hide_it() -> None:
    compute = even()
    compute[-4:, 1:] *= 1.2
    compute[[20, 40], [0, 2]] = np.nan
    assert [each.cause for each in found_in(compute)] == ["stage_imbalance"]
    compute[-3:, 0] = np.nan
    assert found_in(compute) == []


def test_it_is_over_when_the_stage_is_as_long_as_before() -> None:
    compute = even()
    compute[-14:, 1:] *= 1.2
    (found,) = found_in(compute[:-5])
    open_problems = (OpenProblem(found.rule, found.cause, evidence=found.evidence),)
    assert found_in(compute, open_problems=open_problems)
    compute[-3:, 1:] /= 1.2
    assert found_in(compute, open_problems=open_problems) == []


def test_an_alert_lasts_through_steps_in_which_one_of_its_workers_is_delayed() -> None:
    compute = even()
    compute[-14:, 1:] *= 1.1
    (found,) = found_in(compute[:-3])
    open_problems = (OpenProblem(found.rule, found.cause, evidence=found.evidence),)
    compute[-2:, 2] += 0.2
    assert [each.cause for each in found_in(compute, open_problems=open_problems)] == [
        "stage_imbalance"
    ]


def test_a_stage_that_was_ahead_of_a_slow_one_is_not_longer_when_that_recovers() -> None:
    compute = even()
    compute[20:50, 0] *= 1.3
    assert found_in(compute) == []


def test_two_workers_of_a_stage_that_are_late_unlike_are_no_long_stage() -> None:
    compute = even()
    compute[-4:, 1] *= 1.5
    compute[-4:, 2] *= 1.06
    assert "stage_imbalance" not in {each.cause for each in found_in(compute)}


ENOUGH_WORKERS = tuple(f"n{i}" for i in range(8))


def crowd(times: float, *, luck: float = 0.0) -> list[Finding]:
    """Eight nodes in two stages; the second has grown longer, or all draw uneven sequences."""
    rng = np.random.default_rng(8)
    compute = 3.0 * (1 + 0.003 * rng.standard_normal((60, 8)))
    compute[-30:, 4:] *= times
    compute[-5:] *= 1 + luck * rng.uniform(size=(5, 8)) ** 3
    steps = steps_of(compute, workers=ENOUGH_WORKERS)
    return find(replace(inputs(steps, n_stages=2), nodes=ENOUGH_WORKERS))


def test_half_of_the_workers_in_a_long_stage_is_no_uneven_work() -> None:
    assert [each.cause for each in crowd(1.5)] == ["stage_imbalance"]


def test_uneven_work_in_a_pipeline_is_reported_all_the_same() -> None:
    assert [each.cause for each in crowd(1.0, luck=0.8)] == ["seq_imbalance"]
