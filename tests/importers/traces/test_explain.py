"""The replay and what it explains, against the same spelled out one operation at a time."""

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from importers.traces.trace_graph import graph_of, grid_of
from importers.traces.trace_steps import transfers
from importers.traces.what_if import analyse_trace, explain, replay
from tests.importers.made_traces import Job
from tests.importers.traces.by_the_book import Book
from tests.importers.traces.conftest import (
    analysed,
    congested,
    heavy_stage,
    one_slow,
    uneven_sequences,
)

JOBS = {
    "noise": Job(noise=0.1),
    "no pipeline": Job(pp=1, noise=0.1),
    "one replica": Job(dp=1, noise=0.1),
    "one step": Job(steps=1, noise=0.1),
    "tensor parallel": Job(dp=3, pp=2, tp=2, work=one_slow((1, 1)), noise=0.05),
    "slow worker": Job(work=one_slow((1, 2))),
    "heavy stage": Job(work=heavy_stage(3), noise=0.02),
    "uneven sequences": Job(work=uneven_sequences, noise=0.02),
    "congestion": Job(reduce=congested, noise=0.02),
}


@pytest.fixture(autouse=True)
def _deep() -> Iterator[None]:
    """Let the book follow a step from its end to its beginning."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize("name", JOBS)
def test_it_agrees_with_the_book(name: str) -> None:
    job = JOBS[name]
    trace = Job(**{**vars(job), "micro": 6, "steps": min(job.steps, 2), "rows": []}).trace()
    found, expected = analyse_trace(trace, run="book").found, Book(trace).explained()

    assert found.real_s == pytest.approx(expected["real_s"], rel=1e-9)
    assert found.ideal_s == pytest.approx(expected["ideal_s"], rel=1e-9)
    for share, key in ((found.m_w, "m_w"), (found.m_s, "m_s")):
        assert share is None or share == pytest.approx(expected[key], abs=1e-9)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("stage", [0, 3])
def test_a_replay_of_what_was_recorded_is_what_was_recorded(chunks: int, stage: int) -> None:
    job = Job(chunks=chunks, work=heavy_stage(stage), noise=0.05)
    grid = grid_of(job.trace())
    graph = graph_of(grid)
    _, end_s = replay(graph, transfers(grid, graph))

    np.testing.assert_allclose(end_s, grid.start_s + grid.duration_s, atol=1e-9)


def test_a_job_without_stragglers_is_as_fast_as_it_can_be() -> None:
    found = analysed(Job()).found

    assert found.slowdown_ratio == pytest.approx(1.0)
    assert found.m_w is None
    assert found.m_s is None


def test_a_single_stage_explains_nothing() -> None:
    assert analysed(Job(pp=1, work=one_slow((1, 0)))).found.m_s is None


def test_one_slow_worker_shows_in_the_grid_of_workers_and_nowhere_else() -> None:
    slow = analysed(Job(work=one_slow((1, 2)))).found.worker_slowdown

    assert slow.argmax() == 1 * slow.shape[1] + 2
    slow[1, 2] = 1.0
    assert slow.max() < 1.02


def test_of_many_workers_the_likeliest_are_replayed_by_themselves() -> None:
    job = Job(dp=24, pp=4, micro=4, steps=1, work=one_slow((20, 1)))
    grid = grid_of(job.trace())
    found = explain(grid, graph_of(grid))

    assert grid.n_workers == 96
    assert found.suspects == [(20, 1)]
    assert found.m_w == pytest.approx(1.0, abs=0.1)
