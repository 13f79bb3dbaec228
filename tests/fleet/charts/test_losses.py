"""A run's loss chart: drawn where the job reports a loss, absent otherwise."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.charts.runs import has_loss, loss, run_points, with_newest_steps
from fleet.models import Run
from telemetry.store import durable
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, steps

FALLING = np.linspace(3.0, 2.0, 10)


def test_steps_that_tell_no_loss_leave_no_hole(run: Run) -> None:
    each_third = np.where(np.arange(10) % 3 == 0, FALLING, np.nan)

    figure = loss(run, replace(steps(n_steps=10, compute_s=1.0), reported_loss=each_third))

    assert figure.lines[0].values.tolist() == FALLING[::3].tolist()
    assert len(figure.t_s) == 4


def test_a_pause_is_a_gap(run: Run) -> None:
    batch = steps(n_steps=10, compute_s=1.0)
    late = batch.ended_at_s + 60.0 * (np.arange(10) >= 5)

    figure = loss(run, replace(batch, ended_at_s=late, reported_loss=FALLING))

    assert np.flatnonzero(np.isnan(figure.lines[0].values)).tolist() == [5]


def test_a_job_that_reports_none_has_nothing_to_draw(run: Run) -> None:
    assert len(loss(run, steps(n_steps=10)).t_s) == 0


@pytest.mark.parametrize("reported", [True, False])
def test_whether_it_reports_one_is_seen_in_either_tier(
    run: Run, hot: HotStore, *, reported: bool
) -> None:
    batch = replace(steps(n_steps=10), reported_loss=FALLING if reported else None)

    hot.append_steps(batch)
    fresh = has_loss(hot, run)
    hot._redis.flushdb()
    durable.write_steps(batch)
    kept = has_loss(hot, with_newest_steps(Run.objects.all()).get())

    assert (fresh, kept) == (reported, reported)


def test_only_a_chart_that_is_there_is_fed(run: Run, hot: HotStore) -> None:
    hot.append_steps(steps(n_steps=5))
    silent = run_points(hot, run, since_s=NOON_S - 60)
    hot.append_steps(
        replace(steps(n_steps=5, first=6, ended_at_s=NOON_S + 20), reported_loss=FALLING[:5])
    )

    reported = run_points(hot, run, since_s=NOON_S - 60)

    assert set(reported) - set(silent) == {"loss"}
    assert [value for value in reported["loss"]["values"][0] if value] == pytest.approx(
        FALLING[:5], rel=1e-3
    )
