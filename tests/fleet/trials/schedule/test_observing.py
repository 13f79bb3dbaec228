"""Observed pace and losses of a run, compared with simple sums."""

from datetime import timedelta

import pytest

from fleet.models import CompileEvent, Run
from fleet.runs.annotations import annotate_phase
from fleet.trials.observed import observe
from telemetry.store.hot import HotStore
from tests.fleet.trials.schedule.conftest import LATER, failed, train
from tests.fleet.trials.schedule.test_run_starts import restart
from tests.helpers import NOON


def test_checkpoints_are_distinguished_from_the_pace(hot: HotStore, p5: Run) -> None:
    # 1,000 steps of 2 s, every hundredth with 20 s of checkpoint on top: 2,200 s.
    train("vit-p5", [2.0] * 1_000, checkpoint_s=20.0, every=100)

    seen = observe(hot, p5, until=LATER)

    assert seen.tokens_per_s == pytest.approx(1e6 / 2.0, rel=2e-3)
    assert seen.n_checkpoints == 10
    assert seen.checkpoint_s_per_hour == pytest.approx(200 / 2_200 * 3_600, rel=1e-3)
    assert seen.checkpoint_every_s == pytest.approx(220, rel=1e-3)


def test_what_compiled_before_the_first_step_is_distinguished_from_loading(
    hot: HotStore, trn2: Run
) -> None:
    train("vit-trn2", [2.0] * 100, began_s=1_800.0)
    for begin_s, seconds in ((0, 600), (300, 600), (3_000, 600)):
        CompileEvent.objects.create(
            run=trn2,
            module=f"MODULE_{begin_s}",
            outcome="miss",
            at=NOON + timedelta(seconds=begin_s),
            seconds=seconds,
        )

    seen = observe(hot, trn2, until=LATER)

    # Two that overlap cover 900 s; the third came amid training.
    assert seen.compile_s == pytest.approx(900)
    assert seen.load_s == pytest.approx(900, abs=0.1)


def test_a_run_that_found_all_its_graphs_compiled_nothing(hot: HotStore, trn2: Run) -> None:
    train("vit-trn2", [2.0] * 100)
    CompileEvent.objects.create(run=trn2, module="MODULE_1", outcome="hit", at=NOON)

    assert observe(hot, trn2, until=LATER).compile_s == 0


def test_a_run_that_states_nothing_of_compiling_is_not_reported_to_compile_nothing(
    hot: HotStore, trn2: Run
) -> None:
    train("vit-trn2", [2.0] * 100, began_s=600.0)

    seen = observe(hot, trn2, until=LATER)

    assert seen.compile_s is None
    assert seen.load_s == pytest.approx(600, abs=0.1)


def test_warming_up_costs_what_its_steps_take_beyond_settled_ones(hot: HotStore, p5: Run) -> None:
    train("vit-p5", [10.0] * 5 + [2.0] * 195)

    assert observe(hot, p5, until=LATER).warm_up_s == pytest.approx(5 * 8.0, rel=1e-2)


def test_alerts_of_one_failure_count_once_and_drills_not_at_all(hot: HotStore, p5: Run) -> None:
    train("vit-p5", [2.0] * 3_600)
    failed(p5, after=timedelta(minutes=30))
    failed(p5, after=timedelta(minutes=32), rule="node_silent", cause="node_crash")
    failed(p5, after=timedelta(minutes=90))
    failed(p5, after=timedelta(minutes=100, seconds=1), is_drill=True)
    failed(p5, after=timedelta(minutes=40), rule="step_slow")
    failed(p5, after=timedelta(minutes=60), rule="recompile")

    seen = observe(hot, p5, until=LATER)

    assert (seen.n_failures, seen.n_recompiles) == (2, 1)
    assert seen.node_days == pytest.approx(4 * 2 / 24, rel=1e-3)
    assert seen.run_days == pytest.approx(2 / 24, rel=1e-3)


def test_an_outage_lasts_from_the_failure_until_its_restart(hot: HotStore, p5: Run) -> None:
    train("vit-p5", [2.0] * 7_200)
    for minutes, resolved in ((30, 56), (60, 65), (150, 166)):
        resolved_at = p5.started_at + timedelta(minutes=resolved)
        failed(p5, after=timedelta(minutes=minutes), resolved_at=resolved_at)
    restart(p5, after=timedelta(minutes=50), lasting=timedelta(minutes=5))
    # After the second failure the run went on by itself; a planned restart came later.
    restart(p5, after=timedelta(minutes=100), lasting=timedelta(minutes=5))
    restart(p5, after=timedelta(minutes=160), lasting=timedelta(minutes=5))

    assert observe(hot, p5, until=LATER).outages_s == (1_200.0, 600.0)


def test_a_job_that_failed_is_out_until_its_next_process_and_then_loads(
    hot: HotStore, p5: Run
) -> None:
    train("vit-p5", [2.0] * 3_600)
    p5.last_step, p5.phase = 100, Run.Phase.FAILED
    annotate_phase(p5, was=Run.Phase.TRAINING, at=NOON + timedelta(minutes=30))
    restart(p5, after=timedelta(minutes=150), lasting=timedelta(minutes=10))

    seen = observe(hot, p5, until=LATER)

    assert (seen.n_failures, seen.outages_s) == (1, (7_200.0,))
    assert [start.load_s for start in seen.starts][1:] == [600.0]


def test_a_run_that_failed_has_failed_once(hot: HotStore, p5: Run) -> None:
    train("vit-p5", [2.0] * 100)
    p5.phase = Run.Phase.FAILED

    assert observe(hot, p5, until=LATER).n_failures == 1


def test_later_steps_and_alerts_do_not_count(hot: HotStore, p5: Run) -> None:
    train("vit-p5", [2.0] * 900)
    failed(p5, after=timedelta(minutes=20))

    seen = observe(hot, p5, until=NOON + timedelta(minutes=10))

    assert seen.n_steps < 300
    assert seen.n_failures == 0


def test_a_run_without_steps_reports_nothing(hot: HotStore, p5: Run) -> None:
    seen = observe(hot, p5, until=LATER)

    assert (seen.n_steps, seen.tokens_per_s, seen.load_s) == (0, None, None)


def test_two_reads_of_the_same_steps_are_equal(hot: HotStore, trained: object, p5: Run) -> None:
    assert observe(hot, p5, until=LATER) == observe(hot, p5, until=LATER)
