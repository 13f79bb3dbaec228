"""When it began: change points against the literal formula, identities and stated rates."""

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.statistics.change_points import noise, rise


def best_split(x: FloatArray) -> int:
    """Try every split and keep the one that leaves the least squares around two means."""
    left = {k: x[:k].var() * k + x[k:].var() * (len(x) - k) for k in range(1, len(x))}
    return min(left, key=lambda k: left[k])


@pytest.mark.parametrize("seed", range(20))
def test_the_likeliest_rise_is_the_split_of_least_squares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(60)
    x[int(rng.integers(5, 55)) :] += 3.0
    found = rise(x, floor=0.01)
    assert found is not None
    assert found.at == best_split(x)


def test_a_rise_does_not_depend_on_unit_or_zero() -> None:
    x = np.random.default_rng(5).standard_normal(50) + np.repeat([0.0, 4.0], 25)
    here, there = rise(x, floor=0.01), rise(1e-3 * x + 7.0, floor=1e-5)
    assert here is not None
    assert there is not None
    assert here.at == there.at
    assert here.sigma == pytest.approx(there.sigma)


def test_a_fall_is_no_rise() -> None:
    assert rise(np.repeat([4.0, 0.0], 25), floor=0.1) is None


def test_a_steady_series_has_no_rise() -> None:
    assert rise(np.ones(40), floor=0.01) is None
    assert rise(np.ones(1), floor=0.01) is None
    assert rise(np.zeros(0), floor=0.01) is None


def test_noise_alone_seldom_looks_like_a_rise() -> None:
    draws = np.random.default_rng(11).standard_normal((2_000, 60))
    false = sum(rise(x, floor=0.01) is not None for x in draws)
    assert false / len(draws) < 0.10


def test_the_onset_of_a_clear_rise_is_exact() -> None:
    rng = np.random.default_rng(12)
    misses = 0
    for _ in range(200):
        at = int(rng.integers(10, 40))
        x = 0.1 + 0.005 * rng.standard_normal(at + 5)
        x[at:] += 0.1
        found = rise(x, floor=0.005)
        misses += found is None or found.at != at
    assert misses == 0


def test_noise_is_distinguished_from_jumps() -> None:
    x = np.random.default_rng(2).standard_normal(4_000)
    assert noise(x) == pytest.approx(1.0, rel=0.05)
    assert noise(x + 100 * (np.arange(4_000) > 2_000)) == pytest.approx(1.0, rel=0.05)
    assert noise(np.ones(1)) == 0.0
