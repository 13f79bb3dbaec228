"""Outliers in charts of many cores or devices."""

import numpy as np
import pytest

from fleet.charts.nodes import outliers, part_lines
from telemetry.series import Series


@pytest.fixture
def rng() -> np.random.Generator:
    """The same noise for each test, in whatever order they run."""
    return np.random.default_rng(7)


def series(values: np.ndarray, **more: object) -> Series:
    return Series("efa_latency_s", np.arange(len(values)), values, **more)  # type: ignore[arg-type]


def test_the_part_that_leaves_its_peers_is_found(rng: np.random.Generator) -> None:
    values = 17e-6 * (1 + 0.05 * rng.standard_normal((900, 16)))
    values[600:, 2] = 142e-6

    assert outliers(values) == [2]


def test_a_part_that_left_and_came_back_is_found_too(rng: np.random.Generator) -> None:
    values = 17e-6 * (1 + 0.05 * rng.standard_normal((900, 16)))
    values[100:400, 5] = 100e-6

    assert outliers(values) == [5]


def test_next_to_a_far_part_noise_of_the_others_is_none() -> None:
    values = np.zeros((300, 16))
    values[100:200, 1] = 2000.0
    values[290:, [4, 13]] = 0.1

    assert outliers(values) == [1]


def test_healthy_parts_rarely_stand_out() -> None:
    n_found = sum(
        len(outliers(0.9 + 0.02 * np.random.default_rng(seed).standard_normal((900, 64))))
        for seed in range(50)
    )

    assert n_found <= 1


def test_rare_counts_rarely_stand_out() -> None:
    n_found = sum(
        len(outliers(np.random.default_rng(seed).poisson(0.5, (900, 16)).astype(float)))
        for seed in range(50)
    )

    assert n_found <= 1


def test_a_core_that_is_busy_while_the_others_wait_in_turn_is_found(
    rng: np.random.Generator,
) -> None:
    values = np.where(np.arange(900) % 9 < 7, 0.36, 0.9)[:, None] + np.zeros((1, 32))
    values[600:, 5] = 0.92

    assert outliers(values + 0.01 * rng.standard_normal(values.shape)) == [5]


@pytest.mark.parametrize("shape", [(0, 16), (900, 0), (900, 2)])
def test_too_few_to_compare_have_no_outliers(shape: tuple[int, int]) -> None:
    assert outliers(np.ones(shape)) == []


def test_all_gaps_have_no_outliers() -> None:
    assert outliers(np.full((900, 16), np.nan)) == []


def test_many_parts_become_their_spread_and_the_outliers() -> None:
    values = np.full((900, 64), 0.6)
    values[:, 17] = 0.95
    lines = part_lines(series(values), "core")

    assert [line.label for line in lines] == ["lowest", "mean", "highest", "core 17"]
    assert lines[2].values[0] == 0.95


def test_minutes_keep_their_extremes() -> None:
    values = np.full((60, 64), 0.6)
    lines = part_lines(series(values, low=values - 0.5, high=values + 0.3), "core")

    assert [round(float(line.values[0]), 3) for line in lines] == [0.1, 0.6, 0.9]


def test_the_culprit_is_marked_whatever_it_does() -> None:
    lines = part_lines(series(np.full((900, 16), 0.6)), "EFA", marked=[3, 99])

    assert [line.label for line in lines if line.role == "bad"] == ["EFA 3"]


def test_a_single_part_needs_no_number() -> None:
    assert [line.label for line in part_lines(series(np.ones((5, 1))), "host")] == ["host"]


def test_a_part_that_was_out_for_three_minutes_is_found_wherever_the_window_begins(
    rng: np.random.Generator,
) -> None:
    values = 17e-6 * (1 + 0.05 * rng.standard_normal((1800, 16)))
    values[700:890, 2] = 43e-6
    found = {tuple(outliers(values[start : start + 900])) for start in range(0, 700, 35)}

    assert found == {(2,)}
