"""Steps follow one another as in a simple reference loop; no time is lost."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from telemetry.simulate.faults import HARDWARE_KINDS
from telemetry.simulate.plan import Benign, Fault, Plan
from telemetry.simulate.script import Act, Conditions, conditions, script_of
from telemetry.simulate.step_model import FIRST_STEPS
from telemetry.simulate.timeline import steps_under
from telemetry.steps import PHASES
from tests.telemetry.simulate.played import EPOCH, VISION, plan_of, played, steps

BUSY = plan_of(
    faults=[
        Fault(kind="slow_core", node="vit-01", start_s=60.2, duration_s=25, magnitude=1.6),
        Fault(kind="input_stall", run="vit", start_s=70, duration_s=30, magnitude=0.4),
        Fault(kind="efa_latency", node="vit-02", device=3, start_s=90, duration_s=40, magnitude=9),
        Fault(kind="seq_imbalance", run="vit", start_s=100, duration_s=9, magnitude=0.9),
    ]
)


def by_the_book(plan: Plan, *, first_s: float, until_s: float) -> list[tuple[float, list[float]]]:
    """Follow the run step by step and worker by worker: when steps end, who waits how long.

    Hardware that changes within a step changes the pace of what is left of it.
    """
    script, at_s = script_of(plan), first_s
    reported: list[tuple[float, list[float]]] = []
    edges_s = sorted(
        EPOCH + at
        for fault in plan.faults
        if fault.kind in HARDWARE_KINDS
        for at in (fault.start_s, fault.start_s + fault.duration_s)
    )

    def left_at(pace: Callable[[float], float], begins_s: float, work_s: float) -> float:
        """End of work that takes ``work_s`` at a pace of 1, and is slowed by changing paces."""
        now_s = begins_s
        for edge_s in (each for each in edges_s if each > begins_s):
            done_s = (edge_s - now_s) / pace(now_s)
            if done_s >= work_s:
                break
            now_s, work_s = edge_s, work_s - done_s
        return now_s + work_s * pace(now_s)

    while True:
        acts = script.on(at_s)
        now = conditions(script, acts)
        n_done = len(reported)
        one = steps_under(script, now, first=n_done, n_steps=1, start_s=at_s)

        def under(second_s: float, acts: tuple[Act, ...] = acts) -> Conditions:
            return conditions(script, script.changed(acts, second_s))

        arrivals = []
        for worker in range(plan.run.nodes):
            begins_s = at_s + float(one.input_s[0, worker])
            usual_s = float(now.compute_s[worker])

            def pace(second_s: float, worker: int = worker, usual_s: float = usual_s) -> float:
                return float(under(second_s).compute_s[worker]) / usual_s

            arrivals.append(left_at(pace, begins_s, float(one.compute_s[0, worker])))
        last_s = max(arrivals)

        def stretch(second_s: float, usual_s: float = now.transfer_s) -> float:
            return under(second_s).transfer_s / usual_s

        at_s = left_at(stretch, last_s, float(one.transfer_s[0]))
        at_s = round(at_s * 2**20) / 2**20
        if at_s > until_s:
            return reported
        reported.append((at_s, [last_s - arrival for arrival in arrivals]))


def test_it_agrees_with_the_slow_loop() -> None:
    batch = played(BUSY, 200).steps
    first_s = batch.ended_at_s[0] - float(batch.step_s[0])
    reported = by_the_book(BUSY, first_s=round(first_s * 2**20) / 2**20, until_s=EPOCH + 200)

    np.testing.assert_allclose(batch.ended_at_s, [end for end, _ in reported], atol=1e-5, rtol=0)
    np.testing.assert_allclose(batch.phases["wait_s"], [wait for _, wait in reported], atol=1e-6)


@pytest.mark.parametrize("kind", ["throttle", "efa_latency", "input_stall"])
def test_hardware_slows_the_step_under_way_and_data_the_next_one(kind: str) -> None:
    healthy = played(msgspec.structs.replace(BUSY, faults=()), 90).steps
    row = int(np.searchsorted(healthy.ended_at_s, EPOCH + 60))
    compute_s = float(healthy.phases["compute_s"][row].max())
    transfer_s = float(healthy.phases["transfer_s"][row, 0])
    left_s = {
        "throttle": compute_s / 2 + transfer_s,
        "efa_latency": transfer_s / 2,
        "input_stall": float(healthy.step_s[row]) / 2,
    }[kind]
    start_s = float(healthy.ended_at_s[row]) - left_s - EPOCH
    fault = Fault(kind=kind, run="vit", start_s=start_s, duration_s=20, magnitude=2.0)
    slow = played(msgspec.structs.replace(BUSY, faults=(fault,)), 90).steps
    longer_s = slow.step_s - healthy.step_s[: len(slow)]
    assert longer_s[:row] == pytest.approx(0, abs=1e-5)
    share = longer_s[row] / longer_s[row + 1]
    assert share == pytest.approx(0.0 if kind == "input_stall" else 0.5, abs=0.05)


def test_the_first_steps_take_longer_after_each_start() -> None:
    leaves = Benign(kind="node_leaves", run="vit", node="vit-02", start_s=60, duration_s=40)
    steps = played(msgspec.structs.replace(BUSY, faults=(), benign=(leaves,)), 200).steps
    work_s = np.nanmax(steps.phases["compute_s"], axis=1)
    paused_s = steps.ended_at_s[1:] - steps.step_s[1:] - steps.ended_at_s[:-1]
    starts = [0, *(np.flatnonzero(paused_s > 10) + 1)]
    assert len(starts) == 3
    for start in starts:
        ratios = work_s[start : start + 3] / np.median(work_s[start + 3 : start + 13])
        np.testing.assert_allclose(ratios, FIRST_STEPS, rtol=0.1)


def test_time_is_conserved() -> None:
    batch = played(BUSY, 200).steps
    between = np.diff(batch.ended_at_s)

    for worker in range(4):
        np.testing.assert_allclose(batch.worker_step_s[1:, worker], between, rtol=1e-6)


def test_all_workers_account_for_the_same_step() -> None:
    batch = played(BUSY, 200).steps

    np.testing.assert_allclose(
        batch.worker_step_s, batch.step_s[:, None] + 0 * batch.worker_step_s
    )


def test_the_last_to_arrive_does_not_wait() -> None:
    batch = played(BUSY, 200).steps

    assert (batch.phases["wait_s"].min(axis=1) == 0).all()
    assert all((batch.phases[name] >= 0).all() for name in PHASES)


def test_steps_and_tokens_count_up_together() -> None:
    result = played(BUSY, 200)

    assert (np.diff(result.steps.step) == 1).all()
    assert result.steps.step[0] == 0
    assert result.clock.step == len(result.steps)
    assert result.clock.n_tokens == result.steps.tokens.sum() == len(result.steps) * 4096 * 256


def test_a_healthy_run_is_far_from_the_limit() -> None:
    batch = steps(played(plan_of(), 400), 40, 400)

    assert batch.allreduce_share_ratio.mean() < 0.1
    assert np.quantile(batch.allreduce_share_ratio, 0.99) < 0.15
    assert batch.wait_ratio.mean() < 0.03


def test_workers_differ_a_little_and_for_good() -> None:
    batch = steps(played(plan_of(msgspec.structs.replace(VISION, nodes=16)), 600), 40, 600)
    pace = np.median(batch.phases["compute_s"], axis=0)

    assert 0.001 < np.std(pace) / pace.mean() < 0.01
    assert np.ptp(pace) / pace.mean() < 0.025


def test_noise_drifts_from_step_to_step() -> None:
    batch = steps(played(plan_of(), 1_200), 40, 1_200)
    noise = batch.phases["compute_s"][:, 0]
    noise = np.clip(noise, *np.quantile(noise, [0.02, 0.98]))
    noise = noise - noise.mean()

    def alike(lag: int) -> float:
        return float((noise[lag:] * noise[:-lag]).mean() / noise.var())

    assert alike(1) > 0.4
    assert abs(alike(200)) < 0.25


def test_a_step_sees_what_is_wrong_when_it_begins() -> None:
    fault = Fault(kind="slow_core", node="vit-01", start_s=60, duration_s=30, magnitude=2)
    batch = played(plan_of(faults=[fault]), 120).steps
    began_s = batch.ended_at_s - batch.step_s - EPOCH
    is_slow = batch.phases["compute_s"][:, 1] > 1.5 * batch.phases["compute_s"][:, 0]

    np.testing.assert_array_equal(is_slow, (began_s >= 60) & (began_s < 90))


@pytest.mark.parametrize("nodes", [1, 4])
def test_one_node_waits_for_no_one(nodes: int) -> None:
    batch = played(plan_of(msgspec.structs.replace(VISION, nodes=nodes)), 100).steps

    assert (batch.phases["wait_s"].max() > 0) == (nodes > 1)
