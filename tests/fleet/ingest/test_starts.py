"""The starts of a job by its processes: they come back one by one, and some more than once."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from fleet.models import Annotation, Run
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import NODES, line, step
from tests.fleet.ingest.conftest import Deliver, Follow

Train = Callable[[Mapping[str, str], range, float], None]
Say = Callable[..., None]


@pytest.fixture
def now_s() -> float:
    return float(int(time.time()) // 10 * 10 - 700)


@pytest.fixture(params=["auto", "job-uid"])
def session(request: pytest.FixtureRequest) -> str:
    """Give the session: none by a launcher, or one for all starts, as of a Kubernetes job."""
    return str(request.param)


@pytest.fixture
def train(deliver: Deliver, session: str) -> Train:
    """Give a function that makes a step a second of workers by name, each with its process."""

    def steps(boots: Mapping[str, str], numbers: range, began_s: float) -> None:
        for at_s, number in enumerate(numbers, int(began_s)):
            for rank, (node, boot) in enumerate(boots.items()):
                who = {"session": session, "boot": boot, "rank": rank, "n_workers": len(boots)}
                deliver(step(number, node, ended_at=at_s, **who), at_s=at_s)

    return steps


@pytest.fixture
def say(deliver: Deliver, session: str) -> Say:
    def send(kind: str, node: str, boot: str, at_s: float, **shown: Any) -> None:
        who: dict[str, Any] = {"worker": node, "boot": boot, "n_workers": 4}
        deliver(line(kind, session=session, **who | shown), at_s=at_s)

    return send


def processes(boot: str, nodes: tuple[str, ...] = NODES) -> dict[str, str]:
    return {node: f"{node}-{boot}" for node in nodes}


def run_now() -> Run:
    return Run.objects.get(name="real")


def test_workers_that_come_back_one_by_one_are_one_start(
    train: Train, say: Say, follow: Follow, hot: HotStore, now_s: float
) -> None:
    """Over ten minutes; the first of them fails twice until the last is there."""
    train(processes("a"), range(1, 11), now_s)
    for node in NODES:
        say("end", node, f"{node}-a", now_s + 12, failed=True, reason="OOM")
    follow(now_s + 20)
    a, b, c, d = NODES
    came_s = {(c, "c-b"): 60, (a, "a-b"): 100, (d, "d-b"): 200, (a, "a-c"): 250, (b, "b-b"): 400}
    came_s[a, "a-d"] = 500
    back: dict[str, str] = {}
    for after_s in range(60, 600, 10):
        for (node, boot), at_s in came_s.items():
            if at_s == after_s:
                if node in back:
                    say("end", node, back[node], now_s + after_s, failed=True, reason="OOM")
                back[node] = boot
        for node, boot in back.items():
            say("beat", node, boot, now_s + after_s, activity="compile")
        follow(now_s + after_s)
    train({node: back[node] for node in NODES}, range(6, 21), now_s + 600)
    follow(now_s + 620)
    batch = hot.steps("real", since_s=now_s + 590)

    assert batch.step.tolist() == list(range(11, 26))
    assert np.isfinite(batch.phases["compute_s"]).all()
    run = run_now()
    assert (run.phase, run.finished_at, run.last_step) == (Run.Phase.TRAINING, None, 25)
    assert [start["first_step"] for start in run.starts or ()] == [0, 11]


def test_numbers_that_go_back_in_one_session_count_on(
    train: Train, follow: Follow, hot: HotStore, now_s: float
) -> None:
    train(processes("a"), range(1, 31), now_s)
    follow(now_s + 30)
    train(processes("b"), range(11, 31), now_s + 60)
    follow(now_s + 80)

    assert run_now().last_step == 50
    assert len(hot.steps("real", since_s=now_s + 50)) == 20
    assert Annotation.objects.filter(text="training resumed").count() <= 1


def test_a_job_that_grows_and_shrinks_restarts_with_the_workers_it_has(
    train: Train, say: Say, follow: Follow, hot: HotStore, now_s: float
) -> None:
    """A new node reports before the processes of the others have ended."""
    many = (*NODES, "trn-e", "trn-f")
    train(processes("a"), range(1, 11), now_s)
    follow(now_s + 10)
    say("beat", "trn-e", "trn-e-b", now_s + 12)
    train(processes("b", many), range(6, 16), now_s + 20)
    follow(now_s + 30)
    grown = hot.steps("real", since_s=now_s + 15)
    assert np.isfinite(grown.phases["compute_s"]).sum(axis=1).tolist() == [6] * 10
    assert run_now().n_workers == 6
    train(processes("c", NODES[:2]), range(11, 21), now_s + 40)
    follow(now_s + 50)

    run = run_now()
    assert (run.last_step, run.n_workers) == (30, 2)
    assert set(run.nodes.values_list("name", flat=True)) == set(NODES[:2])
