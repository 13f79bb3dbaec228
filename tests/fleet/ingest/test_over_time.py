"""Jobs over hours and days: silent for long, resumed, moved, numbered again."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from fleet.alerts.snapshots import run_members
from fleet.ingest.phases import LOST_S
from fleet.ingest.runs import assign_node
from fleet.ingest.steps import StepIngest
from fleet.models import Annotation, Node, Run
from fleet.runs.state import KEEP_S
from telemetry.ingest.step_reports import read_step_line
from telemetry.store.history import run_steps, worker_chunks
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import ABOUT, NODES, line, step, step_lines
from tests.fleet.ingest.conftest import Deliver, Follow
from trnwatch.identity import session_of


@pytest.fixture
def now_s() -> float:
    return float(int(time.time()) // 10 * 10)


def run_now() -> Run:
    return Run.objects.get(name="real")


def test_a_job_that_was_silent_for_long_and_goes_on_is_active_again(
    deliver: Deliver, follow: Follow, now_s: float
) -> None:
    """As after a suspended job, or a network that was down for 40 minutes."""
    began_s = now_s - LOST_S - 1200
    for number in range(1, 6):
        deliver(*step_lines(number, ended_at=began_s + number), at_s=began_s + number)
    follow(began_s + 6)
    follow(began_s + LOST_S + 60)
    assert run_now().phase == Run.Phase.FAILED
    for number in range(6, 20):
        at_s = began_s + LOST_S + 600 + number
        deliver(*step_lines(number, ended_at=at_s), at_s=at_s)
        follow(at_s)

    assert (run_now().finished_at, run_now().phase) == (None, Run.Phase.TRAINING)
    [resumed] = Annotation.objects.filter(run__name="real", text="training resumed")
    assert resumed.at.timestamp() >= began_s + LOST_S + 600


def test_no_job_fails_because_trnwatch_was_down(
    deliver: Deliver, follow: Follow, now_s: float
) -> None:
    """The jobs went on; the first second of our own worker comes before their first retry."""
    began_s = now_s - LOST_S - 1200
    for number in range(1, 6):
        deliver(*step_lines(number, ended_at=began_s + number), at_s=began_s + number)
    follow(began_s + 6)
    back_s = began_s + LOST_S + 600
    follow(back_s)
    for number in range(1000, 1020):
        at_s = back_s + number - 990
        deliver(*step_lines(number, ended_at=at_s), at_s=at_s)
        follow(at_s)

    assert (run_now().finished_at, run_now().phase) == (None, Run.Phase.TRAINING)


def auto_lines(number: int, boot: str, ended_at: float) -> list[bytes]:
    return [
        step(number, node, ended_at=ended_at, session="auto", boot=f"{node}-{boot}", rank=rank)
        for rank, node in enumerate(NODES)
    ]


def test_a_start_is_remembered_for_as_long_as_its_job_reports(
    deliver: Deliver, hot: HotStore, now_s: float
) -> None:
    deliver(*auto_lines(1, "a", now_s), at_s=now_s)
    [key] = hot.execute("KEYS", "steps-in:starts:*")
    # A week and a day later, of which the job reported each second.
    hot.execute("EXPIRE", key, 60)
    deliver(*auto_lines(2, "a", now_s + 1), at_s=now_s + 1)

    assert hot.execute("TTL", key) > KEEP_S / 2


def test_a_job_that_restarts_after_a_week_is_another_start(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    for number in range(1, 6):
        deliver(*auto_lines(number, "a", now_s + number), at_s=now_s + number)
    follow(now_s + 6)
    failed = [
        line("end", session="auto", worker=node, boot=f"{node}-a", failed=True, reason="OOM")
        for node in NODES
    ]
    deliver(*failed, at_s=now_s + 7)
    follow(now_s + 8)
    assert run_now().phase == Run.Phase.FAILED
    # Its first start was more than KEEP_S ago.
    hot.execute("DEL", "steps-in:starts:real")
    for number in range(4, 9):
        deliver(*auto_lines(number, "b", now_s + 60 + number), at_s=now_s + 60 + number)
    follow(now_s + 70)

    run = run_now()
    assert (run.finished_at, run.phase) == (None, Run.Phase.TRAINING)
    assert run.last_step == 10


def test_nodes_keep_their_order_when_ranks_alternate_between_them(
    deliver: Deliver, hot: HotStore, now_s: float
) -> None:
    """As Slurm distributes them in cycles: ranks 0 and 2 on one node, 1 and 3 on the next."""
    ranks = {"trn-a/0": 0, "trn-b/0": 1, "trn-a/1": 2, "trn-b/1": 3}
    deliver(line("run", **ABOUT), at_s=now_s)
    orders: list[tuple[str, ...]] = []
    for worker in ("trn-a/0", "trn-b/0", "trn-a/1", "trn-b/1"):
        deliver(step(1, worker, ended_at=now_s, rank=ranks[worker]), at_s=now_s)
    run = run_now()
    orders.append(run_members([run])[run.pk].nodes)
    # A minute later each worker names its node again, in whatever order.
    for worker in ("trn-b/0", "trn-a/1", "trn-b/1", "trn-a/0"):
        report: Any = read_step_line(step(2, worker, ended_at=now_s + 60, rank=ranks[worker]))
        assign_node(hot, run_now(), report, now=datetime.fromtimestamp(now_s + 60, UTC))
        orders.append(run_members([run])[run.pk].nodes)

    assert len(set(orders)) == 1, orders


def test_a_second_srun_of_one_slurm_job_is_another_start() -> None:
    """As a batch script does that starts its training again when it fails."""
    job = {"SLURM_JOB_ID": "82", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert session_of(job | {"SLURM_STEP_ID": "0"}) != session_of(job | {"SLURM_STEP_ID": "1"})


@pytest.fixture
def both(db: None, hot: HotStore) -> Callable[..., list[str]]:
    """Give a function that lets two jobs report from one node for four minutes."""

    def report(first: int, second: int, now_s: float, *, ends: bool = False) -> list[str]:
        now = [now_s - 240]
        intake, seen = StepIngest(lambda: now[0]), []
        for i in range(240):
            now[0] += 1
            jobs = [("one", first), ("two", second)][: 1 + (i >= 30)]
            for run, n_nodes in jobs[ends and i >= 40 :]:
                facts = [line("run", run=run, n_nodes=n_nodes)] if i in (0, 30) else []
                each = step(i, "trn-a", run=run, n_workers=1, ended_at=now[0])
                intake.deliver(hot, [*facts, each], arrived_s=now[0])
            seen.append(str(Node.objects.get(name="trn-a").run))
        return [name for name, _ in groupby(seen)]

    return report


@pytest.mark.parametrize(
    ("first", "second", "owners"),
    [(4, 1, ["one"]), (1, 4, ["one", "two"]), (4, 4, ["one", "two"])],
    ids=["debugging beside training", "training beside a shell", "epilogue of the job before"],
)
def test_a_node_from_which_two_runs_report_changes_hands_once(
    both: Callable[..., list[str]], now_s: float, first: int, second: int, owners: list[str]
) -> None:
    assert both(first, second, now_s) == owners


def test_a_node_that_a_larger_run_left_is_the_next_ones(
    both: Callable[..., list[str]], now_s: float
) -> None:
    assert both(4, 1, now_s, ends=True) == ["one", "two"]


def test_a_run_begins_by_our_clock_when_the_hosts_is_an_hour_behind(
    db: None, hot: HotStore, now_s: float
) -> None:
    """Else its nodes cost an hour that never was."""
    StepIngest(time.monotonic).deliver(
        hot,
        [line("run", at=now_s - 3600 - 30, **ABOUT), *step_lines(1, ended_at=now_s - 3600)],
        arrived_s=now_s,
        sent_s=now_s - 3600,
    )

    assert run_now().started_at.timestamp() == now_s - 30


def test_after_an_outage_of_40_minutes_all_that_workers_kept_is_whole(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    """They send it one after the other, within a minute."""
    now_s -= 200
    began_s = now_s - 2400
    numbers = range(1, 2401, 20)
    for after_s, worker in zip((0, 20, 40, 60), range(4), strict=True):
        lines = [step_lines(i, ended_at=began_s + i, tokens=1)[worker] for i in numbers]
        deliver(*lines, at_s=now_s + after_s)
        for second in range(0, 20, 5):
            follow(now_s + after_s + second)
    follow(now_s + 80)
    kept = run_steps(hot, "real", start_s=began_s, end_s=began_s + 1200)
    by_worker = list(worker_chunks("real", start_s=began_s, end_s=began_s + 1200))

    assert len(kept) == 60
    assert all(np.isfinite(chunk.means[:, :, 0]).all() for chunk in by_worker)
    assert run_now().n_tokens == len(numbers)


def test_a_step_of_the_past_that_stays_incomplete_is_kept_in_the_end(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    began_s = now_s - 2400
    deliver(*step_lines(1, ended_at=began_s, tokens=1)[:3], at_s=now_s)
    follow(now_s + 60)
    early = len(run_steps(hot, "real", start_s=began_s - 60, end_s=began_s + 60))
    follow(now_s + 140)
    deliver(step_lines(1, ended_at=began_s, tokens=1)[3], at_s=now_s + 150)
    follow(now_s + 160)

    assert (early, len(run_steps(hot, "real", start_s=began_s - 60, end_s=began_s + 60))) == (0, 1)
    assert run_now().n_tokens == 1
