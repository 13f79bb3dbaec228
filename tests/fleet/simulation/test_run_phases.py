"""Runs follow their simulated clocks: phase changes at once, counts never fall."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from fleet.models import Run
from fleet.simulation.runs import COUNT_EVERY_S, follow_runs, store_clocks
from telemetry.simulate.plan import Plan, RunSpec
from telemetry.simulate.timeline import RunClock
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S

SPEC = RunSpec(
    name="llama", model="llama2-7b", instance="trn1.32xlarge", nodes=4, tp=8,
    seq_len=4096, global_batch=64,
)  # fmt: skip
# A second at which counts are due, and one at which they are not.
DUE = datetime.fromtimestamp(NOON_S // COUNT_EVERY_S * COUNT_EVERY_S, UTC)
BETWEEN = datetime.fromtimestamp(NOON_S // COUNT_EVERY_S * COUNT_EVERY_S + 1, UTC)


@pytest.fixture
def simulated(run: Run) -> Run:
    run.plan, run.is_simulated = msgspec.to_builtins(SPEC), True
    run.save()
    return run


def report(hot: HotStore, **fields: Any) -> None:
    since: dict[str, Any] = {"phase_since_s": NOON_S, "due_until_s": 0.0, "gaps_until_s": 0.0}
    clock = RunClock(tick=NOON_S, step_started_s=NOON_S, **since, **fields)
    before = hot.clock("llama/0")
    hot.commit("llama/0", before=before, after=msgspec.json.encode(clock), blocks=(), steps=None)


def test_a_new_phase_is_written_at_once(hot: HotStore, simulated: Run) -> None:
    report(hot, phase="compiling", phase_progress_ratio=0.4)

    follow_runs(hot, now=BETWEEN)

    simulated.refresh_from_db()
    assert (simulated.phase, simulated.phase_progress_ratio) == ("compiling", 0.4)
    assert simulated.phase_since.timestamp() == NOON_S


def test_counts_are_written_when_they_are_due(hot: HotStore, simulated: Run) -> None:
    report(hot, phase="training", step=10, n_tokens=1000)

    follow_runs(hot, now=BETWEEN)
    assert Run.objects.get().last_step == 0

    follow_runs(hot, now=DUE)
    assert (Run.objects.get().last_step, Run.objects.get().n_tokens) == (10, 1000)


def test_a_clock_that_lost_some_steps_takes_none_back(hot: HotStore, simulated: Run) -> None:
    report(hot, phase="training", step=10, n_tokens=1000)
    follow_runs(hot, now=DUE)
    report(hot, phase="training", step=7, n_tokens=700)
    follow_runs(hot, now=DUE)

    assert (Run.objects.get().last_step, Run.objects.get().n_tokens) == (10, 1000)


def test_a_run_that_ended_is_finished(hot: HotStore, simulated: Run) -> None:
    report(hot, phase="failed")

    follow_runs(hot, now=BETWEEN)

    assert Run.objects.get().finished_at == datetime.fromtimestamp(NOON_S, UTC)


def test_a_run_without_a_clock_waits(hot: HotStore, simulated: Run) -> None:
    follow_runs(hot, now=DUE)

    assert Run.objects.get().phase == Run.Phase.TRAINING


def test_clocks_are_copied_into_the_database(hot: HotStore, simulated: Run) -> None:
    hot.put_plan("llama", msgspec.json.encode(Plan(run=SPEC, seed=1, epoch_s=NOON_S)))
    report(hot, phase="training", step=3)

    store_clocks(hot)

    assert Run.objects.get().clock["llama/0"]["step"] == 3
