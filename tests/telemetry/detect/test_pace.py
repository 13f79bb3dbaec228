"""Steps against the run's own past: only like is compared with like, and one blip is none."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.detect.pace import comparable_steps, find_rise, n_newest, quickest_fifth, work_s
from telemetry.steps import StepBatch
from tests.telemetry.detect.runs import steps_of


def test_a_rise_is_found_with_its_first_step() -> None:
    found = find_rise(np.array([1.0] * 20 + [1.2] * 3), least=0.1, n_now=2)
    assert found is not None
    assert (found.at, found.usual) == (20, 1.0)
    assert found.now == pytest.approx(1.2)


def test_what_is_over_is_not_when_a_later_rise_began() -> None:
    found = find_rise(np.array([1.0] * 18 + [4.0] + [1.0] * 22 + [1.3] * 2), least=0.1, n_now=2)
    assert found is not None
    assert (found.at, found.usual) == (41, 1.0)
    mended = np.array([1.0] * 20 + [1.5] * 15 + [1.0] * 10 + [1.2] * 2)
    found = find_rise(mended, least=0.1, n_now=2)
    assert found is not None
    assert (found.at, found.usual) == (45, 1.0)


@pytest.mark.parametrize(
    "x",
    [
        [1.0] * 20,
        [1.0] * 20 + [1.2],
        [1.0] * 20 + [1.2] * 3 + [1.0] * 2,
        [1.2] * 5 + [1.0] * 15,
        [1.0] * 20 + [1.05] * 5,
    ],
    ids=["steady", "one step", "over", "fell", "too little"],
)
def test_these_are_no_rises(x: list[float]) -> None:
    assert find_rise(np.array(x), least=0.1, n_now=2) is None


def test_one_long_step_is_enough_if_it_is_clear() -> None:
    assert find_rise(np.array([1.0] * 20 + [1.3]), least=0.1, n_now=1) is not None
    assert find_rise(np.array([1.0] * 20 + [1.15]), least=0.1, n_now=1) is None


def test_an_open_alert_keeps_to_what_was_usual_when_it_fired() -> None:
    assert find_rise(np.full(40, 1.2), least=0.1, n_now=2, usual=1.0) is not None
    assert find_rise(np.full(40, 1.04), least=0.1, n_now=2, usual=1.0) is None


def test_noise_is_hardly_ever_a_rise() -> None:
    rng = np.random.default_rng(1)
    found = [
        find_rise(1 + 0.01 * rng.standard_normal(60), least=0.04, n_now=2) for _ in range(2_000)
    ]
    assert found == [None] * 2_000


def test_steps_of_another_batch_or_fleet_are_not_compared() -> None:
    steps = steps_of(np.ones((10, 4)))
    tokens = np.where(np.arange(10) < 4, 8e6, 4e6)
    assert len(comparable_steps(replace(steps, tokens=tokens))) == 6
    compute = np.ones((10, 4))
    compute[:7, 3] = np.nan
    assert len(comparable_steps(steps_of(compute))) == 3


def test_lost_reports_change_no_comparison() -> None:
    compute = np.ones((12, 4))
    compute[[4, 7], 1] = np.nan
    assert len(comparable_steps(steps_of(compute))) == len(
        comparable_steps(steps_of(compute * 0 + 1))
    )
    # Who is missing in the newest step has not left, unless the run paused before it.
    compute[11, 2] = np.nan
    steps = steps_of(compute)
    assert len(comparable_steps(steps)) == len(comparable_steps(steps_of(compute * 0 + 1)))
    paused = replace(steps, ended_at_s=steps.ended_at_s + 60.0 * (np.arange(12) == 11))
    assert comparable_steps(paused).step.tolist() == [steps.step[-1]]
    left = np.vstack([compute, compute[11:]])
    assert len(comparable_steps(steps_of(left))) == 2


@pytest.mark.parametrize(("n_lost", "n_alike"), [(3, 13), (6, 1)])
def test_a_few_lost_reports_of_the_newest_step_change_no_comparison(
    n_lost: int, n_alike: int
) -> None:
    compute = np.ones((13, 40))
    compute[-1, :n_lost] = np.nan
    assert len(comparable_steps(steps_of(compute, workers=[f"n{i}" for i in range(40)]))) == (
        n_alike
    )


def test_a_checkpoint_is_no_part_of_the_pace() -> None:
    pause = np.zeros((5, 4))
    pause[2] = 30.0
    steps = steps_of(np.ones((5, 4)), checkpoint_s=pause)
    assert work_s(steps)[2] == pytest.approx(work_s(steps)[1])


def test_the_quickest_fifth_ignores_a_few_late_workers() -> None:
    compute = np.ones((1, 10))
    compute[0, :4] = 3.0
    assert quickest_fifth(compute).tolist() == [1.0]
    compute[0, 4] = np.nan
    assert quickest_fifth(compute).tolist() == [1.0]


def test_newest_means_seconds_of_short_steps_and_one_long_one() -> None:
    assert n_newest(steps_of(np.full((40, 4), 0.9))) == 5
    assert n_newest(steps_of(np.full((40, 4), 5.0))) == 1
    assert n_newest(steps_of(np.full((40, 4), 30.0))) == 1


def traced_since(row: int, *, computes_s: float, rests_s: FloatArray) -> StepBatch:
    """Return steps of 2.1 seconds whose parts a trace shows from a row on."""
    compute = np.full(rests_s.shape, 2.1)
    compute[row:] = computes_s
    steps = steps_of(compute, transfer_s=0.0, other_s=rests_s)
    unknown = np.where(np.arange(len(compute)) < row, np.nan, 0.0)[:, None] * np.ones(4)
    return replace(steps, phases={**steps.phases, "wait_s": unknown, "transfer_s": unknown})


def test_a_trace_that_separates_rests_makes_no_step_shorter() -> None:
    rests = np.zeros((8, 4))
    rests[5:] = 0.7
    steps = traced_since(5, computes_s=1.4, rests_s=rests)
    assert work_s(steps).tolist() == pytest.approx([2.1] * 8)
    # A job that reports its pauses has none of them in any step.
    rests[2], rests[5:] = 30.0, 30.0
    steps = traced_since(5, computes_s=2.1, rests_s=rests)
    assert work_s(steps).tolist() == pytest.approx([2.1] * 8)


def test_an_open_alert_ends_when_long_steps_are_single_ones_again() -> None:
    def lasts(x: list[float], *, n_since: int) -> bool:
        all_steps = np.tile(x, 24 // len(x))
        held = find_rise(all_steps, least=0.1, n_now=2, usual=1.0, n_to_resolve=5, n_since=n_since)
        return held is not None

    often = [1.0, 1.0, 1.0, 1.2]
    assert lasts(often, n_since=0)
    assert lasts(often, n_since=8)
    assert not lasts(often, n_since=12)
    assert lasts([1.0, 1.2, 1.3], n_since=24)
