"""Deviations from peers: robust, with a measured floor; unknown is no deviation."""

import numpy as np
import pytest

from fleet.charts.deviations import (
    SIGNALS,
    calm_level,
    deviations,
    furthest,
    level_of,
    middle,
    outlier_of,
    strengths,
)
from telemetry.blocks import FloatArray

NAN = float("nan")
LATENCY, BUSY, RETRANSMITS = (
    SIGNALS[name] for name in ("efa-latency", "utilization", "retransmits")
)


def noise(*shape: int) -> FloatArray:
    return np.random.default_rng(11).standard_normal(shape)


def test_it_is_the_robust_formula_of_one_time() -> None:
    values = 16.5e-6 + 0.4e-6 * noise(1, 64)
    median = np.median(values)
    spread = 1.4826 * np.median(np.abs(values - median))

    z, medians = deviations(LATENCY, values)

    np.testing.assert_allclose(z, (values - median) / spread)
    assert medians.tolist() == [median]


def test_all_equal_deviate_by_nothing() -> None:
    z, medians = deviations(BUSY, np.full((3, 8), 0.97))

    assert not z.any()
    assert medians.tolist() == [0.97] * 3


def test_what_is_unknown_has_no_deviation_and_counts_for_nothing() -> None:
    z, medians = deviations(BUSY, np.array([[0.5, NAN, 0.5, 0.5], [NAN] * 4]))

    np.testing.assert_array_equal(z, [[0, NAN, 0, 0], [NAN] * 4])
    np.testing.assert_array_equal(medians, [0.5, NAN])


def test_a_single_member_has_no_peers() -> None:
    z, _ = deviations(BUSY, np.array([[0.2], [0.9]]))

    assert np.isnan(z).all()
    assert np.isnan(strengths(z)).all()


def test_rounding_of_the_store_is_no_deviation() -> None:
    values = np.full((1, 16), 247 / 254)
    values[0, 3] = 248 / 254

    assert not strengths(deviations(BUSY, values)[0])[0, :3].any()
    assert abs(deviations(BUSY, values)[0][0, 3]) < 4


def test_a_second_that_is_calm_by_chance_uses_the_usual_spread() -> None:
    values = 1 + 0.1 * noise(50, 16)
    values[20] = 1.0
    values[20, 2] = 1.1

    z, _ = deviations(SIGNALS["compute"], values)

    assert abs(z[20, 2]) < 1.5


def test_counts_scatter_by_the_root_of_their_mean() -> None:
    values = np.zeros((1, 16))
    values[0, 0], values[0, 1] = 1.0, 600.0

    z, _ = deviations(RETRANSMITS, values)

    assert z[0, :2].tolist() == [1.0, 600.0]


def test_noise_is_calm_and_an_outlier_has_the_strongest_colour() -> None:
    values = 16.5e-6 * (1 + 0.03 * noise(300, 32))
    values[:, 7] = 144e-6

    shown = strengths(deviations(LATENCY, values)[0])

    assert (shown[:, 7] == 1).all()
    assert (np.delete(shown, 7, axis=1) != 0).mean() < 1e-3


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_middle_leaves_out_gaps(n: int) -> None:
    values = np.concatenate([noise(4, n), np.full((4, 3), NAN)], axis=1)

    np.testing.assert_allclose(middle(values), np.nanmedian(values, axis=1))
    assert np.isnan(middle(values[:, n:])).all()


def test_a_late_probe_is_no_level() -> None:
    values = np.full((10, 1), 16e-6)
    values[4] = 48e-6

    assert level_of(LATENCY, values).tolist() == [16e-6]
    assert level_of(BUSY, np.array([[0.0], [1.0]])).tolist() == [0.5]


def test_the_outlier_is_named_with_its_peers() -> None:
    values = 16.5e-6 + 0.1e-6 * noise(4, 8)
    values[2, 4] = 144e-6
    names = ["a", "b", "c", "d"]

    found = outlier_of(LATENCY, names, values)

    assert found is not None
    assert (found.node, found.number, found.place) == ("c", 4, "EFA 4")
    assert found.figures.replace("\u202f", " ") == "144 µs, peers 16.5 µs"
    assert outlier_of(LATENCY, names, values, own=[0, 1, 3]) is None


@pytest.mark.parametrize(("name", "sign"), [("compute", 1), ("wait", -1), ("efa-latency", 1)])
def test_what_is_better_than_its_peers_is_no_outlier(name: str, sign: int) -> None:
    values = np.array([[1.0], [1.001], [0.999], [1.0], [1.0 + 0.3 * sign]])
    worse, better = (
        outlier_of(SIGNALS[name], [*"abcde"], each, step_s=2.0) for each in (values, 2.0 - values)
    )

    assert (worse and worse.node, better) == ("e", None)


def test_noise_has_no_outlier_and_the_furthest_signal_leads() -> None:
    calm = [outlier_of(LATENCY, ["a"] * 4, 1 + 0.1 * noise(4, n)) for n in (2, 8)]
    far = outlier_of(BUSY, ["a", "b", "c"], np.array([[0.9], [0.9], [0.1]]))

    assert calm == [None, None]
    assert furthest([*calm, far, None]) == far
    assert calm_level(1, 1) == np.inf
