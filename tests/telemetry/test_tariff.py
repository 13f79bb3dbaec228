"""Prices over time, and the average price of a period."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from telemetry.statistics.tariff import Tariff

RATES = st.lists(
    st.tuples(st.floats(0, 1e6), st.floats(0, 10)),
    min_size=1,
    max_size=5,
    unique_by=lambda r: r[0],
).map(sorted)


def by_the_second(tariff: Tariff, start: int, end: int) -> float:
    """Add up second by second what the rate was then."""
    moments = np.arange(start, end)
    place = np.searchsorted(tariff.from_s, moments, side="right") - 1
    return float(np.where(place >= 0, tariff.usd_per_s[place], 0.0).sum())


def test_it_agrees_with_adding_up_the_seconds() -> None:
    tariff = Tariff.of([(100, 0.5), (160, 0.25), (400, 2.0)])

    for start, end in ((100, 130), (150, 170), (0, 1000), (399, 401), (500, 500)):
        assert tariff.usd(start, end) == by_the_second(tariff, start, end)


@given(RATES, st.floats(0, 2e6), st.floats(0, 1e6))
def test_it_never_falls(rates: list[tuple[float, float]], end: float, more: float) -> None:
    tariff = Tariff.of(rates)

    assert tariff.usd(0, end + more) >= tariff.usd(0, end) >= 0


@given(RATES, st.floats(0, 1e6), st.floats(0, 100))
def test_a_later_rate_changes_nothing_before_it(
    rates: list[tuple[float, float]], ahead: float, usd: float
) -> None:
    moment = rates[-1][0] + ahead + 1

    assert Tariff.of([*rates, (moment, usd)]).usd(0, moment) == Tariff.of(rates).usd(0, moment)


def test_what_has_no_price_is_unknown_and_never_nothing() -> None:
    later = Tariff.of([(0, math.nan), (10, 1.0)])

    assert math.isnan(Tariff.of([(0, math.nan)]).usd(0, 5))
    assert math.isnan(Tariff.of([(0, math.nan)]).usd(0, 0))
    assert math.isnan(later.usd(0, 20))
    assert later.usd(10, 20) == 10.0
