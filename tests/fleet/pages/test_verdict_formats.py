"""Signed differences, and verdict badges."""

import pytest

from fleet.formatting import change, points, tick, verdict_badge


@pytest.mark.parametrize(
    ("ratio", "written"),
    [
        (0.123, "+12.3 %"),
        (-0.05, "\u22125.0 %"),
        (-0.0004, "0.0 %"),
        (0.0005001, "+0.1 %"),
        (43.37, "44 times"),
        (None, "\u2013"),
    ],
)
def test_a_difference_has_its_sign(ratio: float | None, written: str) -> None:
    assert change(ratio).replace("\u202f", " ") == written


def test_ticks_are_whole_percents_and_zero_is_a_label() -> None:
    assert [tick(at).replace("\u202f", " ") for at in (0.2, 1e-17)] == ["+20 %", "same"]


@pytest.mark.parametrize(
    ("word", "colour", "written"),
    [
        ("better", "ok", "better"),
        ("worse", "bad", "worse"),
        ("cannot tell yet", "small", "inconclusive"),
    ],
)
def test_a_verdict_is_reported_in_its_colour(word: str, colour: str, written: str) -> None:
    assert colour in verdict_badge(word, "small")
    assert written in verdict_badge(word, "small")


def test_a_share_differs_by_points() -> None:
    assert [points(by).replace("\u202f", " ") for by in (0.015, -0.2)] == [
        "+1.5 points",
        "\u221220.0 points",
    ]
