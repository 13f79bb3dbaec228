"""Starts of a run: the first, restarts, and those of similar runs."""

from datetime import timedelta

import msgspec
import pytest

from fleet.models import CompileEvent, Run
from fleet.runs.annotations import annotate_phase
from fleet.trials.observed import (
    Observed,
    Start,
    compiles_of,
    loads_of,
    starts_of,
    starts_of_similar_runs,
)
from fleet.trials.schedule import store_observed
from fleet.trials.schedule_arms import Planned, planned_of
from telemetry.store.hot import HotStore
from tests.fleet.trials.schedule.conftest import LATER, train
from tests.helpers import NOON

TEN = timedelta(minutes=10)


def compiled(run: Run, *, after: timedelta, seconds: float, module: str) -> None:
    CompileEvent.objects.create(
        run=run, module=module, outcome="miss", at=NOON + after, seconds=seconds
    )


def restart(run: Run, *, after: timedelta, lasting: timedelta) -> None:
    """Let a run compile and train again, with the annotations of a real job."""
    run.last_step = 100
    run.phase = Run.Phase.COMPILING
    annotate_phase(run, was=Run.Phase.TRAINING, at=NOON + after)
    run.phase = Run.Phase.TRAINING
    annotate_phase(run, was=Run.Phase.COMPILING, at=NOON + after + lasting)


def test_each_restart_is_a_start_with_its_compile_separate(trn2: Run) -> None:
    compiled(trn2, after=timedelta(), seconds=300.0, module="a")
    restart(trn2, after=timedelta(hours=2), lasting=TEN)
    compiled(trn2, after=timedelta(hours=2), seconds=120.0, module="b")

    found = starts_of(trn2, first_began=NOON + TEN, until=LATER)

    assert found == (Start(300.0, 300.0, 1), Start(120.0, 480.0, 1))


def test_a_restart_after_the_observation_does_not_count(trn2: Run) -> None:
    restart(trn2, after=timedelta(hours=2), lasting=TEN)

    assert len(starts_of(trn2, first_began=NOON + TEN, until=NOON + timedelta(hours=1))) == 1


def test_a_planned_compile_of_a_simulated_run_is_no_restart(trn2: Run) -> None:
    trn2.is_simulated = True
    restart(trn2, after=timedelta(hours=2), lasting=TEN)

    assert len(starts_of(trn2, first_began=NOON + TEN, until=LATER)) == 1


def test_a_compile_of_fewer_graphs_is_no_full_one() -> None:
    first, other = Start(300.0, 60.0, 3), Start(280.0, 70.0, 3)

    assert compiles_of(first, [Start(90.0, 60.0, 1), other]) == (300.0, 280.0)


def test_where_compiling_is_distinguished_only_such_starts_tell_of_loading() -> None:
    reported, unreported = Start(300.0, 60.0, 3), Start(None, 400.0)

    assert loads_of(reported, [unreported]) == (60.0,)
    assert loads_of(unreported, [reported, unreported]) == (400.0, 400.0)


def test_starts_of_similar_runs_are_observed(hot: HotStore, p5: Run, trn2: Run) -> None:
    for run in (p5, trn2):
        run.instance_type, run.last_step = "trn2.48xlarge", 100
        run.save()
    train("vit-trn2", [2.0] * 100, began_s=600.0)
    store_observed(hot, trn2, until=LATER)

    assert starts_of_similar_runs(p5) == (Start(None, 600.0),)

    Run.objects.filter(pk=trn2.pk).update(global_batch=trn2.global_batch + 1)
    assert starts_of_similar_runs(p5) == ()


def seen_with(*starts: Start) -> Observed:
    return Observed(
        n_steps=1_000,
        hours=1.0,
        tokens_per_s=1e5,
        pace_error_log=0.01,
        n_checkpoints=0,
        checkpoint_s_per_hour=0.0,
        checkpoint_every_s=None,
        compile_s=starts[0].compile_s,
        is_compile_planned=False,
        load_s=starts[0].load_s,
        warm_up_s=0.0,
        n_failures=0,
        node_days=1.0,
        n_recompiles=0,
        run_days=0.25,
        starts=starts,
    )


def compare_run(planned: Planned, name: str) -> tuple[float, float | None, float | None, str]:
    found = next(each for each in planned.assumptions if each.name == name)
    return found.value, found.low, found.high, found.basis


def test_an_outage_is_assumed_until_one_was_observed(trn2: Run) -> None:
    value, low, high, basis = compare_run(
        planned_of(trn2, seen_with(Start(None, 60.0))), "outage_s"
    )
    assert (value, low, high) == pytest.approx((900.0, 300.0, 2_700.0))
    assert basis.startswith("assumed, none observed")

    seen = msgspec.structs.replace(seen_with(Start(None, 60.0)), outages_s=(600.0, 1_200.0))
    value, low, high, basis = compare_run(planned_of(trn2, seen), "outage_s")
    assert (value, low) == pytest.approx((900.0, 300.0))
    assert basis == "measured on vit-trn2, mean of 2; their spread is assumed"


@pytest.mark.parametrize(
    ("n", "shows"),
    [(1, "one observation"), (2, "mean of 2 observations, too few"), (4, "mean of 4")],
)
def test_what_was_seen_several_times_has_an_interval(trn2: Run, n: int, shows: str) -> None:
    starts = [Start(7_200.0, 600.0, 3), Start(7_000.0, 630.0, 3)] * 2

    planned = planned_of(trn2, seen_with(*starts[:n]))

    for name in ("compile_s", "load_s"):
        value, low, high, basis = compare_run(planned, name)
        assert shows in basis
        assert (low is None) is (high is None) is (n < 3)
        assert low is None or high is None or low < value < high
    assert (planned.doubt.compile_error_log is None) is (n < 3)
