"""The verdict on every kind of trouble, in every layout, with noise and without."""

from typing import Any

import numpy as np
import pytest

from importers.traces.trace import Trace
from importers.traces.what_if import CAUSES, analyse_trace
from tests.importers.made_traces import Job
from tests.importers.traces.conftest import (
    analysed,
    congested,
    heavy_stage,
    now_and_then,
    one_slow,
    uneven_sequences,
)

Layout = dict[str, Any]

LAYOUTS: list[Layout] = [
    {},
    {"pp": 1},
    {"dp": 2, "pp": 2},
    {"tp": 2},
    {"chunks": 2},
    {"dp": 8, "pp": 2, "micro": 16},
]
PIPELINES = [layout for layout in LAYOUTS if layout.get("pp") != 1]
everywhere = pytest.mark.parametrize("layout", LAYOUTS, ids=str)
noisy = pytest.mark.parametrize("noise", [0.0, 0.03])


@noisy
@everywhere
def test_a_healthy_job_is_blamed_on_no_one(layout: Layout, noise: float) -> None:
    verdict = analysed(Job(noise=noise, **layout)).verdict

    assert (verdict.cause, verdict.culprits) == ("none", ())


@noisy
@everywhere
@pytest.mark.parametrize("by", [1.25, 2.0])
def test_one_slow_worker_is_named(layout: Layout, noise: float, by: float) -> None:
    worker = (1, layout.get("pp", 4) // 2)
    analysis = analysed(Job(noise=noise, work=one_slow(worker, by), **layout))

    assert analysis.verdict.cause == "one_worker"
    assert analysis.verdict.culprits == (worker,)
    assert analysis.culprits[0].endswith(f"-dp{worker[0]}-stage{worker[1]}")


@noisy
@pytest.mark.parametrize("layout", PIPELINES, ids=str)
def test_a_heavy_stage_is_named_and_no_machine(layout: Layout, noise: float) -> None:
    last = layout.get("pp", 4) - 1
    verdict = analysed(Job(noise=noise, work=heavy_stage(last), **layout)).verdict

    assert (verdict.cause, verdict.stage, verdict.culprits) == ("stage_imbalance", last, ())


@noisy
@everywhere
def test_uneven_sequences_are_blamed_on_no_one(layout: Layout, noise: float) -> None:
    verdict = analysed(Job(noise=noise, work=uneven_sequences, **layout)).verdict

    assert (verdict.cause, verdict.culprits) == ("sequence_imbalance", ())


@noisy
@everywhere
def test_slow_transfers_are_communication(layout: Layout, noise: float) -> None:
    verdict = analysed(Job(noise=noise, reduce=congested, **layout)).verdict

    assert (verdict.cause, verdict.culprits) == ("communication", ())


def test_a_slow_link_between_stages_is_communication() -> None:
    job = Job(p2p=lambda _step, dp, stage, _micro: 400.0 if (dp, stage) == (0, 1) else 1.0)

    assert analysed(job).verdict.cause == "communication"


@pytest.mark.parametrize(
    ("slow", "other_comm_ratio"),
    [({"reduce": lambda *_: 30.0}, 0.0), ({"p2p": lambda *_: 200.0}, 0.32)],
    ids=["gradients", "send and receive"],
)
def test_transfers_that_are_slow_for_all_are_communication_too(
    slow: Layout, other_comm_ratio: float
) -> None:
    analysis = analysed(Job(**slow))

    assert analysis.found.slowdown_ratio == pytest.approx(1.0, abs=0.01)
    assert (analysis.verdict.cause, analysis.verdict.culprits) == ("communication", ())
    assert analysis.found.other_comm_ratio == pytest.approx(other_comm_ratio, abs=0.01)


def test_transfers_that_are_slow_for_all_in_most_steps_are_communication() -> None:
    analysis = analysed(Job(reduce=lambda step, *_: 40.0 if step < 2 else 1.0))

    assert analysis.verdict.cause == "communication"


def test_pauses_do_not_hide_transfers_that_are_slow_for_all() -> None:
    analysis = analysed(Job(forward=now_and_then, reduce=lambda *_: 60.0, steps=6))

    assert analysis.found.slowdown_ratio > 1.05
    assert (analysis.verdict.cause, analysis.verdict.share_ratio) == ("communication", None)


@noisy
@pytest.mark.parametrize(
    ("layout", "slow"),
    [
        ({}, {(1, 2), (3, 0)}),
        ({"dp": 8, "pp": 1}, {(1, 0), (4, 0), (5, 0)}),
        ({"dp": 4, "pp": 1}, {(0, 0), (3, 0)}),
        ({"dp": 3, "pp": 2}, {(2, 0), (2, 1)}),
        ({"dp": 32, "pp": 1}, {(dp, 0) for dp in range(12)}),
    ],
    ids=["two of 16", "three of 8", "two of 4", "a replica", "a rack"],
)
def test_several_slow_workers_are_all_named(
    layout: Layout, slow: set[tuple[int, int]], noise: float
) -> None:
    work = lambda _step, dp, stage, _: 2.0 if (dp, stage) in slow else 1.0  # noqa: E731
    verdict = analysed(Job(work=work, noise=noise, **layout)).verdict

    assert verdict.cause == "several_workers"
    assert set(verdict.culprits) == slow


@pytest.mark.parametrize("n_steps", [1, 2])
def test_fewer_than_three_steps_show_no_pattern(n_steps: int) -> None:
    verdict = analysed(Job(steps=n_steps, work=one_slow((1, 2)))).verdict

    assert (verdict.cause, verdict.culprits) == ("too_short", ())


def test_of_one_replica_no_machine_is_blamed() -> None:
    verdict = analysed(Job(dp=1, work=one_slow((0, 2)))).verdict

    assert (verdict.cause, verdict.stage, verdict.culprits) == ("stage_imbalance", 2, ())


def test_a_worker_that_is_slow_now_and_then_is_no_sequence() -> None:
    slow = lambda step, dp, stage, _: 2.5 if (dp, stage) == (2, 1) and step % 2 else 1.0  # noqa: E731
    verdict = analysed(Job(steps=4, work=slow, noise=0.02)).verdict

    assert (verdict.cause, verdict.culprits) == ("one_worker", ((2, 1),))


@pytest.mark.parametrize("layout", [{}, {"dp": 8, "pp": 1}], ids=str)
def test_pauses_here_and_there_have_no_name(layout: Layout) -> None:
    analysis = analysed(Job(forward=now_and_then, steps=6, **layout))

    assert analysis.found.slowdown_ratio > 1.1
    assert analysis.verdict.cause == "none"
    assert analysis.verdict.share_ratio is not None


@pytest.mark.parametrize("lost_ratio", [0.005, 0.02])
def test_missing_operations_change_nothing(limping: Trace, lost_ratio: float) -> None:
    kept = np.random.default_rng(1).random(len(limping)) > lost_ratio
    columns = {name: getattr(limping, name)[kept] for name in limping.__slots__[:10]}
    whole, lossy = (analyse_trace(each, run="x") for each in (limping, Trace(**columns)))

    assert lossy.grid.n_missing == (~kept).sum()
    assert lossy.verdict.culprits == whole.verdict.culprits == ((1, 2),)
    assert lossy.found.slowdown_ratio == pytest.approx(whole.found.slowdown_ratio, rel=0.03)


def test_every_cause_has_its_word() -> None:
    assert set(CAUSES) == {
        "one_worker",
        "stage_imbalance",
        "sequence_imbalance",
        "communication",
        "several_workers",
    }
