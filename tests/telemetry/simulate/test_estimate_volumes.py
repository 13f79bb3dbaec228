"""Bytes moved and held per step, and time shares of a healthy fleet."""

import pytest

from telemetry.simulate.plan import Job
from telemetry.simulate.step_model import StepPlan, step_plan

GIB = 2**30
LIMIT = 0.25


def plan_of(
    model: str, instance: str, nodes: int, *, tp: int = 1, seq_len: int, batch: int
) -> StepPlan:
    job = Job(
        model=model, instance=instance, nodes=nodes, tp=tp, seq_len=seq_len, global_batch=batch
    )
    return step_plan(job)


@pytest.fixture
def llama() -> StepPlan:
    return plan_of("llama2-7b", "trn1.32xlarge", 16, tp=8, seq_len=4096, batch=1024)


HEALTHY = {
    "pretraining on trn2": plan_of(
        "llama2-13b", "trn2.48xlarge", 12, tp=8, seq_len=4096, batch=192
    ),
    "pretraining on trn1": plan_of(
        "llama2-7b", "trn1.32xlarge", 16, tp=8, seq_len=4096, batch=1024
    ),
    "long context": plan_of("llama2-7b", "trn1.32xlarge", 4, tp=8, seq_len=16384, batch=32),
    "bert over ethernet": plan_of("bert-large", "trn1.2xlarge", 8, seq_len=128, batch=16384),
    "vit on trn2": plan_of("vit-huge", "trn2.48xlarge", 4, seq_len=257, batch=2048),
    "vit on p5": plan_of("vit-huge", "p5.48xlarge", 4, seq_len=257, batch=2048),
}


@pytest.mark.parametrize("plan", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_healthy_run_exchanges_in_part_of_its_step_well_below_the_limit(plan: StepPlan) -> None:
    assert 0.03 < plan.allreduce_share_ratio < 0.8 * LIMIT


@pytest.mark.parametrize("plan", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_healthy_run_fits_into_memory(plan: StepPlan) -> None:
    assert plan.fits
    assert plan.device_memory_bytes > 0.02 * plan.layout.instance.chip.hbm_bytes


def test_the_bytes_of_a_gradient_exchange_are_counted_as_the_book_states(llama: StepPlan) -> None:
    gradients_and_weights = 6.74e9 / 8 * (4 + 2)
    replicas_inside, nodes = 4, 16

    assert llama.allreduce_bytes == pytest.approx(gradients_and_weights)
    sent = 32 * gradients_and_weights / replicas_inside * (nodes - 1) / nodes
    assert llama.efa_bytes == pytest.approx(sent)
    assert llama.efa_device_bytes == pytest.approx(sent / 8)


def test_hops_carry_the_latency(llama: StepPlan) -> None:
    assert llama.n_messages == 2 * 32
    assert llama.n_hops == llama.n_messages * 2 * 4
    assert llama.allreduce_latency_s == pytest.approx(llama.n_hops * 15e-6)


def test_a_thousand_nodes_are_not_crossed_one_by_one() -> None:
    many = plan_of("llama2-7b", "trn2.48xlarge", 1000, tp=8, seq_len=4096, batch=32000)

    assert many.n_hops == many.n_messages * 20
    assert many.allreduce_share_ratio < LIMIT


def test_memory_traffic_stays_below_what_memory_can_do(llama: StepPlan) -> None:
    rate = llama.hbm_bytes / llama.step_s

    assert 0.1 * 820e9 < rate < 0.9 * 820e9


def test_a_checkpoint_is_weights_and_what_adam_keeps(llama: StepPlan) -> None:
    assert llama.checkpoint_bytes == 6.74e9 * 14
    assert 0 < llama.checkpoint_s < 60


def test_without_efa_no_device_sends() -> None:
    plan = HEALTHY["bert over ethernet"]

    assert plan.efa_device_bytes == 0
    assert plan.efa_bytes > 0


def test_what_does_not_fit_is_sharded_over_the_replicas() -> None:
    large = plan_of("llama2-70b", "trn2.48xlarge", 64, tp=4, seq_len=4096, batch=1024)

    assert large.layout.is_fully_sharded
    assert large.fits


def test_what_does_not_fit_even_so_states_it() -> None:
    assert not plan_of("gpt3-175b", "trn1.32xlarge", 1, tp=8, seq_len=2048, batch=4).fits
