"""A projected schedule: the example of docs/schedule.md, intervals, end dates."""

from dataclasses import replace

import pytest

from fleet.trials.schedule import Projection, project
from fleet.trials.schedule_arms import Planned, with_failures
from telemetry.errors import FieldError
from telemetry.statistics.forecast import Rate, Uncertainty
from tests.telemetry.statistics.examples import P5, PORTING_USD, TRN2

DOUBT = Uncertainty(0.01)


@pytest.fixture
def pair() -> tuple[Planned, ...]:
    return (
        Planned("p5", None, "", P5, DOUBT, (), seed=0),
        Planned("trn2", None, "", TRN2, DOUBT, (), seed=1),
    )


@pytest.fixture
def found(pair: tuple[Planned, ...]) -> Projection:
    return project(pair, days=14, porting_usd=PORTING_USD)


def test_it_comes_to_what_is_calculated_manually(found: Projection) -> None:
    kept = found.scenario(has_reuse=True)

    baseline, candidate = kept.arms
    assert candidate.same_days_usd == pytest.approx(20_000 + 14 * 24 * 144)
    assert found.tokens == pytest.approx(1.064868e11, rel=1e-5)
    assert baseline.same_tokens_usd.value == pytest.approx(
        40 + 0.677154e-6 * 1.064868e11, rel=1e-4
    )
    assert kept.saved_usd is not None
    assert kept.saved_usd.value == pytest.approx(3_764, abs=5)
    assert kept.break_even is not None
    assert kept.break_even.days is not None
    assert kept.break_even.days.value == pytest.approx(11.82, abs=0.01)


def test_reuse_saves_what_the_two_ways_differ_by(found: Projection) -> None:
    usd = [found.scenario(has_reuse=r).arms[-1].same_tokens_usd.value for r in (True, False)]

    saved = found.reuse_saves[-1]
    assert saved.usd.value == pytest.approx(usd[1] - usd[0])
    # A day of training takes 1.005574 days with failures, and 1.108065 without reuse.
    training_days = 1.064868e11 / (90_000 * 86_400 * 0.99)
    assert saved.days.value == pytest.approx(training_days * (1.108065 - 1.005574), rel=1e-4)
    assert found.reuse_saves[0].usd.value == 0


def test_what_is_expected_lies_within_its_interval(found: Projection) -> None:
    for scenario in found.scenarios:
        for arm in scenario.arms:
            for span in (arm.same_days_tokens, arm.same_tokens_usd, arm.same_tokens_days):
                assert span.low is not None
                assert span.high is not None
                assert span.low < span.value < span.high


def test_the_same_question_has_the_same_answer(pair: tuple[Planned, ...]) -> None:
    assert project(pair, days=14, porting_usd=5) == project(pair, days=14, porting_usd=5)


def test_a_surer_pace_has_a_narrower_interval(pair: tuple[Planned, ...]) -> None:
    def width(planned: tuple[Planned, ...]) -> float:
        saved = project(planned, days=14, porting_usd=0).scenario(has_reuse=True).saved_usd
        assert saved is not None
        assert saved.low is not None
        assert saved.high is not None
        return saved.high - saved.low

    surer = tuple(replace(each, doubt=Uncertainty(0.001)) for each in pair)

    assert width(surer) < 0.7 * width(pair)


def test_failures_known_manually_are_surer_than_none_seen(pair: tuple[Planned, ...]) -> None:
    unsure = tuple(
        replace(
            each,
            habits=replace(each.habits, failures_per_node_day=Rate(0, 4.0).mean),
            doubt=Uncertainty(0.01, Rate(0, 4.0)),
        )
        for each in pair
    )
    known = tuple(with_failures(each, 0.125) for each in unsure)

    widths = []
    for planned in (unsure, known):
        days = project(planned, days=14, porting_usd=0).scenarios[0].arms[-1].same_tokens_days
        assert days.low is not None
        assert days.high is not None
        widths.append(days.high - days.low)
    assert widths[1] < widths[0]


def test_tokens_instead_of_days_take_as_long_as_they_take(pair: tuple[Planned, ...]) -> None:
    found = project(pair, days=14, porting_usd=0, tokens=3e11)

    assert found.tokens == 3e11
    assert found.is_by_tokens
    assert found.days == pytest.approx(7_800 / 86_400 + 3e11 / 7.655568e9, rel=1e-5)
    assert found.scenarios[0].arms[-1].same_days_tokens.value == pytest.approx(3e11)


def test_a_break_even_that_may_never_come_has_no_end(pair: tuple[Planned, ...]) -> None:
    close = (pair[0], replace(pair[1], habits=replace(TRN2, usd_per_hour=213.0)))

    even = project(close, days=14, porting_usd=100).scenario(has_reuse=True).break_even

    assert even is not None
    assert even.days is not None
    assert even.days.high is None
    assert 0.5 < even.chance_ratio < 0.975


def test_one_arm_alone_has_costs_and_no_break_even(pair: tuple[Planned, ...]) -> None:
    found = project(pair[1:], days=14, porting_usd=0)

    assert [len(each.arms) for each in found.scenarios] == [1, 1]
    assert found.scenarios[0].break_even is None
    assert found.reuse_saves[0].usd.value > 0


def test_a_schedule_that_ends_before_its_first_step_is_refused(pair: tuple[Planned, ...]) -> None:
    slow = (pair[0], replace(pair[1], habits=replace(TRN2, compile_s=86_400.0)))

    with pytest.raises(FieldError, match=r"days: the first step comes after 1\.01 days"):
        project(slow, days=1, porting_usd=0)


def test_tokens_of_lifetimes_are_refused(pair: tuple[Planned, ...]) -> None:
    with pytest.raises(FieldError, match="tokens: they take"):
        project(pair, days=14, porting_usd=0, tokens=1e15)


def test_so_many_failures_that_hardly_a_step_is_kept_are_refused(
    pair: tuple[Planned, ...],
) -> None:
    doomed = tuple(with_failures(each, 24.0 * 4) for each in pair)

    with pytest.raises(FieldError, match="failures: so many keep p5 from making progress"):
        project(doomed, days=14, porting_usd=0)
