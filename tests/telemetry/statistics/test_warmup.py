"""Where a run's step time has settled."""

import numpy as np

from telemetry.statistics.verdicts import settled_from


def test_slow_first_steps_are_left_out() -> None:
    rng = np.random.default_rng(1)
    steps = 1 + 0.02 * rng.normal(size=600)
    steps[:80] += np.linspace(2.0, 0.0, 80)

    assert 55 <= settled_from(steps) <= 110


def test_a_run_that_is_steady_from_the_start_loses_little() -> None:
    steps = 1 + 0.02 * np.random.default_rng(2).normal(size=600)

    assert settled_from(steps) <= 150


def test_never_more_than_half_is_left_out_and_of_a_handful_nothing() -> None:
    assert settled_from(np.linspace(2.0, 1.0, 400)) <= 200
    assert settled_from(np.linspace(2.0, 1.0, 15)) == 0


def test_a_rare_checkpoint_is_no_end_of_a_warm_up() -> None:
    step_s = 2.0 + 0.02 * np.random.default_rng(8).normal(size=2_000)
    step_s[300::640] += 60.0

    assert settled_from(step_s) < 20


def test_a_warm_up_of_long_steps_is_found_though_they_stand_out() -> None:
    step_s = 2.0 + 0.02 * np.random.default_rng(8).normal(size=1_000)
    step_s[:10] += 60.0

    assert settled_from(step_s) == 10
