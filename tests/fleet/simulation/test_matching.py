"""Matching alerts to faults: by run and time, best fit first, one to one."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from drills.report import misleads
from fleet.simulation.ground_truth import right_causes
from fleet.simulation.scoring import (
    accuses_wrongly,
    is_cause_right,
    is_place_right,
    match,
)
from telemetry.simulate.inputs import FULL, LIVE, TIERS
from telemetry.simulate.plan import Fault

Made = Callable[..., Any]


def test_an_alert_about_the_run_while_the_fault_lasts_notices_it(
    truth: Made, firing: Made
) -> None:
    found = match([truth()], [firing()])

    assert (found.noticed, found.repeats, found.false) == ({0: 0}, {}, ())


@pytest.mark.parametrize(
    "wrong", [{"run": "other"}, {"fired_s": 99.0}, {"fired_s": 261.0}], ids=str
)
def test_another_run_or_another_time_is_false(truth: Made, firing: Made, wrong: Any) -> None:
    found = match([truth()], [firing(**wrong)])

    assert (found.noticed, found.false) == ({}, (0,))


def test_a_minute_of_grace_follows_the_last_step_that_felt_it(truth: Made, firing: Made) -> None:
    late = firing(fired_s=320.0)

    assert match([truth()], [late]).noticed == {}
    assert match([truth(felt_until_s=270.0)], [late]).noticed == {0: 0}


def test_a_crash_is_also_felt_while_the_run_restarts(truth: Made, firing: Made) -> None:
    crash = truth(kind="node_crash", device=None)

    assert match([crash], [firing(fired_s=400.0)]).noticed == {0: 0}


def test_an_alert_about_the_whole_fleet_may_be_about_any_run(truth: Made, firing: Made) -> None:
    assert match([truth()], [firing(run=None, node=None, device=None)]).noticed == {0: 0}


def test_of_two_faults_at_once_each_has_the_alert_that_fits(truth: Made, firing: Made) -> None:
    slow, lossy = truth(), truth(kind="efa_loss", node="llama-03", device=1)
    about_lossy = firing(cause="efa_loss", node="llama-03", device=1, fired_s=104.0)

    assert match([slow, lossy], [about_lossy, firing()]).noticed == {0: 1, 1: 0}


def test_one_alert_cannot_notice_two_faults(truth: Made, firing: Made) -> None:
    other = truth(kind="throttle", node="llama-02", device=3)

    assert match([truth(), other], [firing()]).noticed == {0: 0}


def test_a_second_alert_repeats_unless_its_culprit_differs(truth: Made, firing: Made) -> None:
    symptom = firing(rule="step_slow", cause="unknown", node=None, device=None, fired_s=120.0)
    slander = firing(node="llama-02", fired_s=130.0)

    found = match([truth()], [firing(), symptom, slander])

    assert (found.noticed, found.repeats, found.false) == ({0: 0}, {1: 0}, (2,))


def test_an_alert_that_accuses_only_healthy_nodes_notices_nothing(
    truth: Made, firing: Made
) -> None:
    found = match([truth()], [firing(node="llama-02"), firing(fired_s=150.0)])
    assert (found.noticed, found.false) == ({0: 1}, (0,))


@pytest.mark.parametrize(
    ("shown", "does"),
    [
        ({}, False),
        ({"cause": "unknown", "node": None, "device": None}, False),
        ({"cause": "efa_loss", "node": None, "device": None}, True),
        ({"nodes": ("llama-01", "llama-02"), "node": None, "device": None}, True),
    ],
)
def test_an_alert_misleads_by_a_wrong_cause_or_a_healthy_node(
    truth: Made, firing: Made, shown: Any, *, does: bool
) -> None:
    fault, alert = truth(), firing(**shown)
    assert match([fault], [alert]).noticed == {0: 0}
    assert misleads(fault, alert, [fault]) is does


@pytest.mark.parametrize(
    ("shown", "is_right"),
    [
        ({}, True),
        ({"device": None}, True),
        ({"device": 8}, False),
        ({"node": "llama-02"}, False),
        ({"node": None, "device": None}, False),
    ],
    ids=str,
)
def test_the_place_is_the_node_and_no_wrong_part(
    truth: Made, firing: Made, *, shown: Any, is_right: bool
) -> None:
    assert is_place_right(truth(), firing(**shown)) == is_right


def test_a_fault_without_a_part_sits_on_the_first(truth: Made, firing: Made) -> None:
    assert is_place_right(truth(device=None), firing(device=0))
    assert not is_place_right(truth(device=None), firing(device=7))


@pytest.mark.parametrize("kind", ["seq_imbalance", "stage_imbalance"])
def test_what_slows_all_alike_has_no_place(truth: Made, firing: Made, kind: str) -> None:
    fault = truth(kind=kind, device=None)

    assert is_place_right(fault, firing(node=None, device=None))
    assert not is_place_right(fault, firing())


def test_kinds_that_look_alike_are_one_cause(truth: Made, firing: Made) -> None:
    hot = firing(cause="throttle")

    assert not is_cause_right(truth(), hot)
    assert is_cause_right(truth(causes=("slow_core", "throttle")), hot)


def test_a_class_is_right_where_the_inputs_cannot_tell_more() -> None:
    core = Fault(kind="slow_core", node="n", start_s=0, duration_s=60, magnitude=2)
    link = Fault(kind="efa_loss", node="n", start_s=0, duration_s=60, magnitude=0.1)
    busy = TIERS["agent_hooks"]
    idle = msgspec.structs.replace(FULL, busy_while_waiting=False)

    assert right_causes(core, idle, is_one_core=False) == ("slow_core",)
    assert right_causes(core, busy, is_one_core=False) == ("slow_compute", "slow_core")
    # The live fleet has no power.
    memory = Fault(kind="hbm_slow", node="n", start_s=0, duration_s=60, magnitude=2)
    assert right_causes(core, LIVE, is_one_core=False) == ("slow_compute", "slow_core")
    assert right_causes(memory, LIVE, is_one_core=False) == ("hbm_slow",)
    # Of an accelerator with one core, without its memory traffic.
    unknown = msgspec.structs.replace(idle, hbm_bandwidth=False)
    assert "slow_compute" in right_causes(core, unknown, is_one_core=True)
    assert right_causes(link, busy, is_one_core=False) == ("efa_loss",)
    assert right_causes(link, TIERS["hooks_only"], is_one_core=False) == ("efa_loss", "network")


def test_of_several_nodes_half_must_be_named_and_no_other(truth: Made, firing: Made) -> None:
    nodes = ("llama-01", "llama-02", "llama-03")
    rack = truth(nodes=nodes)

    for accused, is_right in ((nodes, True), (nodes[:2], True), (nodes[:1], False)):
        assert is_place_right(rack, firing(node=None, nodes=accused)) == is_right
    assert not is_place_right(rack, firing(node=None, nodes=(*nodes, "llama-04")))


def test_one_alert_about_two_runs_may_be_about_a_fault_of_either(
    truth: Made, firing: Made
) -> None:
    both = truth(runs=("llama", "bert"))

    assert match([both], [firing(run="bert")]).noticed == {0: 0}
    assert match([truth()], [firing(run=None, runs=("bert", "llama"))]).noticed == {0: 0}
    assert match([truth()], [firing(run=None, runs=("bert",))]).noticed == {}


def test_an_innocent_node_is_accused_where_no_fault_hits_it(truth: Made, firing: Made) -> None:
    assert not accuses_wrongly(firing(), [truth()])
    assert accuses_wrongly(firing(node="llama-02"), [truth()])
    assert accuses_wrongly(firing(fired_s=900.0), [truth()])
    assert not accuses_wrongly(firing(node=None), [truth()])
