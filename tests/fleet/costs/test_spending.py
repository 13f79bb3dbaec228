"""A run's cost by use; the parts add up to the whole."""

import math
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest

from fleet.costs.spending import account, keep, update_spending
from fleet.models import Alert, CompileEvent, Run
from telemetry.store.hot import HotStore
from tests.helpers import NOON, NOON_S, steps

PER_S = 4 * 21.5 / 3600


def at(seconds: float) -> datetime:
    """Return a time some seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def train(hot: HotStore, first: int, n: int, since_s: float, **phases: float) -> None:
    """Store ``n`` equal steps that begin so many seconds after noon."""
    each_s = sum(phases.values())
    done = steps(n_steps=n, first=first, ended_at_s=NOON_S + since_s + each_s)
    for phase in done.phases:
        done.phases[phase][:] = phases.get(phase, 0.0)
    hot.append_steps(replace(done, ended_at_s=done.ended_at_s + each_s * np.arange(n)))


def spent_seconds(hot: HotStore, run: Run, seconds: float) -> dict[str, float]:
    """Return the seconds of each category above zero."""
    run.refresh_from_db()
    found = account(hot, run, now=at(seconds)).seconds
    return {sort: round(value, 3) for sort, value in found.items() if abs(value) > 1e-3}


def test_parts_add_up_to_what_was_spent(run: Run, hot: HotStore) -> None:
    train(hot, 1, 100, 60, compute_s=1.5, wait_s=0.25, transfer_s=0.25)

    found = account(hot, run, now=at(300))

    assert found.usd is not None
    assert sum(found.usd.values()) == pytest.approx(run.usd_by(at(300)))
    assert sum(found.seconds.values()) == pytest.approx(300)
    assert found.usd["training"] == pytest.approx(151.5 * PER_S)
    assert found.usd["idle"] == pytest.approx(38 * PER_S)


def test_adding_up_changes_nothing_but_the_work_it_takes(run: Run, hot: HotStore) -> None:
    train(hot, 1, 300, 30, compute_s=1.5, wait_s=0.5)
    whole = account(hot, run, now=at(650))

    for seconds in (200, 500, 560, 620):
        keep(hot, Run.objects.get(), now=at(seconds))

    run.refresh_from_db()
    added = account(hot, run, now=at(650))
    assert run.spending is not None
    assert run.spending["last_step"] == 265
    assert added.seconds == pytest.approx(whole.seconds)
    assert added.settled_tokens == whole.settled_tokens


def test_what_was_added_up_survives_the_loss_of_the_steps(run: Run, hot: HotStore) -> None:
    train(hot, 1, 300, 0, compute_s=2.0)
    keep(hot, run, now=at(660))
    hot._redis.flushdb()

    assert spent_seconds(hot, run, 660) == {"training": 600, "idle": 60}


def test_steps_trained_again_after_a_restart_stand_apart(run: Run, hot: HotStore) -> None:
    train(hot, 1, 210, 0, compute_s=1.0)
    Run.objects.update(last_step=210)
    run.refresh_from_db()
    keep(hot, run, now=at(300))
    train(hot, 211, 100, 300, compute_s=1.0)
    Run.objects.update(last_step=310, step_shift=40)
    run.refresh_from_db()
    keep(hot, run, now=at(500))

    assert spent_seconds(hot, run, 400) == {"training": 270, "repeated": 40, "idle": 90}
    assert (
        account(hot, run, now=at(400)).repeated_tokens
        == 40 * account(hot, run, now=at(400)).settled_tokens / 270
    )


def test_compiling_is_known_by_events_and_by_alerts(run: Run, hot: HotStore) -> None:
    train(hot, 1, 10, 100, compute_s=1.0)
    train(hot, 11, 10, 150, compute_s=1.0)
    CompileEvent.objects.create(run=run, outcome="miss", at=at(10), seconds=80)
    Alert.objects.create(
        rule="recompile",
        severity=Alert.Severity.WARN,
        subject="run:llama",
        run=run,
        score=1,
        onset_at=at(112),
        fired_at=at(117),
        last_seen_at=at(142),
        resolved_at=at(142),
    )

    assert spent_seconds(hot, run, 160) == {
        "training": 20,
        "compiling": 110,
        "warming_up": 20,
        "idle": 10,
    }


def test_a_reporting_job_compiles_until_its_first_step(run: Run, hot: HotStore) -> None:
    Run.objects.update(session="a", phase="compiling")

    assert spent_seconds(hot, run, 50) == {"compiling": 50}
    train(hot, 1, 10, 50, compute_s=1.0)
    assert spent_seconds(hot, run, 60) == {"compiling": 50, "training": 10}


def test_without_a_price_only_time_is_reported(run: Run, hot: HotStore) -> None:
    Run.objects.update(usd_per_node_hour=0.0)
    run.refresh_from_db()
    train(hot, 1, 10, 0, compute_s=1.0)

    found = account(hot, run, now=at(10))

    assert found.usd is None
    assert math.isnan(found.total_usd)
    assert found.seconds["training"] == pytest.approx(10)


def test_a_change_of_price_divides_what_was_added_up(run: Run, hot: HotStore) -> None:
    began = {"from_s": NOON_S, "n_nodes": 4, "usd_per_node_hour": 36.0, "basis": "a"}
    run.tariff = [began, {**began, "from_s": NOON_S + 300, "usd_per_node_hour": 18.0}]
    run.save()
    train(hot, 1, 600, 0, compute_s=1.0)
    keep(hot, run, now=at(660))
    run.refresh_from_db()

    found = account(hot, run, now=at(600))

    assert found.usd is not None
    assert found.usd["training"] == pytest.approx(300 * 0.04 + 300 * 0.02)
    assert found.total_usd == pytest.approx(18.0)


def test_settled_dollars_per_token_leave_out_what_does_not_train(run: Run, hot: HotStore) -> None:
    train(hot, 1, 100, 1000, compute_s=1.0)

    found = account(hot, run, now=at(1100))

    assert found.usd_per_mtok == pytest.approx(PER_S * 100 / found.settled_tokens * 1e6)
    assert found.total_usd > 10 * PER_S * 100


def test_all_runs_are_added_up_and_old_ones_once(run: Run, hot: HotStore) -> None:
    train(hot, 1, 250, 0, compute_s=1.0)
    run.finished_at = at(260)
    run.save()

    assert update_spending(hot, now=at(10_000)) == 0
    assert spent_seconds(hot, run, 10_000) == {"training": 250, "idle": 10}
    assert Run.objects.get().spending is not None
