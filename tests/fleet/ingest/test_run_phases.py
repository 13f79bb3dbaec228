"""A reporting run from its first line to its end: phases, counts, silence."""

import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.utils.html import strip_tags
from pytest_django import Settings

from fleet.alerts.evaluate import watch
from fleet.models import Alert, Annotation, Run
from telemetry.steps import PHASES, StepBatch
from telemetry.store.durable import write_steps
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import ABOUT, NODES, line, step, step_lines
from tests.fleet.ingest.conftest import Deliver, Follow

Phase = Run.Phase


@pytest.fixture(autouse=True)
def _open_to_all(settings: Settings) -> None:
    settings.ANONYMOUS_READING = True


@pytest.fixture
def now_s() -> float:
    return float(int(time.time()) // 10 * 10)


def run_now() -> Run:
    return Run.objects.get(name="real")


def beat(node: str, kind: str = "beat", **shown: Any) -> bytes:
    return line(kind, worker=node, n_workers=len(NODES), **shown)


def test_it_compiles_until_its_first_step_is_over(
    deliver: Deliver, follow: Follow, now_s: float
) -> None:
    deliver(line("run", at=now_s - 600, **ABOUT), *map(beat, NODES), at_s=now_s)
    follow(now_s)
    before = run_now()
    deliver(*step_lines(1, ended_at=now_s + 5), at_s=now_s + 5)
    follow(now_s + 10)
    after = run_now()

    assert (before.phase, before.n_workers) == (Phase.COMPILING, 4)
    assert before.started_at == datetime.fromtimestamp(now_s - 600, UTC)
    assert (after.phase, after.last_step, after.n_tokens) == (Phase.TRAINING, 1, 64 * 4096)
    assert after.phase_since == datetime.fromtimestamp(now_s + 4, UTC)


def test_a_worker_that_does_not_arrive_is_named(
    deliver: Deliver, follow: Follow, now_s: float, hot: HotStore, client: Client
) -> None:
    ranks = dict(enumerate(NODES))

    def report(after_s: float, *who: int) -> list[Alert]:
        at_s = now_s - 400 + after_s
        deliver(*(beat(ranks[rank], rank=rank) for rank in who), at_s=at_s)
        follow(at_s)
        hot.gauge("listening_since_s", now_s - 900)
        hot.gauge("watched_at_s", at_s)
        watch(hot, now=datetime.fromtimestamp(at_s, UTC))
        return list(Alert.objects.open().filter(rule="workers_missing"))

    assert report(0, 0, 1, 2) == []
    assert report(300, 0, 1, 2) == []
    (alert,) = report(310, 0, 1, 2)
    assert (alert.evidence["n_missing"], alert.evidence["missing_ranks"]) == (1, [3])
    page = client.get(run_now().get_absolute_url()).text
    assert "1 of 4 workers of real has not arrived: rank 3" in strip_tags(page)
    assert "waiting for workers that have not arrived" in page
    assert "it is compiling" not in page
    # No worker is heard; then it arrives.
    assert report(350) == [alert]
    assert report(360, 3) == []


def test_a_checkpoint_is_slow_by_those_of_the_hours_before(
    deliver: Deliver, follow: Follow, now_s: float, hot: HotStore
) -> None:
    """It writes one an hour, each in 20 s; nothing is known of its model."""
    ended_at_s = now_s - 4 * 3600 + np.arange(3 * 360) * 10.0
    phases = {phase: np.full((len(ended_at_s), 4), np.nan) for phase in PHASES}
    phases["compute_s"][:] = 10.0
    phases["checkpoint_s"][100::360] = 20.0
    numbers = np.arange(1, len(ended_at_s) + 1)
    write_steps(StepBatch("real", NODES, numbers, ended_at_s, phases, np.zeros(len(numbers))))
    for i in range(30):
        ended_s = now_s - 60 + 2 * i
        deliver(*step_lines(2_000 + i, ended_at=ended_s), at_s=ended_s)

    def found_after(after_s: float) -> list[Alert]:
        at_s = now_s - 2 + after_s
        beats = [beat(node, activity="checkpoint", activity_s=after_s - 1) for node in NODES]
        deliver(*beats, at_s=at_s)
        follow(at_s)
        hot.gauge("listening_since_s", now_s - 900)
        hot.gauge("watched_at_s", at_s)
        watch(hot, now=datetime.fromtimestamp(at_s, UTC))
        return list(Alert.objects.open())

    assert found_after(55) == []
    (alert,) = found_after(66)
    assert (alert.rule, alert.evidence["said_by"]) == ("checkpoint_slow", list(NODES))
    assert alert.evidence["baseline_phase_s"] == pytest.approx(20.0, rel=0.01)


def test_it_has_finished_when_all_its_workers_have(
    deliver: Deliver, follow: Follow, now_s: float
) -> None:
    deliver(*step_lines(1, ended_at=now_s), at_s=now_s)
    deliver(*(beat(node, "end") for node in NODES[:3]), at_s=now_s + 1)
    follow(now_s + 2)
    before = run_now().phase
    deliver(beat(NODES[3], "end"), at_s=now_s + 3)
    follow(now_s + 4)

    assert (before, run_now().phase) == (Phase.TRAINING, Phase.FINISHED)
    assert run_now().finished_at is not None


def test_one_worker_that_failed_takes_the_run_down(
    deliver: Deliver, follow: Follow, now_s: float
) -> None:
    deliver(*step_lines(1, ended_at=now_s), at_s=now_s)
    deliver(beat(NODES[2], "end", failed=True, reason="RuntimeError"), at_s=now_s + 1)
    follow(now_s + 2)

    assert run_now().phase == Phase.FAILED
    assert run_now().end_reason == f"RuntimeError (rank 0 on {NODES[2]})"


def test_a_run_that_starts_again_is_under_way_again(
    deliver: Deliver, follow: Follow, now_s: float
) -> None:
    deliver(*step_lines(1, ended_at=now_s), at_s=now_s)
    deliver(beat(NODES[2], "end", failed=True), at_s=now_s + 1)
    follow(now_s + 2)
    again = step_lines(1, ended_at=now_s + 30, session="second")
    deliver(*again, at_s=now_s + 30)
    follow(now_s + 31)
    run = run_now()

    assert (run.phase, run.finished_at, run.session) == (Phase.TRAINING, None, "second")
    assert run.end_reason == ""
    assert run.step_shift == 1
    # Its own first step is our second; it began a step's length before it ended.
    assert run.starts is not None
    assert [(start["first_step"], start["shift"]) for start in run.starts] == [(0, 0), (2, 1)]
    assert now_s < run.starts[1]["began_s"] < now_s + 30
    assert Annotation.objects.filter(run=run).count() > 0


def test_a_run_that_falls_silent_is_given_up_in_the_end(
    deliver: Deliver, follow: Follow, now_s: float
) -> None:
    deliver(*step_lines(1, ended_at=now_s), at_s=now_s)
    follow(now_s + 1)
    follow(now_s + 20 * 60)
    before = run_now().phase
    follow(now_s + 31 * 60)

    assert (before, run_now().phase) == (Phase.TRAINING, Phase.FAILED)
    assert run_now().end_reason == "its reports stopped"


def test_one_that_compiles_may_be_silent_for_longer(
    deliver: Deliver, follow: Follow, now_s: float
) -> None:
    deliver(line("run", **ABOUT), *map(beat, NODES), at_s=now_s)
    follow(now_s + 3600)

    assert run_now().phase == Phase.COMPILING


def test_token_counts_continue_from_the_database_after_redis_is_emptied(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    deliver(*step_lines(1, ended_at=now_s, tokens=100), at_s=now_s)
    follow(now_s)
    hot.execute("FLUSHDB")
    deliver(*step_lines(2, ended_at=now_s + 5, tokens=100), at_s=now_s + 5)
    follow(now_s + 10)

    assert (run_now().n_tokens, run_now().last_step) == (200, 2)


def test_a_worker_may_name_another_node(deliver: Deliver, now_s: float) -> None:
    deliver(step(1, "trn-a/3", ended_at=now_s), at_s=now_s)
    deliver(step(1, "w7", ended_at=now_s, node="trn-b"), at_s=now_s)

    assert set(run_now().nodes.values_list("name", flat=True)) == {"trn-a", "trn-b"}
