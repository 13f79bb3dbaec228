"""Steps with late, duplicate, unordered and missing workers, and restarted jobs."""

import time

import numpy as np
import pytest

from fleet.checks.preflights import NO_PREFLIGHT, update_preflight_doubts
from fleet.ingest.assembly import PENDING
from fleet.models import Run
from fleet.runs.state import state_of, worker_states
from telemetry.steps import StepBatch, WorkerState
from telemetry.store.history import run_steps
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import ABOUT, NODES, step, step_lines
from tests.fleet.api.training_jobs import line as shown
from tests.fleet.ingest.conftest import Deliver, Follow


@pytest.fixture
def now_s() -> float:
    return float(int(time.time()))


def stored(hot: HotStore, now_s: float) -> StepBatch:
    return hot.steps("real", since_s=now_s - 600)


def test_a_worker_that_never_reports_is_waited_for_and_then_unknown(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    deliver(*step_lines(1, ended_at=now_s), at_s=now_s)
    deliver(*step_lines(2, ended_at=now_s + 1)[:3], at_s=now_s + 1)
    follow(now_s + 5)
    early = len(stored(hot, now_s))
    follow(now_s + 12)
    batch = stored(hot, now_s)

    assert early == 1
    assert batch.workers == NODES
    np.testing.assert_array_equal(np.isfinite(batch.phases["compute_s"][1]), [1, 1, 1, 0])
    np.testing.assert_allclose(batch.phases["wait_s"][1], [0, 0, 0, np.nan])


def test_without_a_worker_count_a_step_waits_briefly(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    for node in NODES[:2]:
        deliver(step(1, node, ended_at=now_s, n_workers=None), at_s=now_s)
    before = len(stored(hot, now_s))
    follow(now_s + 3)

    assert (before, stored(hot, now_s).workers) == (0, NODES[:2])


def test_steps_may_come_out_of_order_and_twice(
    deliver: Deliver, hot: HotStore, now_s: float
) -> None:
    lines = [line for n in range(1, 6) for line in step_lines(n, ended_at=now_s + n)]
    for line in [*reversed(lines), *lines]:
        deliver(line, at_s=now_s + 6)

    assert list(stored(hot, now_s).step) == [1, 2, 3, 4, 5]
    assert hot.totals().steps["real"] == 5


def test_a_step_handed_on_waits_no_longer(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    lines = step_lines(1, ended_at=now_s)
    deliver(*lines, at_s=now_s)
    deliver(*lines, at_s=now_s + 1)
    follow(now_s + 60)

    assert hot.execute("ZCARD", PENDING) == 0
    assert len(stored(hot, now_s)) == 1


def test_a_job_that_goes_back_to_a_checkpoint_counts_on(
    deliver: Deliver, hot: HotStore, now_s: float
) -> None:
    for number in range(1, 8):
        deliver(*step_lines(number, ended_at=now_s + number), at_s=now_s + number)
    for number in range(5, 9):
        again = step_lines(number, ended_at=now_s + 10 + number, session="second")
        deliver(*again, at_s=now_s + 10 + number)

    batch = stored(hot, now_s)
    assert list(batch.step) == list(range(1, 12))
    assert (np.diff(batch.ended_at_s) > 0).all()


def test_without_a_launcher_id_a_returning_worker_starts_over(
    deliver: Deliver, hot: HotStore, now_s: float
) -> None:
    for boots in (("a1", "b1", "c1", "d1"), ("a2", "b2", "c2", "d2")):
        for number in (1, 2):
            for node, boot in zip(NODES, boots, strict=True):
                line = step(number, node, ended_at=now_s + number, session="auto", boot=boot)
                deliver(line, at_s=now_s + number)

    assert list(stored(hot, now_s).step) == [1, 2, 3, 4]


def test_should_redis_forget_a_run_its_row_states_where_it_stood(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    for number in (1, 2, 3):
        deliver(*step_lines(number, ended_at=now_s, tokens=100), at_s=now_s)
    follow(now_s + 1)
    hot.execute("FLUSHDB")
    deliver(*step_lines(4, ended_at=now_s + 20), at_s=now_s + 20)
    deliver(*step_lines(2, ended_at=now_s + 21, session="second"), at_s=now_s + 21)

    assert list(stored(hot, now_s).step) == [4, 5]


def test_what_is_too_old_for_the_hot_tier_is_kept_for_good(
    deliver: Deliver, hot: HotStore, now_s: float
) -> None:
    old_s = now_s - 3 * 3600
    lines = [line for n in (1, 2) for line in step_lines(n, ended_at=old_s + n)]
    deliver(*lines, at_s=now_s, sent_s=now_s)

    kept = run_steps(hot, "real", start_s=old_s - 60, end_s=old_s + 60)
    assert list(kept.step) == [1, 2]


def test_a_worker_that_comes_late_completes_its_step(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    lines = step_lines(1, ended_at=now_s, collective_s=(0.4, 0.4, 0.4, 0.1), tokens=100)
    deliver(*lines[:3], at_s=now_s)
    follow(now_s + 12)
    before = stored(hot, now_s)
    deliver(lines[3], at_s=now_s + 30)
    after = stored(hot, now_s)

    np.testing.assert_allclose(before.phases["wait_s"], [[0, 0, 0]])
    np.testing.assert_allclose(after.phases["wait_s"], [[0.3, 0.3, 0.3, 0]], atol=1e-9)
    assert list(after.step) == [1]
    assert hot.totals().tokens["real"] == 100


def test_a_run_states_its_optimizer_its_epoch_and_its_loss(
    deliver: Deliver, hot: HotStore, now_s: float
) -> None:
    deliver(shown("run", **ABOUT, optimizer="AdamW", tokens_per_epoch=10**9), at_s=now_s)
    deliver(*step_lines(1, ended_at=now_s, loss=2.5), at_s=now_s)
    deliver(*step_lines(2, ended_at=now_s + 1), at_s=now_s + 1)
    deliver(shown("run", **ABOUT), at_s=now_s + 1)
    run = Run.objects.get(name="real")

    assert (run.optimizer, run.tokens_per_epoch) == ("AdamW", 10**9)
    np.testing.assert_array_equal(stored(hot, now_s).loss, [2.5, np.nan])


def test_a_run_states_that_it_requires_a_preflight_and_takes_it_back(
    deliver: Deliver, now_s: float
) -> None:
    deliver(shown("run", **ABOUT, requires_preflight=True), at_s=now_s)
    deliver(*step_lines(1, ended_at=now_s), at_s=now_s)
    deliver(shown("run", **ABOUT), at_s=now_s)
    update_preflight_doubts()
    flagged = Run.objects.get(name="real")
    assert (flagged.requires_preflight, flagged.preflight_doubt) == (True, NO_PREFLIGHT)

    deliver(shown("run", **ABOUT, requires_preflight=False), at_s=now_s)
    update_preflight_doubts()
    spared = Run.objects.get(name="real")
    assert (spared.requires_preflight, spared.preflight_doubt) == (False, "")


def test_a_loss_that_is_no_number_refuses_its_line_by_name(deliver: Deliver, now_s: float) -> None:
    outcome = deliver(step(1, "trn-a", ended_at=now_s, loss="2.5"), at_s=now_s)

    assert [refusal.field for refusal in outcome.refused] == ["loss"]


def test_a_heartbeat_says_what_the_worker_does_until_its_next_step(
    deliver: Deliver, hot: HotStore, now_s: float
) -> None:
    beat = shown("beat", worker="trn-a", n_workers=4, activity="checkpoint", activity_s=8.0)
    deliver(beat, at_s=now_s)
    known = worker_states(hot, "real")
    deliver(step(1, "trn-a", ended_at=now_s), at_s=now_s)

    assert known == {
        "trn-a": WorkerState("trn-a", now_s, "checkpoint", now_s - 8.0, n_workers=4, began_s=now_s)
    }
    assert worker_states(hot, "real")["trn-a"].activity == ""


def test_a_traced_step_is_split_and_its_trace_is_known(
    deliver: Deliver, hot: HotStore, now_s: float
) -> None:
    waits_s = dict(zip(NODES, (0.3, 0.1, 0.0, 0.3), strict=True))
    for node, wait_s in waits_s.items():
        trace = {"executing_s": 1.9, "barrier_s": wait_s, "collective_trace_s": 0.2}
        deliver(step(1, node, ended_at=now_s, step_s=2.0, collective_s=None, **trace), at_s=now_s)
        deliver(
            shown("beat", worker=node, n_workers=4, runtime_trace="libnrt is too old"), at_s=now_s
        )
    batch = stored(hot, now_s)
    state = state_of(hot, "real")

    np.testing.assert_allclose(batch.phases["wait_s"], [list(waits_s.values())], atol=1e-6)
    np.testing.assert_allclose(batch.phases["other_s"], 0.1, atol=1e-6)
    assert state is not None
    assert {member.runtime_trace for member in state.members.values()} == {"libnrt is too old"}


def test_a_step_with_the_records_of_nccl_has_waits_and_other_communication(
    deliver: Deliver, hot: HotStore, now_s: float
) -> None:
    for node, exchange_s in zip(NODES, (0.5, 0.3, 0.2, 0.5), strict=True):
        records = {"barrier_s": 0.0, "collective_trace_s": exchange_s, "other_comm_s": 0.4}
        fields = {"step_s": 2.0, "collective_s": None, **records}
        deliver(step(1, node, ended_at=now_s, **fields), at_s=now_s)
        deliver(step(2, node, ended_at=now_s + 2, step_s=2.0), at_s=now_s + 2)
    batch = stored(hot, now_s)

    np.testing.assert_allclose(batch.phases["wait_s"][0], [0.3, 0.1, 0.0, 0.3], atol=1e-6)
    np.testing.assert_allclose(batch.phases["compute_s"][0], [1.7, 1.9, 2.0, 1.7], atol=1e-6)
    np.testing.assert_allclose(batch.worker_step_s[0], 2.0, atol=1e-6)
    np.testing.assert_allclose(batch.other_comm_s, [0.4, np.nan])


def test_a_trace_longer_than_its_step_is_refused_by_name(deliver: Deliver, now_s: float) -> None:
    outcome = deliver(step(1, "trn-a", ended_at=now_s, step_s=2.0, barrier_s=2.5), at_s=now_s)

    assert [refusal.field for refusal in outcome.refused] == ["barrier_s"]
