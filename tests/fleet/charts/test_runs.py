"""Run charts: rolling step time against a simple loop, gaps without training."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.charts.runs import phases, rolling_pace, with_gaps, workers
from fleet.models import Run
from telemetry.steps import StepBatch
from tests.helpers import NOON_S, steps

RUN = Run(name="llama", usd_per_node_hour=21.5, n_nodes=4)


def by_the_book(batch: StepBatch, over_s: float) -> list[float]:
    """Add up, step by step, what ended within the last minute."""
    paces = []
    for i, end in enumerate(batch.ended_at_s):
        inside = [k for k in range(i + 1) if batch.ended_at_s[k] > end - over_s or k == i]
        began = batch.ended_at_s[inside[0]] - batch.step_s[inside[0]]
        paces.append(batch.tokens[inside].sum() / (end - began))
    return paces


@pytest.mark.parametrize("step_s", [0.4, 7.0, 90.0])
def test_the_rolling_pace_agrees_with_the_loop(step_s: float) -> None:
    batch = steps(n_steps=200, compute_s=step_s)
    batch = replace(batch, tokens=np.random.default_rng(3).uniform(1e3, 2e3, 200))

    np.testing.assert_allclose(
        rolling_pace(batch, over_s=60.0), by_the_book(batch, 60.0), rtol=1e-6
    )


def test_a_pause_lowers_the_pace() -> None:
    batch = steps(n_steps=60, compute_s=2.0)
    paused = replace(batch, ended_at_s=batch.ended_at_s + 30.0 * (np.arange(60) >= 30))

    assert rolling_pace(paused, over_s=60.0)[35] < 0.7 * rolling_pace(batch, over_s=60.0)[35]


def test_thinned_steps_have_the_same_pace() -> None:
    batch = steps(n_steps=400, compute_s=2.0)
    thin = batch[::8]

    np.testing.assert_allclose(rolling_pace(thin, over_s=60.0), 2048.0)


def test_no_steps_have_no_pace() -> None:
    assert rolling_pace(StepBatch.empty("llama"), over_s=60.0).size == 0


def test_where_no_step_was_under_way_there_is_a_gap() -> None:
    batch = steps(n_steps=10, compute_s=2.0)
    batch = replace(batch, ended_at_s=batch.ended_at_s + 60.0 * (np.arange(10) >= 5))
    t_s, values = with_gaps(batch, np.ones((10, 1)))

    assert np.flatnonzero(np.isnan(values[:, 0])).tolist() == [5]
    assert NOON_S + 8 < t_s[5] < NOON_S + 70


def test_a_step_that_took_long_is_no_gap() -> None:
    durations = np.full(10, 2.0)
    durations[5] = 72.0
    batch = steps(n_steps=10, workers=["a"], compute_s=1.0)
    batch = replace(
        batch,
        phases={**batch.phases, "compute_s": durations[:, None]},
        ended_at_s=NOON_S + np.cumsum(durations),
    )

    assert len(with_gaps(batch, np.ones((10, 1)))[0]) == 10


def test_the_layers_are_always_the_same() -> None:
    labels = [line.label for line in phases(RUN, steps(compute_s=1.0)).lines]

    assert labels == ["compute", "transfer", "wait", "input", "checkpoint", "other"]


def test_a_worker_that_did_not_report_is_absent_and_not_zero() -> None:
    batch = steps(wait_s=[0.3, np.nan], transfer_s=[0.1, np.nan])
    waiting = workers(RUN, batch).lines[0].values

    assert waiting[0] == pytest.approx(0.3)
    assert np.isnan(waiting[1])
