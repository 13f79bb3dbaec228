"""Benign events show their own pattern."""

import numpy as np
import pytest

from tests.telemetry.simulate.played import (
    EPOCH,
    START_S,
    phase,
    steps,
    values,
    with_event,
)


def test_a_checkpoint_is_written_once() -> None:
    batch = with_event("checkpoint").steps
    rows = np.flatnonzero(batch.phases["checkpoint_s"][:, 0])

    assert len(rows) == 1
    began_s = batch.ended_at_s[rows[0]] - batch.step_s[rows[0]] - EPOCH
    assert began_s == pytest.approx(START_S, abs=1)


def test_a_checkpoint_lasts_as_long_as_configured() -> None:
    batch = with_event("checkpoint", duration_s=17).steps

    assert batch.phases["checkpoint_s"].max() == 17


def test_an_evaluation_keeps_cores_busy_but_exchanges_nothing() -> None:
    result = with_event("evaluation", duration_s=40)
    during = START_S + 2, START_S + 39

    assert result.steps.phases["other_s"].max() == 40
    assert values(result, "core_utilization_ratio", *during).mean() == pytest.approx(0.6, abs=0.05)
    assert values(result, "efa_tx_bytes_per_s", *during).max() < 1e4


def test_a_planned_compilation_is_announced_and_belongs_to_no_step() -> None:
    result = with_event("planned_compile", duration_s=60, seconds=150)

    assert result.clock.phase == "compiling"
    assert result.steps.step_s.max() < 2
    assert values(result, "vcpu_usage_ratio", START_S + 2, 150).mean() > 0.5
    assert np.isfinite(values(result, "vcpu_usage_ratio", START_S, 150)).all()


def test_a_larger_batch_makes_longer_steps_of_more_tokens() -> None:
    result = with_event("batch_change", magnitude=2)
    before, after = steps(result, 40, START_S), steps(result, START_S, 240)

    assert after.tokens[-1] == 2 * before.tokens[0]
    assert after.step_s.mean() / before.step_s.mean() == pytest.approx(2, rel=0.1)
    assert after.allreduce_share_ratio.mean() < before.allreduce_share_ratio.mean()


def test_on_fewer_nodes_the_others_carry_more() -> None:
    result = with_event("scale_change", magnitude=0.5)
    after = steps(result, START_S + 30, 240)

    assert np.isnan(after.phases["compute_s"][:, 2:]).all()
    assert phase(result, "compute_s", START_S + 30, 240)[0] == pytest.approx(
        2 * phase(result, "compute_s", 40, START_S)[0], rel=0.1
    )
    assert after.tokens[-1] == result.steps.tokens[0]
    idle = values(result, "core_utilization_ratio", START_S + 30, 240)[:, 2:]
    assert idle.max() == 0


def test_a_node_that_leaves_idles_and_still_reports() -> None:
    result = with_event("node_leaves", node="vit-02")

    assert np.isfinite(values(result, "vcpu_usage_ratio", START_S, 240)).all()
    assert values(result, "core_utilization_ratio", START_S + 30, 240)[:, 2].max() == 0
    assert values(result, "vcpu_usage_ratio", START_S + 30, 240)[:, 2].max() < 0.05
    after = steps(result, START_S + 30, 240)
    assert np.isnan(after.phases["wait_s"]).all(axis=0).tolist() == [False, False, True, False]
    assert after.wait_ratio.mean() < 0.03


def test_a_node_that_joins_was_not_there_before() -> None:
    result = with_event("node_joins", node="vit-02")

    assert np.isnan(values(result, "vcpu_usage_ratio", 10, START_S)[:, 2]).all()
    assert np.isfinite(values(result, "vcpu_usage_ratio", START_S, 240)).all()
    assert np.isnan(steps(result, 40, START_S).phases["compute_s"][:, 2]).all()
    assert np.isfinite(steps(result, START_S + 30, 240).phases["compute_s"]).all()


@pytest.mark.parametrize("kind", ["node_leaves", "node_joins", "scale_change"])
def test_when_nodes_come_or_go_the_run_warms_up_again(kind: str) -> None:
    node = None if kind == "scale_change" else "vit-02"
    result = with_event(kind, node=node, seconds=int(START_S) + 5)

    assert result.clock.phase == "warming_up"
    assert result.clock.n_restarts == 0
