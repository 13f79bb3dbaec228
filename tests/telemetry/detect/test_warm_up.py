"""The first steps of a run, and those after a restart, are no slowdown."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.detect.pace import WARM_UP_STEPS, comparable_steps
from telemetry.steps import StepBatch
from tests.telemetry.detect.runs import steps_of


def kept(steps: StepBatch) -> list[int]:
    return [int(step) for step in comparable_steps(steps).step]


def test_the_first_steps_of_a_run_are_left_out() -> None:
    steps = replace(steps_of([[1.0, 1.0]] * 8), step=np.arange(8))
    assert kept(steps) == list(range(WARM_UP_STEPS, 8))


@pytest.mark.parametrize(("step_s", "pause_s"), [(1.0, 60.0), (30.0, 15.0)])
def test_the_first_steps_after_a_pause_are_left_out(step_s: float, pause_s: float) -> None:
    steps = steps_of([[step_s, step_s]] * 12)
    later_s = np.where(np.arange(12) < 5, 0.0, pause_s)
    paused = replace(steps, ended_at_s=steps.ended_at_s + later_s)
    assert kept(paused) == [100, 101, 102, 103, 104, 108, 109, 110, 111]


def test_steps_without_a_report_are_no_pause() -> None:
    steps = steps_of([[4.0, 4.0]] * 40)
    steps = steps[(steps.step < 110) | (steps.step >= 120)]
    assert kept(steps) == steps.step.tolist()


def test_every_twentieth_step_is_no_pause() -> None:
    steps = steps_of([[2.0, 2.0]] * 200)
    steps = steps[steps.step % 20 == 0]
    assert kept(steps) == steps.step.tolist()


def test_while_all_are_first_steps_all_are_kept() -> None:
    steps = replace(steps_of([[1.0, 1.0]] * 2), step=np.arange(2))
    assert kept(steps) == [0, 1]


def test_steps_after_one_that_may_still_come_wait_for_it() -> None:
    steps = steps_of([[2.5, 2.5]] * 12)

    assert kept(steps[np.arange(12) != 9]) == list(range(100, 109))
    # By now it is lost.
    lost = 5
    assert kept(steps[np.arange(12) != lost]) == [i for i in range(100, 112) if i != 100 + lost]
