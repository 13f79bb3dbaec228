"""Blocks of steps: as long as the autocorrelation; every step equally likely."""

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.statistics.bootstrap import block_length, memory


def remembering(n: int, *, ratio: float, seed: int = 1) -> FloatArray:
    """Return steps of one second with this autocorrelation."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=n)
    for step in range(1, n):
        values[step] = ratio * values[step - 1] + np.sqrt(1 - ratio**2) * values[step]
    return 1.0 + 0.05 * values


def test_independent_steps_need_hardly_a_block() -> None:
    assert block_length(remembering(2_000, ratio=0.0)) <= 3


def test_the_longer_steps_remember_the_longer_the_block() -> None:
    lengths = [block_length(remembering(4_000, ratio=ratio)) for ratio in (0.0, 0.7, 0.95)]

    assert lengths == sorted(lengths)
    assert lengths[-1] > 20


def test_checkpoints_do_not_hide_a_drift_behind_them() -> None:
    steps = remembering(4_000, ratio=0.95)
    steps[100::200] += 3.0

    assert block_length(steps) > 20


@pytest.mark.parametrize("values", [np.full(500, 2.0), np.ones(3)])
def test_steps_that_do_not_vary_need_none(values: FloatArray) -> None:
    assert block_length(values) == 1


@pytest.mark.parametrize("factor", [1.0, 220.16 / 3600, 1 / 3])
def test_steps_rounded_to_a_second_are_no_long_memory(factor: float) -> None:
    rng = np.random.default_rng(6)
    ended_s = np.floor(np.cumsum(6.9 * (1 + 0.015 * rng.standard_normal(400))))
    steps = np.diff(ended_s) * factor
    deviations = steps / steps.mean() - 1

    assert memory(deviations, block_length(deviations)).n_pieces > 20


def test_a_memory_as_long_as_the_blocks_is_not_all_seen_by_them() -> None:
    found = [
        memory(values, block_length(values)).unseen_ratio
        for values in (remembering(2_000, ratio=0.98, seed=seed) for seed in range(40))
    ]

    # Blocks of a tenth of the steps show a little more than half of (1 + 0.98) / (1 - 0.98).
    assert 0.3 < np.median(found) < 1.5


@pytest.mark.parametrize(("ratio", "pieces"), [(0.8, 222), (0.95, 51), (0.98, 20)])
def test_steps_that_remember_are_worth_fewer_independent_ones(ratio: float, pieces: int) -> None:
    found = [
        memory(values, 1).n_pieces
        for values in (remembering(2_000, ratio=ratio, seed=seed) for seed in range(40))
    ]

    # 2,000 * (1 - ratio) / (1 + ratio).
    assert np.median(found) == pytest.approx(pieces, rel=0.25)


def test_rare_long_steps_do_not_hide_the_memory_of_the_others() -> None:
    values = remembering(2_000, ratio=0.98, seed=3)
    before = memory(values, 130).unseen_ratio
    values[150::200] += 3.0

    assert before > 0.2
    assert memory(values, 130).unseen_ratio > 0


@pytest.mark.parametrize("n", [10, 2_000])
def test_blocks_see_all_of_steps_that_remember_little(n: int) -> None:
    values = remembering(n, ratio=0.3, seed=4)

    assert memory(values, max(1, block_length(values))).unseen_ratio < 0.25
    assert memory(np.ones(n), 1).unseen_ratio == 0
