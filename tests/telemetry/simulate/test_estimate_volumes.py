"""Bytes moved and held per step, and time shares of a healthy fleet."""

from typing import Any

import pytest

from telemetry.catalog import Model
from telemetry.simulate.layout import Layout, lay_out
from telemetry.simulate.plan import RECOMPUTE, Job, Recompute
from telemetry.simulate.step_model import StepPlan, layer_work, step_plan

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

    assert llama.exchange.bytes_per_rank == pytest.approx(gradients_and_weights)
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


# A GPT of round numbers, alone on 8 H100 with tp 4 and pp 2: one replica.
TINY = Model(
    name="tiny",
    params=1.6e9,
    layers=8,
    hidden=4096,
    heads=32,
    kv_heads=32,
    ffn=16384,
    vocab=32000,
    source="none",
    date="2026",
)


def tiny(recompute: Recompute, **changes: Any) -> Layout:
    given = {"tp": 4, "pp": 2, "vp": 1, "micro_batch": 2} | changes
    job = Job(
        model="tiny",
        instance="p5.48xlarge",
        nodes=1,
        seq_len=1024,
        global_batch=8,
        recompute=recompute,
        **given,
    )
    return lay_out(job, TINY)


@pytest.mark.parametrize(
    ("recompute", "sequence_parallel", "kept"),
    [
        # Two micro-batches in flight of 2 x 1024 tokens in 4 layers, 34, 20 or 2 bytes of each
        # hidden unit over 4 ranks; what runs again holds one micro-batch of one whole layer.
        ("none", True, 2 * 4 * 2048 * 4096 * 34 / 4),
        ("selective", True, 2 * 4 * 2048 * 4096 * 20 / 4 + 2048 * 4096 * 34 / 4),
        ("full", True, 2 * 4 * 2048 * 4096 * 2 / 4 + 2048 * 4096 * 34 / 4),
        # Without sequence parallelism norms and residuals are on every rank.
        ("none", False, 2 * 4 * 2048 * 4096 * (10 + 24 / 4)),
        ("full", False, 2 * 4 * 2048 * 4096 * 2 + 2048 * 4096 * (10 + 24 / 4)),
    ],
)
def test_the_memory_of_one_layout_counted_term_by_term(
    recompute: Recompute, *, sequence_parallel: bool, kept: float
) -> None:
    layout = tiny(recompute, sequence_parallel=sequence_parallel)
    logits = 4 * 2048 * 32000 / 4
    states = 1.6e9 / 8 * (2 + 4 + 12)

    assert layout.activation_bytes == pytest.approx(kept + logits)
    assert layout.state_bytes == pytest.approx(states)


def test_scores_are_kept_where_attention_is_not_one_kernel() -> None:
    job = Job(
        model="tiny",
        instance="trn1.32xlarge",
        nodes=1,
        tp=32,
        seq_len=1024,
        global_batch=1,
        recompute="none",
        micro_batch=1,
    )
    scores = 5 * 32 * 1024 * 1024 / 32

    assert lay_out(job, TINY).layer_bytes("none") == pytest.approx(34 / 32 * 1024 * 4096 + scores)
    assert lay_out(job, TINY).layer_bytes("selective") == pytest.approx(20 / 32 * 1024 * 4096)


def test_full_recomputation_takes_four_thirds_of_the_flops_in_linear_layers() -> None:
    none, selective, full = (layer_work(tiny(each)) for each in RECOMPUTE)
    linear = 6 * 2048 * (4 * 4096**2 + 2 * 4096 * 16384) / 4
    scores = 7 * 2 * 2048 * 512 * 4096 / 4

    assert none.attention_flops == pytest.approx(scores)
    assert full.matmul_flops / none.matmul_flops == pytest.approx(4 / 3)
    assert selective.matmul_flops == none.matmul_flops
    # Forwards 2 of the 7 products once more.
    assert selective.attention_flops == full.attention_flops == pytest.approx(scores * 9 / 7)
    # Small products count for more: 250 rows, columns or inner dimension halve the speed.
    assert linear < none.matmul_flops < 1.6 * linear


def test_flops_executed_are_those_of_the_tokens_and_what_runs_again() -> None:
    plans = {each: step_plan(tiny(each).job, TINY).executed_flops for each in RECOMPUTE}
    attention = 12 * 8 * 4096 * 1024
    tokens = 8 * 1024

    assert plans["none"] == tokens * (6 * 1.6e9 + attention)
    assert plans["selective"] == pytest.approx(tokens * (6 * 1.6e9 + attention * 4 / 3))
    assert plans["full"] == pytest.approx(4 / 3 * plans["none"])


def test_context_parallelism_divides_activations_and_attention() -> None:
    one, two = (tiny("none", tp=1, pp=1, cp=cp, micro_batch=1) for cp in (1, 2))

    assert two.activation_bytes == one.activation_bytes / 2
    assert layer_work(two).attention_flops == layer_work(one).attention_flops / 2
    assert (one.dp, one.replicas) == (8, 8)
    assert (two.dp, two.replicas) == (4, 8)


def test_virtual_stages_divide_the_bubble() -> None:
    one, four = (step_plan(tiny("none", vp=vp).job, TINY) for vp in (1, 4))

    assert four.bubble_s == pytest.approx(one.bubble_s / 4, rel=0.05)
    assert four.device_memory_bytes > one.device_memory_bytes


def test_loading_reads_the_graphs_and_a_checkpoint(llama: StepPlan) -> None:
    assert llama.load_s == pytest.approx(10 + 6.74e9 * 14 / 16 / 2e9)
    assert llama.first_step_s == 2 * llama.step_s
    assert llama.warm_up_s == pytest.approx(1.35 * llama.step_s)
