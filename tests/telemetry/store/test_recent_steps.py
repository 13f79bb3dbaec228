"""A run's recent steps, kept from one second to the next: the same as if all were read."""

import numpy as np
import pytest

from telemetry.steps import AVERAGE, StepBatch
from telemetry.store.hot import HotStore
from telemetry.store.packing import steps_where
from telemetry.store.reading import recent_of
from tests.helpers import NOON_S, steps

AT_LEAST = 8


def assert_same(hot: HotStore, since_s: float, *, is_ahead: bool = False) -> StepBatch:
    states = hot.step_states(["none", "llama"])
    assert set(states) == {"llama"}
    if is_ahead:
        hot.read_ahead(states, since_s=since_s)
    kept = hot.recent_steps("llama", since_s=since_s, at_least=AT_LEAST, state=states["llama"])
    read = recent_of(hot, "llama", since_s=since_s, at_least=AT_LEAST)
    np.testing.assert_array_equal(kept.step, read.step)
    np.testing.assert_array_equal(kept.ended_at_s, read.ended_at_s)
    assert kept.workers == read.workers
    for name, values in read.phases.items():
        np.testing.assert_array_equal(kept.phases[name], values, err_msg=name)
    means = hot.recent_steps("llama", since_s=since_s, at_least=AT_LEAST, averaged=True)
    assert means.workers == AVERAGE
    np.testing.assert_array_equal(means.step, read.step)
    np.testing.assert_array_equal(means.tokens, read.tokens)
    np.testing.assert_allclose(means.step_s, read.step_s)
    np.testing.assert_allclose(means.allreduce_share_ratio, read.allreduce_share_ratio)
    # Pages ask for windows of several lengths in turn.
    for other_s in (since_s - 600, since_s + 60):
        all_s = hot.steps("llama", since_s=other_s)
        means = hot.recent_steps("llama", since_s=other_s, averaged=True)
        np.testing.assert_array_equal(means.step, all_s.step)
    return kept


@pytest.mark.parametrize("step_s", [0.7, 4.0, 30.0, 200.0])
@pytest.mark.parametrize("seed", range(3))
def test_they_are_what_a_reading_of_all_gives(hot: HotStore, seed: int, step_s: float) -> None:
    """With late steps, steps that are replaced, and a window that moves on."""
    rng = np.random.default_rng(seed)
    lived = steps(ended_at_s=NOON_S, n_steps=int(1500 / step_s), compute_s=step_s)
    waiting: list[int] = []
    stored: list[int] = []
    for number, end_s in enumerate(lived.ended_at_s):
        waiting.append(number)
        if rng.random() < 0.3:
            continue
        some = [waiting.pop(int(rng.integers(len(waiting)))) for _ in range(len(waiting))]
        hot.append_steps(steps_where(lived, np.isin(np.arange(len(lived)), some)))
        stored += some
        if rng.random() < 0.2:
            again = int(rng.choice(stored[-20:]))
            amended = steps(
                first=again + 1, ended_at_s=lived.ended_at_s[again], n_steps=1, compute_s=9.0
            )
            hot.append_steps(amended, amends=True)
        if rng.random() < 0.3:
            # Detection reads all runs ahead; pages do not.
            assert_same(hot, end_s // 15 * 15 - 180, is_ahead=rng.random() < 0.5)
    kept = assert_same(hot, lived.ended_at_s[-1] // 15 * 15 - 180)
    assert len(kept) >= min(len(stored), 4)


def test_without_anything_new_it_is_the_same_batch(hot: HotStore) -> None:
    hot.append_steps(steps(ended_at_s=NOON_S, n_steps=20, compute_s=1.0))
    first = hot.recent_steps("llama", since_s=NOON_S, at_least=AT_LEAST)

    assert hot.recent_steps("llama", since_s=NOON_S, at_least=AT_LEAST) is first
    hot.append_steps(steps(first=21, ended_at_s=NOON_S + 20, n_steps=1, compute_s=1.0))
    assert len(hot.recent_steps("llama", since_s=NOON_S, at_least=AT_LEAST)) == len(first) + 1


def test_a_loss_of_redis_leaves_nothing_behind(hot: HotStore) -> None:
    hot.append_steps(steps(ended_at_s=NOON_S, n_steps=20, compute_s=1.0))
    assert len(assert_same(hot, NOON_S)) == 20
    hot.execute("FLUSHDB")
    assert len(hot.recent_steps("llama", since_s=NOON_S, at_least=AT_LEAST)) == 0

    hot.append_steps(steps(first=21, ended_at_s=NOON_S + 30, n_steps=3, compute_s=1.0))
    assert assert_same(hot, NOON_S).step.tolist() == [21, 22, 23]


def test_a_run_without_steps_has_none(hot: HotStore) -> None:
    assert len(hot.recent_steps("llama", since_s=NOON_S, at_least=AT_LEAST)) == 0
