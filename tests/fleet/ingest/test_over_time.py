"""Jobs over hours and days: silent for long, resumed, moved, numbered again."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from fleet.alerts.snapshots import run_members
from fleet.ingest.runs import assign_node
from fleet.ingest.steps import LOST_S
from fleet.models import Annotation, Run
from fleet.runs.state import KEEP_S
from telemetry.ingest.step_reports import read_step_line
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
    deliver: Deliver, now_s: float
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
        assign_node(run_now(), report, now=datetime.fromtimestamp(now_s + 60, UTC))
        orders.append(run_members([run])[run.pk].nodes)

    assert len(set(orders)) == 1, orders


def test_a_second_srun_of_one_slurm_job_is_another_start() -> None:
    """As a batch script does that starts its training again when it fails."""
    job = {"SLURM_JOB_ID": "82", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert session_of(job | {"SLURM_STEP_ID": "0"}) != session_of(job | {"SLURM_STEP_ID": "1"})
