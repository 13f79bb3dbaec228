"""The interval chart: positions in percent of its width."""

import pytest

from fleet.trials.figures import TRAINIUM2, Candidate, Comparison, claim_for
from fleet.trials.text import IntervalChart, interval_chart


def candidate(ratio: float, low: float | None, high: float | None) -> Candidate:
    found = Comparison("tokens_per_usd", 1.0, 1.0 + ratio, ratio, low, high, "better", 0)
    return Candidate("trn2", "vit-trn2", (found,))


def drawn(*arguments: float | None, is_claimed: bool = True) -> IntervalChart:
    ratio, low, high = arguments
    assert ratio is not None
    found = interval_chart(candidate(ratio, low, high), TRAINIUM2 if is_claimed else None)
    assert found is not None
    return found


def test_everything_stands_on_one_axis_with_a_margin() -> None:
    # From none to the claim's 40 %, and 8 % of that on either side: 46.4 points in all.
    found = drawn(0.2, 0.1, 0.3)
    line = found.lines[0]

    assert float(found.zero) == pytest.approx(3.2 / 46.4 * 100, abs=0.01)
    assert float(line.at) == pytest.approx(23.2 / 46.4 * 100, abs=0.01)
    assert float(line.left) == pytest.approx(13.2 / 46.4 * 100, abs=0.01)
    assert float(line.right) == pytest.approx(33.2 / 46.4 * 100, abs=0.01)
    assert line.band is not None
    assert float(line.band.left) == pytest.approx(33.2 / 46.4 * 100, abs=0.01)
    assert float(line.band.width) == pytest.approx(10 / 46.4 * 100, abs=0.01)


def test_ticks_are_round_and_few() -> None:
    assert [round(at, 3) for _, at in drawn(0.2, 0.1, 0.3).ticks] == [0, 0.1, 0.2, 0.3, 0.4]
    assert [round(at, 3) for _, at in drawn(-0.9, -1.0, -0.8).ticks] == [-1, -0.5, 0, 0.5]


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
