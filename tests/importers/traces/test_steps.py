"""A trace as steps: nothing is lost or counted twice, and the shortest wait is the culprit's."""

import numpy as np
import pytest

from telemetry.steps import PHASES
from tests.importers.made_traces import EMBED_S, GATHER_S, REDUCE_S, Job
from tests.importers.traces.conftest import analysed, one_slow


def test_the_phases_of_every_worker_make_up_its_step() -> None:
    analysis = analysed(Job(noise=0.1))
    total = np.sum([analysis.steps.phases[phase] for phase in PHASES], axis=0)

    np.testing.assert_allclose(total, np.broadcast_to(total[:, :1], total.shape))
    np.testing.assert_allclose(
        analysis.steps.step_s, np.diff(analysis.steps.ended_at_s, prepend=0)
    )


def test_the_slow_worker_waits_least_of_its_group() -> None:
    analysis = analysed(Job(pp=1, work=one_slow((2, 0))))
    waits = analysis.steps.phases["wait_s"].mean(axis=0)

    assert waits.argmin() == 2
    assert waits[2] == pytest.approx(0.0, abs=1e-9)
    assert waits[0] == pytest.approx(8 * 0.6)


def test_transfers_count_from_the_last_arrival() -> None:
    analysis = analysed(Job(pp=1, work=one_slow((2, 0))))

    expected = GATHER_S + REDUCE_S + EMBED_S
    np.testing.assert_allclose(analysis.steps.phases["transfer_s"], expected, rtol=1e-9)


def test_the_share_is_waiting_and_transferring_over_the_step() -> None:
    steps = analysed(Job(pp=1, work=one_slow((2, 0)))).steps
    exposed = steps.phases["wait_s"] + steps.phases["transfer_s"]

    np.testing.assert_allclose(
        steps.allreduce_share_ratio, (exposed / steps.worker_step_s).mean(axis=1)
    )


def test_workers_are_named_by_rank_replica_and_stage() -> None:
    names = analysed(Job(dp=2, pp=2, tp=4, steps=1)).steps.workers

    assert names == (
        "rank0-dp0-stage0",
        "rank8-dp0-stage1",
        "rank4-dp1-stage0",
        "rank12-dp1-stage1",
    )
