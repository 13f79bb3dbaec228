"""Steps with missing parts: missing is not zero, the rest stays valid."""

import numpy as np

from telemetry.steps import PHASES, StepBatch


def batch(**phases: list[list[float]]) -> StepBatch:
    n_steps, n_workers = np.shape(next(iter(phases.values())))
    unknown = np.full((n_steps, n_workers), np.nan)
    reported = {phase: np.array(phases[phase]) if phase in phases else unknown for phase in PHASES}
    steps, workers = np.arange(n_steps), tuple(f"w{i}" for i in range(n_workers))
    return StepBatch("run", workers, steps, steps * 10.0, reported, np.full(n_steps, np.nan))


def test_a_step_whose_split_no_one_reports_has_a_length_and_no_share() -> None:
    reported = batch(other_s=[[2.0], [4.0]])

    np.testing.assert_array_equal(reported.step_s, [2.0, 4.0])
    assert np.isnan(reported.allreduce_share_ratio).all()
    assert np.isnan(reported.wait_ratio).all()


def test_phases_that_are_reported_count_although_others_are_not() -> None:
    reported = batch(compute_s=[[3.0, 2.0]], wait_s=[[1.0, np.nan]], transfer_s=[[0.0, np.nan]])

    np.testing.assert_array_equal(reported.worker_step_s, [[4.0, 2.0]])
    np.testing.assert_array_equal(reported.wait_ratio, [0.25])


def test_a_worker_that_reports_nothing_has_no_step() -> None:
    reported = batch(other_s=[[2.0, np.nan]])

    assert np.isnan(reported.worker_step_s[0, 1])
    np.testing.assert_array_equal(reported.step_s, [2.0])


def test_the_newest_steps_are_those_of_the_last_seconds_or_so_many() -> None:
    ten_apart = batch(compute_s=[[4.0]] * 9)

    assert ten_apart.newest(25.0, at_least=2).step.tolist() == [6, 7, 8]
    assert ten_apart.newest(3.0, at_least=2).step.tolist() == [7, 8]
    assert len(ten_apart[:0].newest(10.0, at_least=2)) == 0


def test_a_share_is_known_now_while_a_newest_step_is_timed_as_often_as_usual() -> None:
    def timed(*rows: int, n_steps: int = 60) -> StepBatch:
        wait_s = [[0.1 if row in rows else np.nan] for row in range(n_steps)]
        return batch(compute_s=[[1.0]] * n_steps, wait_s=wait_s, transfer_s=wait_s)

    assert timed(*range(60)).is_timed_now
    assert timed(0, 20, 40).is_timed_now
    assert timed(5).is_timed_now
    assert timed(*range(10, 59)).is_timed_now
    # A trace that has ended, or pauses.
    assert not timed(*range(10, 57)).is_timed_now
    assert not timed().is_timed_now
    assert not timed(0)[:0].is_timed_now
