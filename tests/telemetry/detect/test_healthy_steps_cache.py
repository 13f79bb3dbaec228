"""Healthy steps are not examined twice; other steps, or with an alert open, are."""

from dataclasses import replace

import numpy as np

from telemetry.detect import HealthyStepsCache, find
from telemetry.detect.inputs import OpenProblem
from telemetry.steps import StepBatch
from tests.telemetry.detect.runs import Machines, inputs, steps_of


def calm(n_steps: int = 30) -> StepBatch:
    rng = np.random.default_rng(3)
    return steps_of(2.0 + 0.002 * rng.standard_normal((n_steps, 4)))


def test_only_equal_steps_are_recognised() -> None:
    cache, steps = HealthyStepsCache(), calm()
    assert find(inputs(steps, healthy_steps=cache)) == []
    assert cache.is_healthy(steps)
    assert cache.is_healthy(calm())
    assert not cache.is_healthy(calm(29))
    compute = steps.phases["compute_s"].copy()
    compute[7, 2] += 1e-6
    assert not cache.is_healthy(replace(steps, phases=dict(steps.phases) | {"compute_s": compute}))


def test_steps_with_a_finding_are_examined_each_time() -> None:
    cache = HealthyStepsCache()
    slow = calm().phases["compute_s"].copy()
    slow[-8:, 1] *= 1.5
    steps = steps_of(slow)
    seen = inputs(steps, Machines(float(steps.ended_at_s[-1])), healthy_steps=cache)
    first = find(seen)
    assert first
    assert not cache.is_healthy(steps)
    assert [f.rule for f in find(seen)] == [f.rule for f in first]


def test_with_an_open_alert_every_step_is_examined() -> None:
    cache, steps = HealthyStepsCache(), calm()
    open_one = (OpenProblem("step_slow", "seq_imbalance", evidence={"kind": "waiting"}),)
    find(inputs(steps, healthy_steps=cache, open_problems=open_one))
    assert not cache.is_healthy(steps)
