"""Properties of every job: times add up, and more of a resource is never slower."""

from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from telemetry.catalog import instance
from telemetry.simulate.communication import gradient_exchange, tensor_parallel_s
from telemetry.simulate.layout import lay_out
from telemetry.simulate.plan import RECOMPUTE, Job
from telemetry.simulate.step_model import (
    StepPlan,
    estimate,
    exposed_allreduce_s,
    micro_batch_work,
    seconds,
    step_plan,
)
from telemetry.simulate.tuning import LEAST_CP_TOKENS, best_layout

TRAINING = ("trn1.2xlarge", "trn1.32xlarge", "trn2.48xlarge", "p4d.24xlarge", "p5.48xlarge")
MODELS = ("bert-large", "vit-huge", "llama2-7b", "llama3.1-70b", "mpt-13b")


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Any job that can be laid out."""
    kind = instance(draw(st.sampled_from(TRAINING)))
    tp = draw(st.sampled_from([n for n in (1, 2, 4, 8, 32) if kind.n_cores % n == 0]))
    nodes = 2 ** draw(st.integers(0, 8))
    pp = draw(st.sampled_from([n for n in (1, 2, 8) if nodes * kind.n_cores % (tp * n) == 0]))
    cp = draw(st.sampled_from([n for n in (1, 2, 4) if nodes * kind.n_cores % (tp * pp * n) == 0]))
    dp = nodes * kind.n_cores // (tp * pp * cp)
    return Job(
        model=draw(st.sampled_from(MODELS)),
        instance=kind.name,
        nodes=nodes,
        tp=tp,
        pp=pp,
        cp=cp,
        recompute=draw(st.sampled_from([None, *RECOMPUTE])),
        sequence_parallel=draw(st.sampled_from([None, False])),
        seq_len=draw(st.sampled_from([128, 512, 2048, 8192, 32768])),
        global_batch=dp * draw(st.integers(1, 64)),
    )


def llama(*, nodes: int = 16, tp: int = 8, seq_len: int = 4096, batch: int = 1024) -> Job:
    return Job(
        model="llama2-7b",
        instance="trn1.32xlarge",
        nodes=nodes,
        tp=tp,
        seq_len=seq_len,
        global_batch=batch,
    )


@given(jobs())
def test_the_phases_add_up_to_the_step(job: Job) -> None:
    plan = step_plan(job)

    assert sum(plan.phases.values()) == pytest.approx(plan.step_s)
    assert all(spent >= 0 for spent in plan.phases.values())


@given(jobs())
def test_the_exchange_is_shown_or_hidden_and_nothing_else(job: Job) -> None:
    plan = step_plan(job)

    total = plan.exposed_allreduce_s + plan.hidden_allreduce_s
    assert total == pytest.approx(gradient_exchange(plan.layout).total_s)
    assert plan.hidden_allreduce_s >= 0


@given(jobs())
def test_no_one_gets_more_than_the_peak(job: Job) -> None:
    found = estimate(job)

    assert 0 < found.mfu_ratio < 1
    assert 0 <= found.allreduce_share_ratio < 1
    assert found.tokens_per_s == pytest.approx(found.seq_per_s * job.seq_len)


@given(jobs())
def test_more_recomputation_is_never_faster_and_never_holds_more(job: Job) -> None:
    same = msgspec.structs.replace(job, micro_batch=1)
    plans = [step_plan(msgspec.structs.replace(same, recompute=each)) for each in RECOMPUTE]

    times = [plan.step_s for plan in plans if not plan.layout.is_fully_sharded]
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(times))
    one = [plan.layout.layer_bytes(each) for plan, each in zip(plans, RECOMPUTE, strict=True)]
    assert one == sorted(one, reverse=True)


@given(jobs())
def test_sequence_parallelism_is_never_slower_and_never_holds_more(job: Job) -> None:
    fixed = msgspec.structs.replace(job, micro_batch=1, recompute="full")
    without = step_plan(msgspec.structs.replace(fixed, sequence_parallel=False))
    with_it = step_plan(msgspec.structs.replace(fixed, sequence_parallel=None))

    assert with_it.step_s <= without.step_s * (1 + 1e-9)
    assert with_it.device_memory_bytes <= without.device_memory_bytes


@given(jobs())
def test_no_layout_that_fits_is_faster_than_the_best(job: Job) -> None:
    plan = step_plan(msgspec.structs.replace(job, micro_batch=1))
    model, cp = plan.layout.model, plan.layout.job.cp
    assume(plan.layout.has_room(plan.layout.recompute, 1) and model.heads % job.tp == 0)
    assume(cp == 1 or job.seq_len / cp >= LEAST_CP_TOKENS)

    best = best_layout(job)
    assert best.step_s <= plan.step_s * (1 + 1e-9)
    assert best.device_memory_bytes <= 0.9 * best.layout.instance.chip.hbm_bytes


@given(st.sampled_from(TRAINING), st.integers(1, 64))
def test_a_single_replica_exchanges_no_gradients(name: str, batch: int) -> None:
    job = Job(
        model="llama2-7b",
        instance=name,
        nodes=1,
        tp=instance(name).n_cores,
        seq_len=2048,
        global_batch=batch,
    )
    plan = step_plan(job)

    assert plan.exposed_allreduce_s == plan.hidden_allreduce_s == plan.efa_bytes == 0


@given(jobs(), st.floats(1, 10))
def test_more_network_is_never_slower(job: Job, more: float) -> None:
    layout = lay_out(job)
    rate = layout.instance.network_bytes_per_s * more
    better = msgspec.structs.replace(layout.instance, network_bytes_per_s=rate)

    before, after = gradient_exchange(layout), gradient_exchange(replace(layout, instance=better))
    assert after.total_s <= before.total_s


@given(jobs(), st.floats(1, 10))
def test_faster_memory_is_never_slower(job: Job, more: float) -> None:
    layout = lay_out(job)
    rate = layout.instance.chip.hbm_bytes_per_s * more
    chip = msgspec.structs.replace(layout.instance.chip, hbm_bytes_per_s=rate)
    better = replace(layout, instance=msgspec.structs.replace(layout.instance, chip=chip))

    work = micro_batch_work(layout)
    assert seconds(better, work) <= seconds(layout, work)


@given(jobs(), st.floats(1, 50), st.floats(1, 50))
def test_a_worse_link_never_shortens_the_exchange(job: Job, one: float, more: float) -> None:
    plan = step_plan(job)

    slower = exposed_allreduce_s(plan, latency_factor=one * more, bandwidth_factor=one * more)
    slow = exposed_allreduce_s(plan, latency_factor=one, bandwidth_factor=one)
    assert slower >= slow >= plan.exposed_allreduce_s * (1 - 1e-9)


def test_factors_are_taken_for_all_steps_and_workers_at_once() -> None:
    plan = step_plan(llama())
    factor = np.linspace(1, 8, 6).reshape(2, 3)

    together = exposed_allreduce_s(plan, bandwidth_factor=factor)

    one_by_one = [[exposed_allreduce_s(plan, bandwidth_factor=f) for f in row] for row in factor]
    np.testing.assert_allclose(together, one_by_one)


def shares(plans: list[StepPlan]) -> list[float]:
    return [plan.allreduce_share_ratio for plan in plans]


def test_more_nodes_for_the_same_batch_train_faster_but_less_well() -> None:
    found = [estimate(llama(nodes=nodes)) for nodes in (4, 8, 16, 32, 64)]

    speeds, utilization = [e.tokens_per_s for e in found], [e.mfu_ratio for e in found]
    assert speeds == sorted(speeds)
    assert utilization == sorted(utilization, reverse=True)
    assert utilization[-1] > 0.5 * utilization[0]
    assert found[2].allreduce_share_ratio < found[3].allreduce_share_ratio


def test_a_larger_batch_hides_the_exchange_better() -> None:
    by_batch = shares([step_plan(llama(batch=batch)) for batch in (64, 256, 1024)])

    assert by_batch == sorted(by_batch, reverse=True)


def test_wider_tensor_parallelism_pays_more_for_its_collectives() -> None:
    per_flop = [tensor_parallel_s(lay_out(llama(tp=tp))) * tp for tp in (1, 2, 4, 8, 16, 32)]

    assert per_flop[0] == 0
    assert per_flop == sorted(per_flop)


def test_more_stages_make_a_longer_bubble() -> None:
    plans = [step_plan(msgspec.structs.replace(llama(batch=64), pp=pp)) for pp in (1, 2, 4)]
    bubbles = [plan.bubble_s / plan.step_s for plan in plans]

    assert bubbles[0] == 0
    assert bubbles == sorted(bubbles)


def test_the_bubble_is_the_textbook_one() -> None:
    plan = step_plan(msgspec.structs.replace(llama(batch=256), pp=4))
    m, busy_s = plan.layout.micro_batches, plan.compute_s + plan.tp_collective_s

    assert plan.bubble_s / (plan.bubble_s + busy_s) == pytest.approx(3 / (m + 3))
