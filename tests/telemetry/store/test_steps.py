"""Steps in the hot store: exact, once each, with workers that join and leave."""

import numpy as np
import pytest

import telemetry.store.commits
from telemetry.steps import PHASES
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, steps


def test_steps_come_back_exactly(hot: HotStore) -> None:
    batch = steps(n_steps=5, compute_s=[0.1, 0.3], wait_s=[0.2, 0.0], transfer_s=0.1)
    hot.append_steps(batch)

    found = hot.steps("llama", since_s=0)

    assert found.workers == batch.workers
    np.testing.assert_array_equal(found.step, batch.step)
    np.testing.assert_array_equal(found.ended_at_s, batch.ended_at_s)
    np.testing.assert_array_equal(found.tokens, batch.tokens)
    for phase in PHASES:
        np.testing.assert_array_equal(found.phases[phase], batch.phases[phase])


def test_a_step_counts_once_whenever_it_ended(hot: HotStore) -> None:
    assert hot.append_steps(steps(n_steps=5, compute_s=1.0)) == 5
    assert hot.append_steps(steps(n_steps=7, compute_s=1.0, ended_at_s=NOON_S + 300)) == 2
    assert hot.totals().steps == {"llama": 7}
    assert hot.totals().tokens == {"llama": 7 * 4096.0}


def test_late_steps_take_their_place(hot: HotStore) -> None:
    hot.append_steps(steps(n_steps=3, first=10, ended_at_s=NOON_S + 10, compute_s=1.0))
    hot.append_steps(steps(n_steps=3, first=1, ended_at_s=NOON_S, compute_s=1.0))

    assert hot.steps("llama", since_s=0).step.tolist() == [1, 2, 3, 10, 11, 12]


def test_a_window_includes_its_start_and_excludes_its_end(hot: HotStore) -> None:
    hot.append_steps(steps(n_steps=200, compute_s=1.0))

    found = hot.steps("llama", since_s=NOON_S + 50, until_s=NOON_S + 130)

    assert found.ended_at_s[[0, -1]].tolist() == [NOON_S + 50, NOON_S + 129]


def test_a_worker_that_joins_was_absent_before(hot: HotStore) -> None:
    hot.append_steps(steps(workers=["a", "b"], n_steps=2, compute_s=[1.0, 2.0]))
    hot.append_steps(steps(workers=["b", "c"], n_steps=1, first=3, compute_s=[3.0, 4.0]))

    found = hot.steps("llama", since_s=0)

    # In the order of the newest: a restart may give workers other ranks.
    assert found.workers == ("b", "c", "a")
    np.testing.assert_array_equal(
        found.phases["compute_s"], [[2, np.nan, 1], [2, np.nan, 1], [3, 4, np.nan]]
    )


def test_a_fast_run_and_a_wide_one_both_fit(hot: HotStore) -> None:
    eight, thousand = [f"w{i}" for i in range(8)], [f"w{i}" for i in range(1000)]
    fast = steps("fast", eight, n_steps=600, compute_s=0.1)
    wide = steps("wide", thousand, n_steps=30, compute_s=10.0)

    assert (hot.append_steps(fast), hot.append_steps(wide)) == (600, 30)
    assert len(hot.steps("fast", since_s=NOON_S)) == 600
    assert hot.steps("wide", since_s=NOON_S).phases["compute_s"].shape == (30, 1000)


def test_steps_beyond_reason_are_refused_and_counted(
    hot: HotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry.store.commits, "MAX_STEPS_PER_MINUTE", 10)

    assert hot.append_steps(steps(n_steps=15, compute_s=0.01)) == 10
    assert hot.counters()["refused_for_room"] == 5


def test_steps_of_long_ago_are_refused_and_counted(hot: HotStore) -> None:
    hot.append_steps(steps(n_steps=1))

    assert hot.append_steps(steps(n_steps=1, first=0, ended_at_s=NOON_S - 2000)) == 0
    assert hot.counters()["refused_steps"] == 1


def test_a_run_without_steps_has_none(hot: HotStore) -> None:
    assert len(hot.steps("missing", since_s=0)) == 0
    assert hot.append_steps(steps(n_steps=0)) == 0
    assert hot.newest_step_at("missing") is None
