"""Charts of a trial: the cost ratio by price, and the loss by tokens."""

from dataclasses import replace

import msgspec
import pytest

from fleet.trials.charts import PriceChart, loss_chart, price_chart
from fleet.trials.figures import Match, MatchState, TrialFigures
from fleet.trials.verdict import judge
from tests.fleet.trials.test_verdict import P5, TRN2, Paid, trial


def chart(base: Paid, cand: Paid, *matches: Match) -> PriceChart | None:
    figures = trial(base, cand, *matches)
    baseline, arm = figures.arms
    return price_chart(baseline, arm, judge(figures, figures.candidates[0]))


def test_every_known_price_is_marked_with_its_cost_ratio() -> None:
    found = chart(P5, TRN2)

    # Equal at 35.7608 / 0.7 = $51.09: 51.09 / 47.76 and 51.09 / 55.04, less one.
    assert found is not None
    assert [(mark.letter, mark.price) for mark in found.marks] == [
        ("a", "$47.76"),
        ("b", "$55.04"),
    ]
    assert [mark.ratio for mark in found.marks] == pytest.approx([0.0697, -0.0718], abs=1e-4)
    assert found.marks[0].label == "capacity block, list price, 2026-10-07"
    assert found.marks[1].label == "on demand, list price, 2026-08-26, us-east-2; paid"
    # The pace is 0.4 % uncertain either way, and so is the break-even price.
    assert found.ends == pytest.approx((50.88, 51.29), abs=0.005)
    low, high = found.marks[0].low, found.marks[0].high
    assert (low, high) == pytest.approx((0.0654, 0.0740), abs=1e-4)


def test_a_contract_is_a_mark_of_its_own() -> None:
    found = chart(replace(P5, usd=40.0, basis="contract of LLM"), TRN2)

    assert found is not None
    assert found.marks[0].label == "paid, contract"
    assert found.marks[0].ratio == pytest.approx(51.087 / 40 - 1, abs=1e-4)


def test_the_curve_crosses_equal_cost_at_the_break_even_price() -> None:
    found = chart(P5, TRN2)

    assert found is not None
    points = [tuple(map(float, point.split(","))) for point in found.curve.split()]
    above = [x for x, y in points if y < float(found.zero)]
    below = [x for x, y in points if y > float(found.zero)]
    assert max(above) <= float(found.break_even_x[2]) <= min(below)
    every = [float(x) for x, _ in found.x_ticks] + [float(y) for y, _ in found.y_ticks]
    assert all(0 <= each <= 100 for each in every)


def test_a_range_of_list_prices_widens_the_interval() -> None:
    # Spot of trn1 in us-east-1: 3.67 to 4.57 dollars; equal at 24.78.
    trn1, trn1n = Paid("trn1.32xlarge", 21.5, "on demand"), Paid("trn1n.32xlarge", 24.78, "spot")
    found = chart(trn1, trn1n)

    assert found is not None
    (spot,) = [mark for mark in found.marks if mark.label.startswith("spot")]
    assert spot.price == "$3.67 to $4.57"
    assert (spot.low, spot.high) == pytest.approx(
        (24.78 / 1.004 / 4.57 - 1, 24.78 / 0.996 / 3.67 - 1), abs=1e-3
    )


def test_without_an_interval_there_is_no_band() -> None:
    figures = trial(P5, TRN2)
    changed = tuple(
        msgspec.structs.replace(each, low=None, high=None)
        for each in figures.candidates[0].comparisons
    )
    kept = msgspec.structs.replace(figures.candidates[0], pace=None, comparisons=changed)
    baseline, arm = figures.arms
    found = price_chart(baseline, arm, judge(TrialFigures((), figures.arms, (kept,)), kept))

    assert found is not None
    assert (found.band, found.ends, found.marks[0].low) == ("", None, None)


def test_different_workloads_and_equal_types_have_no_chart() -> None:
    match = Match("global_batch", "global batch", ("256", "128"), MatchState.DIFFERS)

    assert chart(P5, TRN2, match) is None
    assert chart(P5, replace(P5, tokens_per_s=90_000.0)) is None


def test_losses_of_both_arms_are_drawn_over_the_same_tokens() -> None:
    baseline, arm = trial(P5, TRN2).arms
    falling = tuple((1e6 * n, 10.0 - n) for n in range(1, 6))
    drawn = loss_chart(
        msgspec.structs.replace(baseline, losses=falling),
        msgspec.structs.replace(arm, losses=falling[:3]),
    )

    assert drawn is not None
    mine, theirs = drawn.lines
    assert (mine.is_baseline, mine.last, theirs.is_baseline, theirs.last) == (
        True,
        5.0,
        False,
        7.0,
    )
    assert mine.points.split()[:3] == theirs.points.split()
    assert [point.split(",")[0] for point in theirs.points.split()] == ["20.00", "40.00", "60.00"]
    # The first loss lies above the chart and is drawn at its edge.
    assert theirs.points.startswith("20.00,0.00 ")


def test_without_the_losses_of_both_there_is_no_chart() -> None:
    baseline, arm = trial(P5, TRN2).arms

    assert loss_chart(msgspec.structs.replace(baseline, losses=((1.0, 2.0),) * 3), arm) is None
