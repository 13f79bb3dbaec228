"""The interval chart: positions in percent of its width."""

import pytest

from fleet.trials.figures import TRAINIUM2, Candidate, Comparison, claim_for
from fleet.trials.text import IntervalChart, interval_chart


def candidate(ratio: float, low: float | None, high: float | None) -> Candidate:
    found = Comparison("usd_per_mtok", 1.0, 1.0 + ratio, ratio, low, high, "better", 0)
    return Candidate("trn2", "vit-trn2", (found,))


def drawn(*arguments: float | None, is_claimed: bool = True) -> IntervalChart:
    ratio, low, high = arguments
    assert ratio is not None
    found = interval_chart(candidate(ratio, low, high), TRAINIUM2 if is_claimed else None)
    assert found is not None
    return found


def test_everything_stands_on_one_axis_with_a_margin() -> None:
    # A cost is better by 30 % to none, and 8 % of that on either side: 34.8 points in all.
    found = drawn(-0.2, -0.3, -0.1)
    line = found.lines[0]

    assert float(found.zero) == pytest.approx(2.4 / 34.8 * 100, abs=0.01)
    assert float(line.at) == pytest.approx(22.4 / 34.8 * 100, abs=0.01)
    assert float(line.left) == pytest.approx(12.4 / 34.8 * 100, abs=0.01)
    assert float(line.right) == pytest.approx(32.4 / 34.8 * 100, abs=0.01)
    # 30 to 40 % more tokens per dollar are 1 / 1.3 to 1 / 1.4 of the cost per token.
    assert line.band is not None
    assert float(line.band.left) == pytest.approx((2.4 + 100 - 100 / 1.3) / 34.8 * 100, abs=0.01)
    assert float(line.band.width) == pytest.approx((1 / 1.3 - 1 / 1.4) / 0.348 * 100, abs=0.01)


def test_better_is_right_for_costs_and_for_speeds() -> None:
    cheaper = candidate(-0.2, -0.3, -0.1).comparisons[0]
    slower = Comparison("tokens_per_s", 1.0, 0.8, -0.2, -0.3, -0.1, "worse", 0)
    found = interval_chart(Candidate("trn2", "vit-trn2", (cheaper, slower)), None)

    assert found is not None
    assert [float(line.at) > float(found.zero) for line in found.lines] == [True, False]


def test_ticks_are_round_and_few() -> None:
    def texts(*arguments: float) -> list[str]:
        return [text.replace("\u202f", " ") for _, text in drawn(*arguments).ticks]

    assert texts(-0.2, -0.3, -0.1) == ["same", "10 %", "20 %", "30 %"]
    assert texts(0.9, 0.8, 1.0) == ["100 %", "75 %", "50 %", "25 %", "same", "25 %"]


def test_without_an_interval_there_is_a_point() -> None:
    line = drawn(0.2, None, None, is_claimed=False).lines[0]

    assert line.left == line.at == line.right
    assert line.band is None


def test_arms_that_are_the_very_same_are_drawn_too() -> None:
    assert float(drawn(0.0, 0.0, 0.0, is_claimed=False).zero) == pytest.approx(50)


def test_without_measures_there_is_no_chart() -> None:
    assert interval_chart(Candidate("trn2", "vit-trn2", ()), TRAINIUM2) is None


@pytest.mark.parametrize(
    ("baseline", "candidate_type", "is_notified"),
    [
        ("p5.48xlarge", "trn2.48xlarge", True),
        ("trn2.48xlarge", "p5.48xlarge", False),
        ("p4d.24xlarge", "trn2.48xlarge", False),
        ("p5.48xlarge", "trn1.32xlarge", False),
    ],
)
def test_the_claim_speaks_of_trn2_against_p5_only(
    baseline: str, candidate_type: str, is_notified: object
) -> None:
    assert (claim_for(baseline, candidate_type) is not None) is is_notified
