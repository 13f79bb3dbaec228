"""Shares of runs with different step ends, on one time axis."""

import numpy as np
import pytest

from fleet.charts.runs import grid, share_now
from fleet.models import Run
from fleet.runs.summaries import SHARE_S, SHARE_STEPS, run_now
from telemetry.steps import StepBatch
from tests.helpers import NOON_S, steps


def test_the_clock_ticks_on_multiples_of_its_spacing_within_the_window() -> None:
    t_s = grid(NOON_S - 31.0, NOON_S + 0.5, every_s=5)

    np.testing.assert_array_equal(t_s, NOON_S + np.arange(-30, 1, 5))


def test_the_newest_share_is_that_of_the_run_s_summary(run: Run) -> None:
    slow = steps(n_steps=5, ended_at_s=NOON_S, compute_s=0.5, transfer_s=0.5)
    quick = steps(n_steps=10, first=6, ended_at_s=NOON_S + 5, compute_s=0.75, transfer_s=0.25)
    both = StepBatch(
        "llama",
        slow.workers,
        np.r_[slow.step, quick.step],
        np.r_[slow.ended_at_s, quick.ended_at_s],
        {phase: np.r_[slow.phases[phase], quick.phases[phase]] for phase in slow.phases},
        np.r_[slow.tokens, quick.tokens],
    )

    for shown in (both[:9], slow[:3], slow[:1]):
        newest_s = shown.ended_at_s[-1]
        shared = shown.newest(SHARE_S, at_least=SHARE_STEPS)
        summary = run_now(run, shown, now_s=newest_s, shared=shared)
        assert share_now(shown, np.array([newest_s + 1])) == pytest.approx(summary.share_ratio)


def test_a_slow_step_counts_until_it_is_too_old() -> None:
    batch = steps(n_steps=1, ended_at_s=NOON_S, compute_s=20.0, transfer_s=5.0)

    share = share_now(batch, NOON_S + np.array([-10.0, 0.0, 60.0, 80.0]))

    np.testing.assert_allclose(share, [np.nan, 0.2, 0.2, np.nan])


def test_a_run_without_steps_has_no_share() -> None:
    assert np.isnan(share_now(StepBatch.empty("llama"), np.array([1.0, 2.0]))).all()


def test_steps_without_values_are_not_zero() -> None:
    batch = steps(n_steps=3, compute_s=np.nan, transfer_s=np.nan)

    assert np.isnan(share_now(batch, np.array([NOON_S + 1.0]))).all()
