"""Stragglers found by steps alone, and noise and pauses that are no straggler."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.detect import Finding, find
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.stragglers import lateness, steps_beyond_chance
from tests.telemetry.detect.runs import inputs, steps_of
from tests.telemetry.detect.test_slow import NAMES, computing


def noisy(n_workers: int, *, seed: int, noise: float, step_s: float = 1.0) -> FloatArray:
    """Steps of real processes: they scatter by percents, and one in fifty stumbles."""
    rng = np.random.default_rng(seed)
    compute = step_s * (1 + noise * rng.standard_normal((80, n_workers)))
    stumbles = rng.random((80, n_workers)) < 0.02
    return np.asarray(compute * (1 + stumbles * 0.3 * rng.random((80, n_workers))))


def without_agent(compute: FloatArray) -> list[Finding]:
    """Judge steps of nodes that report nothing else, step after step."""
    steps = steps_of(compute, workers=NAMES)
    open_problems: tuple[OpenProblem, ...] = ()
    found: list[Finding] = []
    for n_steps in range(40, len(steps) + 1):
        seen = inputs(steps[:n_steps], open_problems=open_problems)
        found = find(
            replace(seen, nodes=NAMES[: compute.shape[1]]),
            open_rules={s.rule for s in open_problems},
        )
        open_problems = tuple(
            OpenProblem(f.rule, f.cause, f.node, f.device, f.evidence) for f in found
        )
    return found


@pytest.mark.parametrize("n_workers", [2, 4, 8])
@pytest.mark.parametrize("noise", [0.003, 0.02])
@pytest.mark.parametrize("times", [1.3, 2.0])
def test_a_steady_straggler_is_named_by_steps_alone(
    n_workers: int, noise: float, times: float
) -> None:
    for seed in range(3):
        compute = noisy(n_workers, seed=seed, noise=noise)
        compute[42:, 1] *= times
        (found,) = without_agent(compute)
        assert (found.cause, found.node, found.severity) == ("slow_compute", "n1", "page")


def test_a_single_late_step_keeps_a_straggler_steady() -> None:
    compute = computing()[:, :4]
    compute[-10:, 2] *= 1.3
    compute[-3, 2] *= 1.6
    (found,) = without_agent(np.concatenate([computing()[:20, :4], compute]))
    assert (found.cause, found.node) == ("slow_compute", "n2")


def test_a_machine_that_recovers_leaves_no_uneven_work_behind() -> None:
    compute = np.concatenate([computing()[:, :4], computing(seed=6)[:30, :4]])
    compute[60:70, 1] *= 1.5
    steps = steps_of(compute, workers=NAMES, transfer_s=0.9)
    for n_steps in range(66, 90):
        seen = replace(inputs(steps[:n_steps]), nodes=NAMES)
        assert "seq_imbalance" not in {each.cause for each in find(seen)}


@pytest.mark.parametrize("n_workers", [3, 5])
def test_a_pause_of_all_of_a_few_workers_is_no_uneven_work(n_workers: int) -> None:
    compute = computing(step_s=3.4)[:, :n_workers]
    # A recompilation is part of the compute time where it is not reported.
    compute[-5] += 209.0
    assert "seq_imbalance" not in {each.cause for each in without_agent(compute[:-4])}
    assert "seq_imbalance" not in {each.cause for each in without_agent(compute)}


@pytest.mark.parametrize("n_workers", [2, 4])
@pytest.mark.parametrize("step_s", [1.0, 8.0])
def test_processes_that_scatter_by_percents_are_no_uneven_work(
    n_workers: int, step_s: float
) -> None:
    rng = np.random.default_rng(4)
    for _ in range(5):
        compute = step_s * (1 + 0.02 * rng.standard_normal((80, n_workers)))
        assert without_agent(compute) == []


@pytest.mark.parametrize(
    ("n_workers", "n_steps"), [(1, 1), (2, 8), (4, 5), (9, 4), (10, 3), (1000, 3)]
)
def test_the_same_worker_is_last_by_chance_in_few_steps_only(n_workers: int, n_steps: int) -> None:
    """One in n_workers for each step after the first: below 1 %, and three steps at least."""
    assert steps_beyond_chance(n_workers) == n_steps


def test_variation_from_step_to_step_is_half_the_range_of_few_steps() -> None:
    def restless(*late_s: float) -> float:
        compute = np.ones((len(late_s), 4))
        compute[:, 0] += np.array(late_s)
        return lateness(steps_of(compute, transfer_s=0.0)).variation_ratio

    # The first step may be half healthy and does not count.
    assert restless(0.9, 0.2, 0.2, 0.6) == pytest.approx(0.2)
    # A single jump of more steps is no variation.
    assert restless(0.9, 0.2, 0.2, 0.2, 0.6) == pytest.approx(0.0, abs=1e-9)
