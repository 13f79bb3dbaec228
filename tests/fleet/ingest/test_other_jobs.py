"""Two jobs with one run name: the later one is refused, and a restart never is."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fleet.ingest.jobs import ALIVE_S, WAITS_S
from fleet.ingest.steps import StepIngestResult
from fleet.models import Node, Run
from fleet.runs.state import OTHER_JOB, members_of
from telemetry.store.hot import HotStore
from telemetry.store.refused import note_refused, read_refused
from tests.fleet.api.training_jobs import ABOUT, line, step
from tests.fleet.ingest.conftest import Deliver, Follow

FIRST, SECOND = ("trn-a", "trn-b"), ("trn-x", "trn-y")
Send = Callable[..., StepIngestResult]


@pytest.fixture
def now_s() -> float:
    return float(int(time.time()) // 10 * 10 - 900)


@pytest.fixture
def send(deliver: Deliver) -> Send:
    """Give a function that sends what each worker of a job says at a moment, as the package."""

    def of_job(
        nodes: Sequence[str],
        at_s: float,
        number: int | None = None,
        *,
        kind: str = "beat",
        boot: str = "1",
        session: str = "auto",
        is_new: bool = False,
        n_workers: int | None = None,
        **shown: Any,
    ) -> StepIngestResult:
        outcome = StepIngestResult()
        for rank, node in enumerate(nodes):
            who: dict[str, Any] = {"session": session, "boot": f"{node}-{boot}", "rank": rank}
            who |= {"n_workers": n_workers or len(nodes)} | shown
            about = ABOUT | {"n_nodes": len(nodes)}
            lines = [line("run", session=session, **about)] * (is_new and rank == 0)
            if number is None:
                lines.append(line(kind, worker=node, **who))
            else:
                lines.append(step(number, node, ended_at=at_s, **who))
            each = deliver(*lines, at_s=at_s)
            outcome.absorb_refused(each)
            outcome.n_waiting += each.n_waiting
            outcome.wants_run |= each.wants_run
            outcome.refused_of_runs += each.refused_of_runs
        return outcome

    return of_job


def test_of_two_jobs_that_make_steps_the_later_one_is_refused(
    send: Send, follow: Follow, hot: HotStore, now_s: float
) -> None:
    for s in range(0, 400, 2):
        at_s = now_s + s
        assert not send(FIRST, at_s, s // 2, is_new=s == 0).n_refused
        if s >= 100:
            # It compiles for a while.
            number = None if s < 150 else (s - 150) // 2
            outcome = send(SECOND, at_s + 0.5, number, is_new=s == 100)
            # Until it is known nothing of it is kept, not even what it says of the run.
            assert s > 100 or (outcome.n_waiting == 3 and outcome.wants_run)
            assert s < 120 or outcome.n_refused
        follow(at_s)

    assert outcome.n_refused == 2
    why = str(outcome.refused[0])
    assert f"run: real {OTHER_JOB}, whose rank 0 on trn-a makes steps now" in why
    assert "TRNWATCH_RUN" in why
    note_refused(hot, "run", outcome.refused_of_runs, now_s=at_s)
    assert OTHER_JOB in str(read_refused(hot, ["run:real"], now_s=at_s)["run:real"])
    run = Run.objects.get()
    assert (run.n_workers, run.n_nodes, run.phase) == (2, 2, "training")
    assert run.last_step >= 195
    assert not run.starts
    assert set(members_of(hot, "real", run.session)) == set(FIRST)
    assert not Node.objects.filter(name__in=SECOND, run=run).exists()
    steps = hot.steps("real", since_s=now_s)
    assert steps.workers == FIRST


def test_the_name_is_free_when_the_first_job_has_ended(send: Send, now_s: float) -> None:
    for s in range(0, 60, 2):
        send(FIRST, now_s + s, s)
        outcome = send(SECOND, now_s + s + 0.5, s) if s > 20 else None
    assert outcome is not None
    assert outcome.n_refused
    send(FIRST, now_s + 60, kind="end")

    for s in range(60, 80, 2):
        outcome = send(SECOND, now_s + s, s)
    assert not outcome.n_refused


def test_a_job_that_fails_keeps_its_name_while_it_restarts(send: Send, now_s: float) -> None:
    for s in range(0, 60, 2):
        send(FIRST, now_s + s, s)
        send(SECOND, now_s + s + 0.5, s)
    send(FIRST, now_s + 60, kind="end", failed=True)
    for s in range(60, 200, 2):
        restarted = send(FIRST, now_s + s, s, boot="2") if s > 100 else None
        other = send(SECOND, now_s + s + 0.5, s)
    assert restarted is not None
    assert not restarted.n_refused
    assert other.n_refused == 2

    for s in range(200, int(200 + ALIVE_S) + 30, 10):
        other = send(SECOND, now_s + s, s)
    assert not other.n_refused


@pytest.mark.parametrize("session", ["auto", "82"])
@pytest.mark.parametrize("nodes", [FIRST, ("trn-b", "trn-a"), ("trn-a", "trn-z"), SECOND])
@pytest.mark.parametrize("after_s", [4, 40, 400])
def test_a_restart_is_never_refused(
    send: Send,
    follow: Follow,
    hot: HotStore,
    now_s: float,
    session: str,
    nodes: tuple[str, ...],
    after_s: int,
) -> None:
    """On the same nodes with the same ranks or others, with one replaced, or elsewhere."""
    for s in range(30):
        send(FIRST, now_s + s, s)
    began_s = now_s + 30 + after_s
    new = session if session == "auto" else f"{session}.1"
    for s in range(150):
        number = None if s < 10 else s
        outcome = send(nodes, began_s + s, number, boot="2", session=new, is_new=s == 0)
        assert not outcome.n_refused
    follow(began_s + 150)

    assert not outcome.n_waiting
    run = Run.objects.get()
    assert run.phase == "training"
    assert run.n_workers == 2
    assert set(members_of(hot, "real", run.session)) == set(nodes)


def test_a_single_worker_that_resumes_on_another_node_begins_a_start(
    send: Send, follow: Follow, hot: HotStore, now_s: float
) -> None:
    """Its steps after the checkpoint count, and its first node is not missed."""
    for s in range(100):
        send(FIRST[:1], now_s + s, s)
    for s in range(60):
        assert not send(SECOND[:1], now_s + 200 + s, 60 + s, boot="2").n_refused
    follow(now_s + 260)

    run = Run.objects.get()
    assert (run.session, run.n_workers, run.last_step) == ("auto-2", 1, 159)
    assert set(members_of(hot, "real", run.session)) == {"trn-x"}


def test_more_ranks_of_the_later_job_are_refused_too(send: Send, now_s: float) -> None:
    large = ("trn-v", "trn-w", "trn-x", "trn-y")
    for s in range(0, 120, 2):
        send(FIRST, now_s + s, s)
        outcome = send(large, now_s + s + 0.5, s) if s > 20 else None
    assert outcome is not None
    assert outcome.n_refused == 4


def test_two_processes_of_a_node_that_train_at_once_are_two_jobs(send: Send, now_s: float) -> None:
    for s in range(0, 120, 2):
        send(FIRST, now_s + s, s)
        outcome = send(FIRST, now_s + s + 0.5, s, boot="2") if s > 20 else None
    assert outcome is not None
    assert outcome.n_refused == 2


@pytest.mark.parametrize(("differs_by", "n_refused"), [(0, 0), (40, 1)])
def test_workers_without_ranks_are_one_job_if_they_are_at_the_same_step(
    send: Send, now_s: float, differs_by: int, n_refused: int
) -> None:
    """A launcher that sets none: each says that it is the only one."""
    for s in range(120):
        assert not send(("trn-a",), now_s + s, s + 50).n_refused
        outcome = send(("trn-b",), now_s + s + 0.5, s + 50 - differs_by) if s > 20 else None
    assert outcome is not None
    assert outcome.n_refused == n_refused


def test_a_later_job_whose_steps_are_shorter_leaves_nothing_once_it_is_known(
    send: Send, follow: Follow, hot: HotStore, now_s: float
) -> None:
    """The first one's steps take longer than its heartbeats are left out."""
    for s in range(int(3 * WAITS_S)):
        if s % 90 == 0:
            send(FIRST, now_s + s, s // 90, step_s=90.0)
        elif s % 10 == 0:
            send(FIRST, now_s + s)
        if s > 10:
            outcome = send(SECOND, now_s + s, s, session="another")
        follow(now_s + s)

    assert outcome.n_refused == 2
    run = Run.objects.get()
    assert (run.session, run.n_workers) == ("auto-1", 2)
    assert set(members_of(hot, "real", run.session)) == set(FIRST)
