"""Chart values: averages that keep gaps, and short numbers."""

import numpy as np
import pytest

from fleet.charts.figures import Chart, ChartLine, column_s, heat_of, rounded, seconds, thinned
from telemetry.series import Series


def series(values: np.ndarray, **more: object) -> Series:
    return Series("efa_latency_s", np.arange(len(values)), values, **more)  # type: ignore[arg-type]


def test_few_points_stay_as_they_are() -> None:
    t_s, values = thinned(np.arange(10), np.arange(20.0).reshape(10, 2))

    assert t_s.tolist() == list(range(10))
    assert values[3].tolist() == [6, 7]


@pytest.mark.parametrize("n", [2_001, 20_160, 4_000, 5_999])
def test_many_points_become_at_most_two_thousand_with_the_same_mean(n: int) -> None:
    t_s, values = thinned(np.arange(n), np.full((n, 3), 5.0))

    assert len(t_s) == len(values) <= 2_000
    assert np.all(np.diff(t_s) > 0)
    np.testing.assert_allclose(values, 5.0)


def test_a_long_gap_stays_a_gap_and_a_short_one_does_not_pull_down() -> None:
    values = np.ones((10_000, 1))
    values[5_000:6_000] = np.nan
    values[3] = np.nan
    _, thin = thinned(np.arange(10_000), values)

    assert np.isnan(thin[1_000:1_200]).all()
    assert np.nanmin(thin) == 1.0


@pytest.mark.parametrize("value", [1.70523e-05, 0.123456, 12.34567, 987654321.0, -4.56789])
def test_four_digits_are_kept(value: float) -> None:
    assert rounded(np.array([value]))[0] == pytest.approx(value, rel=5e-4)
    assert len(str(float(rounded(np.array([value]))[0])).replace("-", "").strip("0.")) <= 12


def test_nothing_and_absent_survive_rounding() -> None:
    assert rounded(np.array([0.0]))[0] == 0.0
    assert np.isnan(rounded(np.array([np.nan]))[0])


def test_whole_seconds_are_written_whole() -> None:
    assert seconds(np.array([1700000000.0])) == [1700000000]
    assert seconds(np.array([1.2345])) == [1.234]


def test_what_is_appended_has_the_same_lines_as_what_is_drawn() -> None:
    lines = [
        ChartLine("a", np.array([1.0, np.nan, 3.0])),
        ChartLine("b", np.array([4.0, 5.0, 6.0]), "bad"),
    ]
    figure = Chart("s", lines, np.array([10, 11, 12]))

    assert figure.since(10) == {"t": [11, 12], "values": [[None, 3.0], [5.0, 6.0]], "bad": [1]}


def test_a_heat_map_has_no_more_columns_than_a_screen_distinguishes() -> None:
    heat = heat_of(series(np.full((900, 64), 0.5)), "core", every_s=column_s(900, every_s=1))

    assert heat.values.shape == (64, 300)
    assert heat.every_s == 3


def test_columns_of_a_heat_map_keep_their_place_while_the_window_moves() -> None:
    values = np.arange(40.0)[:, None]
    early = heat_of(series(values[:30]), "core", every_s=3)
    late = heat_of(Series("x", np.arange(7, 40), values[7:]), "core", every_s=3)
    shared = np.intersect1d(early.t_s, late.t_s)[1:]

    assert len(shared) == 7
    np.testing.assert_array_equal(
        early.values[:, np.isin(early.t_s, shared)], late.values[:, np.isin(late.t_s, shared)]
    )


def test_a_heat_map_is_appended_whole_columns_only() -> None:
    heat = heat_of(series(np.arange(11.0)[:, None]), "core", every_s=3).until(10)

    assert heat.t_s.tolist() == [1, 4, 7]
    assert heat.since(1) == {"t": [4, 7], "values": [[4.0, 7.0]]}


def test_a_gap_in_a_heat_map_stays_one() -> None:
    values = np.ones((12, 1))
    values[3:6] = np.nan
    heat = heat_of(series(values), "core", every_s=3)

    assert heat.since(0)["values"] == [[1.0, None, 1.0, 1.0]]
