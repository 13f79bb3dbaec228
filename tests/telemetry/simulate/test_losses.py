"""Simulated loss: the published law with noise, independent of how it is played."""

import numpy as np
import pytest

from telemetry.simulate.losses import expected_loss
from telemetry.simulate.plan import Plan, RunSpec
from telemetry.simulate.shard import clock_at, played_steps, start_clock
from telemetry.steps import StepBatch

SPEC = RunSpec(
    name="llama",
    model="llama2-7b",
    instance="trn1.32xlarge",
    nodes=4,
    tp=8,
    seq_len=4096,
    global_batch=256,
    compile_s=0,
)


def played(spec: RunSpec, *, until: int = 7_200, seed: int = 3) -> StepBatch:
    plan = Plan(run=spec, seed=seed, epoch_s=0)
    return played_steps(plan, start_clock(plan), until)


def test_the_law_states_what_its_authors_say_of_their_own_model() -> None:
    """Chinchilla, 70 billion parameters and 1.4 trillion tokens: 1.94 by the published fit."""
    [loss] = expected_loss(70e9, np.array([1.4e12]), vocab_size=32_000)

    assert loss == pytest.approx(1.69 + 0.0836 + 0.1633, abs=2e-3)


def test_it_begins_where_guessing_is_and_falls() -> None:
    loss = played(SPEC).loss

    assert loss[0] == pytest.approx(np.log(32_000), abs=0.2)
    means = loss[: len(loss) // 50 * 50].reshape(-1, 50).mean(axis=1)
    assert (np.diff(means) < 0).all()


def test_steps_scatter_as_much_as_their_batch_is_small() -> None:
    batch = played(SPEC, until=36_000)
    law = expected_loss(6.74e9, (batch.step + 1.0) * 256 * 4096, vocab_size=32_000)
    off = (batch.loss - law)[100:]

    assert off.std() == pytest.approx(0.02 * np.sqrt(1e6 / (256 * 4096)), rel=0.15)
    assert abs(off.mean()) < 4 * off.std() / np.sqrt(len(off))


def test_it_depends_on_the_seed_and_not_on_where_the_interval_is_cut() -> None:
    plan = Plan(run=SPEC, seed=3, epoch_s=0)
    start = start_clock(plan)
    first = played_steps(plan, start, 1_800)
    rest = played_steps(plan, clock_at(plan, start, 1_800), 7_200)

    np.testing.assert_array_equal(np.concatenate([first.loss, rest.loss]), played(SPEC).loss)
    assert (played(SPEC, seed=4).loss[:500] != played(SPEC).loss[:500]).mean() > 0.9


def test_a_model_outside_the_scaling_law_reports_no_loss() -> None:
    vit = RunSpec(
        name="vit",
        model="vit-huge",
        instance="trn2.48xlarge",
        nodes=1,
        seq_len=257,
        global_batch=512,
        compile_s=0,
    )

    batch = played(vit, until=600)

    assert len(batch)
    assert batch.reported_loss is None
