"""Better, worse, equivalent, or cannot tell yet."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from telemetry.statistics.bootstrap import Difference
from telemetry.statistics.verdicts import WRONG_RATIO, TrialWord, boundary, verdict


def difference(ratio: float, error: float) -> Difference:
    low, high = (math.expm1(math.log1p(ratio) + side * 1.96 * error) for side in (-1, 1))
    return Difference(1.0, 1.0 + ratio, ratio, low, high, error, n_blocks=100)


def test_clearly_cheaper_is_better_and_clearly_slower_is_worse() -> None:
    cheaper = verdict(difference(-0.3, 0.01), is_better_low=True, n_steps=1000, n_planned=1000)
    slower = verdict(difference(-0.3, 0.01), is_better_low=False, n_steps=1000, n_planned=1000)

    assert (cheaper.word, cheaper.n_more_steps) == (TrialWord.BETTER, 0)
    assert slower.word == TrialWord.WORSE


def test_what_would_do_at_the_end_does_not_do_early() -> None:
    reported = difference(0.1, math.log(1.1) / (boundary(WRONG_RATIO) * 1.1))

    at_the_end = verdict(reported, is_better_low=True, n_steps=1000, n_planned=1000)
    early = verdict(reported, is_better_low=True, n_steps=100, n_planned=1000)
    assert at_the_end.word == TrialWord.WORSE
    assert early.word == TrialWord.CANNOT_TELL


@pytest.mark.parametrize(("n_steps", "error"), [(200, 0.03), (1000, 0.06)])
def test_so_many_more_steps_would_tell(n_steps: int, error: float) -> None:
    reported = verdict(difference(0.1, error), is_better_low=True, n_steps=n_steps, n_planned=1000)
    assert reported.word == TrialWord.CANNOT_TELL
    assert reported.n_more_steps is not None

    n = n_steps + reported.n_more_steps
    then = difference(0.1, error * math.sqrt(n_steps / n) * 0.999)
    assert verdict(then, is_better_low=True, n_steps=n, n_planned=1000).word == TrialWord.WORSE


def test_no_number_of_steps_shows_what_is_not_there() -> None:
    reported = verdict(difference(0.001, 0.01), is_better_low=True, n_steps=500, n_planned=1000)

    assert (reported.word, reported.n_more_steps) == (TrialWord.CANNOT_TELL, None)


def test_without_an_interval_the_plan_is_to_be_kept() -> None:
    reported = verdict(difference(0.5, math.nan), is_better_low=True, n_steps=4, n_planned=1000)

    assert (reported.word, reported.n_more_steps) == (TrialWord.CANNOT_TELL, 996)


def test_the_boundary_is_passed_as_often_as_it_states() -> None:
    walks = np.random.default_rng(7).normal(size=(4_000, 1_000)).cumsum(axis=1) / np.sqrt(1_000)
    passed = (np.abs(walks) > boundary(0.05)).any(axis=1).mean()

    assert boundary(0.05) == pytest.approx(2.2414, abs=1e-4)
    # A walk of steps passes a little less often than one without.
    assert 0.03 < passed < 0.055


def test_a_rarer_mistake_asks_for_more_evidence_and_more_steps() -> None:
    reported = difference(0.1, math.log(1.1) / 2.5)
    judged = partial(verdict, reported, is_better_low=True, n_steps=1000, n_planned=1000)

    assert judged().word == TrialWord.WORSE
    strict = judged(wrong_ratio=0.05 / 7)
    assert strict.word == TrialWord.CANNOT_TELL
    assert strict.n_more_steps == pytest.approx(
        1000 * ((boundary(0.05 / 7) / 2.5) ** 2 - 1), abs=1
    )


def test_arms_within_the_margin_are_equivalent_even_if_they_differ() -> None:
    judged = partial(verdict, is_better_low=True, n_steps=1000, n_planned=1000)
    # 0.5 % apart, give or take 2.24 * 0.1 %: not equal, and nearer than 2 %.
    assert judged(difference(-0.005, 0.001)).word == TrialWord.EQUIVALENT
    assert judged(difference(-0.005, 0.001), margin_ratio=0.0).word == TrialWord.BETTER
    assert judged(difference(-0.005, 0.001), margin_ratio=0.006).word == TrialWord.BETTER
    # The interval reaches beyond the margin.
    assert judged(difference(0.0, 0.0090)).word == TrialWord.CANNOT_TELL
    assert judged(difference(0.0, 0.0088)).word == TrialWord.EQUIVALENT


def test_few_degrees_of_freedom_ask_for_student_s_quantile() -> None:
    found = difference(0.1, math.log(1.1) / 3)
    judged = partial(verdict, is_better_low=True, n_steps=1000, n_planned=1000)

    assert judged(found).word == TrialWord.WORSE
    # 3.50 standard errors at four degrees of freedom.
    assert judged(replace(found, freedom=4.0)).word == TrialWord.CANNOT_TELL
    assert boundary(0.05, 4.0) == pytest.approx(3.495, abs=1e-3)


def test_more_steps_do_not_reduce_the_variation_between_runs() -> None:
    found = replace(difference(0.05, 0.03), run_error_log=0.025)
    early = verdict(found, is_better_low=True, n_steps=200, n_planned=1000)
    # 2.24 * 2.5 % is more than 5 %.
    assert (early.word, early.n_more_steps) == (TrialWord.CANNOT_TELL, None)

    wide = replace(difference(0.1, 0.05), run_error_log=0.03)
    early = verdict(wide, is_better_low=True, n_steps=200, n_planned=1000)
    assert early.n_more_steps is not None
    n = 200 + early.n_more_steps
    error = math.sqrt(0.03**2 + (0.05**2 - 0.03**2) * 200 / n)
    then = difference(0.1, error * 0.999)
    assert verdict(then, is_better_low=True, n_steps=n, n_planned=1000).word == TrialWord.WORSE
