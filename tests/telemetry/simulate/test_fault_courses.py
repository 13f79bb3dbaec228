"""Faults that grow, recur, and hit several nodes, a rack or two runs."""

import msgspec
import numpy as np
import pytest

from drills.scenario import load_scenario
from telemetry.blocks import FloatArray
from telemetry.errors import FieldError
from telemetry.simulate.plan import Fault
from telemetry.simulate.script import grown, strengths
from telemetry.simulate.shard import played_steps, start_clock
from telemetry.steps import StepBatch
from tests.telemetry.simulate.played import EPOCH, VISION, plan_of

START_S, LASTS_S = 60.0, 320.0


def fault(kind: str = "throttle", magnitude: float = 2.0, **more: object) -> Fault:
    usual = {"node": "vit-01"} if not {"nodes", "rack"} & more.keys() else {}
    table = {"kind": kind, "start_s": START_S, "duration_s": LASTS_S, "magnitude": magnitude}
    return msgspec.convert(table | usual | more, Fault)


def steps_with(*faults: Fault) -> StepBatch:
    run = msgspec.structs.replace(VISION, nodes_per_rack=2)
    plan = plan_of(run, faults=faults)
    return played_steps(plan, start_clock(plan), EPOCH + 400)


def compute_s(steps: StepBatch, first_s: float, last_s: float) -> FloatArray:
    ended = steps.ended_at_s - EPOCH
    rows = (ended > first_s) & (ended <= last_s)
    return np.asarray(steps.phases["compute_s"][rows].mean(axis=0))


def test_a_fault_grows_linearly_to_its_magnitude() -> None:
    healthy, grows = steps_with(), steps_with(fault(ramp_s=160))

    for first_s, expected in ((96, 1.25), (136, 1.5), (176, 1.75), (300, 2.0)):
        now = compute_s(grows, first_s, first_s + 8) / compute_s(healthy, 25, 55)
        assert now[1] == pytest.approx(expected, abs=0.05)
        np.testing.assert_allclose(now[[0, 2, 3]], 1, atol=0.02)


def test_growth_is_that_of_what_the_magnitude_means() -> None:
    assert grown("hbm_slow", 0.5, 0.5) == pytest.approx(1.5)  # half the bandwidth is twice slower
    assert grown("efa_latency", 5, 0.5) == pytest.approx(3)
    assert grown("efa_loss", 0.1, 0.5) == pytest.approx(0.05)
    assert grown("input_stall", 4, 0.25) == pytest.approx(1)


def test_an_intermittent_fault_costs_the_share_of_time_in_which_it_is_on() -> None:
    healthy = steps_with()
    usual_s = float(np.median(healthy.step_s))
    parts = list(strengths(fault(on_s=4, period_s=20)))
    slow = steps_with(fault(on_s=4, period_s=20))

    assert [part[:2] for part in parts[:2]] == [(60, 64), (80, 84)]
    within = slow.step_s[(slow.ended_at_s > EPOCH + 62) & (slow.ended_at_s < EPOCH + 378)]
    # For a fifth of the time steps take twice as long.
    assert within.mean() / usual_s == pytest.approx(1 / (0.8 + 0.2 / 2), rel=0.1)
    assert (within < 1.2 * usual_s).any()


def test_a_long_step_meets_a_share_of_a_fault_that_flickers() -> None:
    long = msgspec.structs.replace(VISION, global_batch=16 * VISION.global_batch)
    flickers = plan_of(long, faults=(fault(on_s=1, period_s=4),))
    healthy = plan_of(long)
    slow, usual = (
        played_steps(plan, start_clock(plan), EPOCH + 370) for plan in (flickers, healthy)
    )

    assert np.median(usual.step_s) > 5
    ratio = compute_s(slow, 90, 370)[1] / compute_s(usual, 90, 370)[1]
    assert ratio == pytest.approx(1.25, abs=0.06)


def test_several_nodes_and_racks_are_hit_together() -> None:
    healthy = compute_s(steps_with(), 25, 55)
    named = compute_s(steps_with(fault(nodes=["vit-00", "vit-03"])), 100, 300) / healthy
    rack = compute_s(steps_with(fault(rack=1)), 100, 300) / healthy

    assert (named > 1.5).tolist() == [True, False, False, True]
    assert (rack > 1.5).tolist() == [False, False, True, True]


TWO_RUNS = """
name = "switch"
duration_s = 60
[[run]]
name = "a"
model = "bert-large"
instance = "trn1.32xlarge"
nodes = 4
seq_len = 128
global_batch = 1024
nodes_per_rack = 2
[[run]]
name = "b"
model = "bert-large"
instance = "trn1.32xlarge"
nodes = 2
seq_len = 128
global_batch = 1024
nodes_per_rack = 2
[[fault]]
kind = "efa_latency"
start_s = 10
duration_s = 30
"""


def test_a_rack_is_the_same_for_all_runs_unless_one_is_named() -> None:
    both = load_scenario(TWO_RUNS + "rack = 0")
    one = load_scenario(TWO_RUNS + 'rack = 0\nrun = "a"')

    assert [plan.faults[0].ranks_in(plan.run) for plan in both.plans(epoch_s=0)] == [
        (0, 1),
        (0, 1),
    ]
    assert [len(plan.faults) for plan in one.plans(epoch_s=0)] == [1, 0]


@pytest.mark.parametrize(
    ("lines", "field", "remedy"),
    [
        ("rack = 7", "fault[0].rack", "choose 0 to"),
        ('nodes = ["a-00", "a-09"]', "fault[0].nodes", "choose one of a-00"),
        ('node = "a-00"\nnodes = ["a-01"]', "fault[0].nodes", "name one place"),
        ('node = "a-00"\nramp_s = -1', "fault[0].ramp_s", "-1"),
        ('node = "a-00"\non_s = 5', "fault[0].period_s", "give both or neither"),
        ('node = "a-00"\non_s = 5\nperiod_s = 5', "fault[0].on_s", "give less than"),
        ('node = "a-00"\non_s = 1e-4\nperiod_s = 1e-3', "fault[0].period_s", "longer period"),
    ],
)
def test_what_cannot_be_is_refused_by_field_and_remedy(
    lines: str, field: str, remedy: str
) -> None:
    with pytest.raises(FieldError) as refusal:
        load_scenario(TWO_RUNS + lines)

    assert refusal.value.field == field
    assert remedy in str(refusal.value)


def test_a_hang_has_nothing_that_could_grow() -> None:
    text = TWO_RUNS.replace("efa_latency", "hang") + 'node = "a-00"\nramp_s = 5'

    with pytest.raises(FieldError, match=r"fault\[0\]\.ramp_s: 5 lets hang grow"):
        load_scenario(text)
