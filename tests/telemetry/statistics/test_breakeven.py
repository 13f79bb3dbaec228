"""Break-even: manual sums, limits, and cases without one."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.statistics.break_even import Reason, break_even, break_even_days
from telemetry.statistics.forecast import Course, course
from tests.telemetry.statistics.examples import P5, PORTING_USD, TRN2


def test_it_comes_when_calculated_manually() -> None:
    baseline = course(P5, has_reuse=True)
    candidate = course(TRN2, has_reuse=True, porting_usd=PORTING_USD)

    found = break_even(baseline, candidate)

    # $20,312 against $40 before the first step, then $0.4514 against $0.6771 per million tokens.
    assert found.reason == Reason.EARNED_BACK
    assert found.tokens == pytest.approx(20_272 / 0.22571805e-6, rel=1e-5)
    assert found.days == pytest.approx(11.8217, abs=1e-3)
    assert found.days is not None
    assert found.tokens is not None
    assert candidate.usd_by(found.days) == pytest.approx(baseline.usd_for(found.tokens))


def test_what_is_dearer_per_token_never_earns_its_start_back() -> None:
    dear = course(replace(TRN2, usd_per_hour=400.0), has_reuse=True)

    found = break_even(course(P5, has_reuse=True), dear)

    assert (found.reason, found.days, found.tokens) == (Reason.COSTS_MORE, None, None)


def test_what_is_dearer_per_token_may_be_ahead_at_first() -> None:
    slow_start = course(replace(P5, load_s=9_000.0), has_reuse=True)
    dear = course(replace(P5, usd_per_hour=250.0), has_reuse=True)

    assert break_even(slow_start, dear).reason == Reason.AHEAD_AT_FIRST


def test_what_costs_less_from_its_first_step_is_ahead_from_there() -> None:
    cheap = course(replace(P5, usd_per_hour=100.0), has_reuse=True)

    found = break_even(course(P5, has_reuse=True), cheap)

    assert found.reason == Reason.FROM_THE_START
    assert found.days == pytest.approx(600 / 86_400)


def test_draws_agree_with_one_by_one() -> None:
    baseline = course(P5, has_reuse=True)
    usd = np.array([100.0, 144.0, 214.0, 217.0, 400.0])
    candidate = course(replace(TRN2, usd_per_hour=usd), has_reuse=True, porting_usd=PORTING_USD)

    days = break_even_days(baseline, candidate)

    one_by_one = [
        break_even(baseline, Course(PORTING_USD, 24 * each, 7_800 / 86_400, tokens)).days
        for each, tokens in zip(
            usd, np.broadcast_to(candidate.tokens_per_day, usd.shape), strict=True
        )
    ]
    np.testing.assert_allclose(days, [np.inf if d is None else d for d in one_by_one])
    assert list(np.isinf(days)) == [False, False, False, True, True]
