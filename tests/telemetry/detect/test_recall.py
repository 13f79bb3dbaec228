"""Steps that were calm are not judged twice; whatever differs, or is open, is."""

from dataclasses import replace

import numpy as np

from telemetry.detect import CalmCache, find
from telemetry.detect.inputs import OpenProblem
from telemetry.steps import StepBatch
from tests.telemetry.detect.runs import Machines, inputs, steps_of


def calm(n_steps: int = 30) -> StepBatch:
    rng = np.random.default_rng(3)
    return steps_of(2.0 + 0.002 * rng.standard_normal((n_steps, 4)))


def test_calm_steps_are_known_again_and_others_are_not() -> None:
    recall, steps = CalmCache(), calm()
    assert find(inputs(steps, calm_cache=recall)) == []
    assert recall.is_calm(steps)
    assert recall.is_calm(calm())
    assert not recall.is_calm(calm(29))
    compute = steps.phases["compute_s"].copy()
    compute[7, 2] += 1e-6
    assert not recall.is_calm(replace(steps, phases=dict(steps.phases) | {"compute_s": compute}))


def test_steps_that_show_something_are_judged_each_time() -> None:
    recall = CalmCache()
    slow = calm().phases["compute_s"].copy()
    slow[-8:, 1] *= 1.5
    steps = steps_of(slow)
    seen = inputs(steps, Machines(float(steps.ended_at_s[-1])), calm_cache=recall)
    first = find(seen)
    assert first
    assert not recall.is_calm(steps)
    assert [f.rule for f in find(seen)] == [f.rule for f in first]


def test_with_an_alert_open_nothing_is_taken_as_known() -> None:
    recall, steps = CalmCache(), calm()
    open_one = (OpenProblem("step_slow", "seq_imbalance", evidence={"kind": "waiting"}),)
    find(inputs(steps, calm_cache=recall, open_problems=open_one))
    assert not recall.is_calm(steps)
