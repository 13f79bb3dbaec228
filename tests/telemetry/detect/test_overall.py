"""What slows all workers alike: known from one long step, and of one node that node is named."""

from dataclasses import replace

import numpy as np

from telemetry.detect import find
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.slow import find_slow_compute
from tests.telemetry.detect.runs import Machines, inputs
from tests.telemetry.detect.test_slow import MEMORY, computing, found_in, run


def test_one_long_step_states_it_where_all_are_slower_by_the_same_factor() -> None:
    compute = computing(step_s=6.0)[:, :4]
    compute[-1] *= 1.3
    steps = run(compute)
    machines = Machines(steps.ended_at_s[-1] + 1, n_nodes=4)
    machines.mark(MEMORY, (slice(None), slice(None)), times=1 / 1.3, since_s=steps.ended_at_s[-2])
    (found,) = found_in(steps, machines)
    assert (found.rule, found.cause, found.node) == ("core_slow", "throttle", None)
    compute[-1] = compute[-2] * [1.45, 1.3, 1.2, 1.28]
    assert "throttle" not in {each.cause for each in found_in(run(compute), machines)}


def test_of_a_run_on_one_node_that_node_is_named() -> None:
    compute = computing()[:, :1]
    compute[-8:] *= 1.25
    steps = run(compute)
    machines = Machines(steps.ended_at_s[-1], n_nodes=1)
    machines.mark(MEMORY, (slice(None), slice(None)), times=0.8, since_s=steps.ended_at_s[-9])
    seen = inputs(steps, machines, hardware_at=machines.hardware_at)
    (found,) = find(replace(seen, nodes=("steady",)))
    assert (found.cause, found.node, found.device) == ("throttle", "steady", None)


def test_sequences_that_are_long_for_all_by_chance_are_no_lower_clock() -> None:
    compute = computing(step_s=6.0)
    compute[-12:, 3:] *= np.random.default_rng(2).uniform(1.2, 1.9, compute[-12:, 3:].shape)
    compute[-12:, -1] = 12.0
    compute[-1, :3] *= 1.15
    steps = run(compute)
    machines = Machines(steps.ended_at_s[-1])
    seen = inputs(steps, machines, hardware_at=machines.hardware_at)
    uneven = OpenProblem("step_slow", "seq_imbalance", evidence={"kind": "waiting"})

    assert [each.cause for each in find_slow_compute(seen, steps)] == ["throttle"]
    assert find_slow_compute(replace(seen, open_problems=(uneven,)), steps) == []
