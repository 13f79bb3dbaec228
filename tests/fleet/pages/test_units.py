"""Numbers with units."""

import math
from datetime import timedelta

import pytest

from fleet.formatting import ABSENT, NBSP, count, duration, percent, rate, seconds, si, size, usd


@pytest.mark.parametrize("write", [percent, si, size, rate, seconds, usd, count, duration])
@pytest.mark.parametrize("nothing", [None, math.nan, math.inf, "what"])
def test_what_is_absent_is_a_dash_and_never_zero(write: object, nothing: object) -> None:
    assert callable(write)
    assert write(nothing) == ABSENT


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.314, "31.4 %"), (0.0, "0.0 %"), (1.0, "100.0 %"), (0.2549, "25.5 %")]
)
def test_a_ratio_reads_in_percent(ratio: float, text: str) -> None:
    assert percent(ratio) == text.replace(" ", NBSP)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8.41, "8.41 s"),
        (42.0, "42.0 s"),
        (0.9999, "1.00 s"),
        (0.31, "310 ms"),
        (0.0012, "1.20 ms"),
        (0.000142, "142 µs"),
        (0, "0 s"),
    ],
)
def test_a_duration_takes_the_unit_that_suits_it(value: float, text: str) -> None:
    assert seconds(value) == text.replace(" ", NBSP)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_213_000, "1.21 M"), (999_960, "1.00 M"), (187_000, "187 k"), (12, "12.0"), (0, "0")],
)
def test_a_large_number_takes_a_prefix(value: float, text: str) -> None:
    assert si(value) == text.replace(" ", NBSP)


def test_bytes_and_rates_name_their_unit() -> None:
    assert size(96e9) == f"96.0{NBSP}GB"
    assert rate(2.88e12) == f"2.88{NBSP}TB/s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.357, "$0.36"),
        (684.2, "$684"),
        (12_345.6, "$12,346"),
        (-3.5, "\u2212$3.50"),
        (0.0193, "$0.019"),
        (0.0, "$0.00"),
    ],
)
def test_dollars_have_cents_only_where_they_matter(value: float, text: str) -> None:
    assert usd(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (41, "41 s"),
        (timedelta(minutes=3, seconds=20), "3 min"),
        (4_000, "1 h 6 min"),
        (200_000, "2 d 7 h"),
        (7_210, "2 h"),
        (86_400, "1 d"),
        (-5, "0 s"),
    ],
)
def test_a_stretch_of_time_reads_in_its_two_largest_units(
    value: float | timedelta, text: str
) -> None:
    assert duration(value).replace(NBSP, " ") == text


def test_a_count_keeps_its_thousands_apart() -> None:
    assert count(18_204) == "18,204"
