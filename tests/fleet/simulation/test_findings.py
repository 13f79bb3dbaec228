"""Faults that were once overlooked, or reported several times: each is one alert, of one place."""

from typing import Any, NamedTuple

import msgspec
import pytest

from drills.report import drill
from drills.scenario import scenario_of
from fleet.simulation.scoring import Firing
from telemetry.simulate.inputs import tier_named

RUN = {
    "name": "run",
    "model": "llama2-7b",
    "instance": "trn1.32xlarge",
    "nodes": 8,
    "tp": 8,
    "seq_len": 4096,
    "global_batch": 128,
    "compile_s": 0,
}
TWO = [
    RUN | {"name": name, "global_batch": 256, "nodes_per_rack": 2} for name in ("left", "right")
]
# Its steps hardly vary: of the default noise one run in eight has a long step every few.
STEADY = {"noise": {"measured": False}}
ONE = RUN | {"nodes": 1, "global_batch": 32}
GPUS = {
    "model": "llama2-70b",
    "instance": "p5.48xlarge",
    "nodes": 2,
    "tp": 4,
    "pp": 2,
    "global_batch": 4,
}
SMALL = {
    "model": "bert-large",
    "instance": "trn1.2xlarge",
    "tp": 1,
    "seq_len": 128,
    "global_batch": 8192,
}
NODE = "run-03"


class Finding(NamedTuple):
    """A scenario, and what its only alert accuses; without ``rules`` there is none.

    ``more`` are other tables of the scenario; ``is_idle``: the first tier is also played with
    cores that are idle while they wait.
    """

    rules: tuple[str, ...]
    nodes: tuple[str, ...]
    causes: tuple[str, ...]
    fault: dict[str, Any] | None
    tiers: tuple[str, ...]
    duration_s: float = 400
    is_idle: bool = False
    more: dict[str, Any] = {}


def fault(kind: str, **more: Any) -> dict[str, Any]:
    place = {} if more.keys() & {"node", "rack"} else {"run": "run"}
    return {"kind": kind, "start_s": 120, "duration_s": 240} | place | more


def batch_change(factor: float) -> dict[str, Any]:
    return {"kind": "batch_change", "run": "run", "start_s": 300, "magnitude": factor}


# A run of which it is known how often its steps are long: 300 of 5 s.
LATE = {"start_s": 1_700, "duration_s": 500}
FINDINGS = {
    "three seconds in thirty": Finding(
        ("step_slow",),
        (NODE,),
        ("unknown", "slow_compute"),
        fault("hang", node=NODE, on_s=3, period_s=30, **LATE),
        ("full",),
        duration_s=2_300,
        more=STEADY,
    ),
    "three seconds in thirty, untimed": Finding(
        ("step_slow",),
        (),
        ("unknown", "slow_compute"),
        fault("hang", node=NODE, on_s=3, period_s=30, **LATE),
        ("agent_hooks",),
        duration_s=2_300,
        more=STEADY,
    ),
    "two seconds in twenty": Finding(
        ("core_slow", "step_slow", "allreduce_share"),
        (NODE,),
        # On for a third of a step each time: the kind of slowness is not certain.
        ("slow_core", "slow_compute", "throttle"),
        fault("slow_core", node=NODE, device=5, magnitude=2, on_s=2, period_s=20, **LATE),
        ("agent_collectives",),
        duration_s=2_300,
    ),
    "slow from its first step": Finding(
        ("step_slow",),
        (NODE,),
        ("unknown", "slow_compute"),
        fault("throttle", node=NODE, device=4, magnitude=1.08, start_s=0, duration_s=300),
        ("agent_collectives",),
        duration_s=300,
    ),
    "a gradual throttle": Finding(
        ("step_slow",),
        (),
        ("unknown", "slow_compute"),
        fault("throttle", magnitude=1.3, ramp_s=400, duration_s=500),
        ("agent_hooks",),
        duration_s=600,
    ),
    "a second of input": Finding(
        ("input_stall",),
        (NODE,),
        ("input_stall",),
        fault("input_stall", node=NODE, magnitude=1.0),
        ("agent_hooks",),
    ),
    "scattered steps": Finding(
        (),
        (),
        (),
        None,
        ("full", "agent_hooks"),
        duration_s=900,
        more={"noise": {"step_cv": 0.04, "tail": "lognormal"}},
    ),
    "a probe held for a minute": Finding(
        (),
        (),
        (),
        None,
        ("agent_hooks",),
        duration_s=750,
        more={"run": [RUN | {"nodes": 16, "global_batch": 256}]},
    ),
    "a scale-down of 32 nodes": Finding(
        ("node_idle",),
        tuple(f"run-{rank}" for rank in range(16, 32)),
        ("node_idle",),
        None,
        ("agent_hooks",),
        duration_s=840,
        more={
            "run": [RUN | {"nodes": 32, "global_batch": 512}],
            "benign": [{"kind": "scale_change", "run": "run", "start_s": 120, "magnitude": 0.5}],
        },
    ),
    "a recompile of twelve minutes": Finding(
        ("recompile",),
        (),
        ("recompile",),
        fault("recompile", magnitude=720, duration_s=720),
        ("agent_hooks",),
        duration_s=960,
    ),
    "a slow checkpoint": Finding(
        ("checkpoint_slow",),
        (),
        ("checkpoint_slow",),
        fault("checkpoint_slow", magnitude=5),
        ("full", "agent_hooks"),
    ),
    "more sequences on one node": Finding(
        (),
        (),
        (),
        None,
        ("agent_only", "prometheus_15s"),
        duration_s=600,
        more={"run": [ONE], "benign": [batch_change(3.0)]} | STEADY,
    ),
    "more sequences on accelerators without latencies": Finding(
        (),
        (),
        (),
        None,
        ("prometheus_15s",),
        duration_s=600,
        more={"run": [RUN | GPUS], "benign": [batch_change(2.0)]},
    ),
    "a throttled accelerator of the only node": Finding(
        ("step_slow",),
        (),
        ("unknown", "slow_compute"),
        fault("throttle", node="run-00", device=3, magnitude=1.4, start_s=300),
        ("agent_only", "prometheus_15s"),
        duration_s=500,
        more={"run": [ONE]},
    ),
    "a switch of two runs": Finding(
        ("allreduce_share", "efa_degraded"),
        ("left-02", "left-03", "right-02", "right-03"),
        ("efa_latency",),
        fault("efa_latency", rack=1, magnitude=6.0, duration_s=60),
        ("full",),
        duration_s=240,
        more={"run": TWO},
    ),
    # Probed once a minute, and half of the nodes behind it: no node stands out from its peers.
    "a switch of two runs, untimed": Finding(
        ("step_slow",),
        (),
        ("unknown", "network"),
        fault("efa_latency", rack=1, magnitude=6.0),
        ("agent_hooks",),
        more={"run": TWO},
    ),
}
pytestmark = pytest.mark.django_db
CASES = [
    (name, tier, is_busy)
    for name, each in FINDINGS.items()
    for tier in each.tiers
    for is_busy in ((True, False) if each.is_idle and tier == each.tiers[0] else (True,))
]


def firings_of(finding: Finding, *, tier: str, is_busy: bool) -> list[Firing]:
    faults = [finding.fault] if finding.fault else []
    table = {"name": "finding", "duration_s": finding.duration_s, "seed": 5}
    scenario = scenario_of(table | {"run": [RUN], "fault": faults} | finding.more)
    inputs = tier_named(tier, busy_while_waiting=is_busy)
    return list(drill(msgspec.structs.replace(scenario, inputs=inputs)).firings)


@pytest.mark.parametrize(
    ("run", "nodes", "devices"),
    [
        ({"instance": "p5.48xlarge", "nodes": 2}, ("run-00", "run-01"), (6, 1)),
        ({"nodes": 2, "global_batch": 32}, ("run-00", "run-01"), (30, 12)),
        ({"nodes": 1, "global_batch": 16}, ("run-00", "run-00"), (30, 12)),
    ],
    ids=["two nodes", "all nodes", "one node"],
)
def test_parts_that_become_slow_one_after_the_other_are_two_alerts(
    run: dict[str, Any], nodes: tuple[str, str], devices: tuple[int, int]
) -> None:
    faults = [
        fault("slow_core", node=nodes[0], device=devices[0], magnitude=3.0, duration_s=150),
        fault("throttle", node=nodes[1], device=devices[1], magnitude=1.5, start_s=165),
    ]
    faults[1] |= {"duration_s": 150}
    more = {"run": [RUN | run], "fault": faults}
    firings = firings_of(Finding((), (), (), None, (), more=more), tier="full", is_busy=False)

    assert [(each.accused, each.device) for each in firings] == [
        ((node,), device) for node, device in zip(nodes, devices, strict=True)
    ]
    # The second is named while the first lasts.
    assert firings[1].fired_s < 120 + 150


def test_a_slow_link_is_named_once_a_probe_shows_it() -> None:
    slow = fault("efa_latency", node=NODE, device=2, magnitude=1.8)
    finding = Finding((), (), (), slow, (), duration_s=300)
    (firing,) = firings_of(finding, tier="agent_hooks", is_busy=True)

    assert (firing.cause, firing.accused, firing.device) == ("efa_latency", (NODE,), 2)
    assert firing.fired_s < 120 + 95


# Detection remembers three minutes of steps: faults outlast them, and so must their alerts.
LASTS_S = 360
LASTING: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a share": (
        "full",
        {
            "model": "vit-huge",
            "instance": "trn2.48xlarge",
            "nodes": 3,
            "tp": 1,
            "pp": 2,
            "seq_len": 257,
            "global_batch": 3072,
        },
        fault("throttle", node="run-00", device=4, magnitude=2.0, duration_s=LASTS_S),
    ),
    "a few percent": (
        "full",
        {"nodes": 4, "global_batch": 64},
        fault("throttle", node="run-02", device=1, magnitude=1.12, duration_s=LASTS_S),
    ),
    "a stage": (
        "full",
        {
            "model": "gpt-neox-20b",
            "instance": "p4d.24xlarge",
            "nodes": 2,
            "tp": 4,
            "pp": 2,
            "seq_len": 2048,
            "global_batch": 2,
        },
        fault("stage_imbalance", magnitude=0.2, duration_s=LASTS_S),
    ),
    "executions": (
        "agent_hooks",
        {"nodes": 16, "global_batch": 256},
        fault("slow_core", node=NODE, device=5, magnitude=2.0, duration_s=LASTS_S),
    ),
    "no agent": ("hooks_only", {}, fault("hang", node=NODE, duration_s=600)),
}


@pytest.mark.parametrize("name", LASTING)
def test_an_alert_is_open_until_its_fault_is_over(name: str) -> None:
    tier, run, lasting = LASTING[name]
    until_s = lasting["start_s"] + lasting["duration_s"]
    more = {"run": [RUN | run], "fault": [lasting]}
    finding = Finding((), (), (), None, (), duration_s=until_s + 60, more=more)
    firings = firings_of(finding, tier=tier, is_busy=True)

    assert len(firings) == 1
    assert firings[0].resolved_s is None or firings[0].resolved_s >= until_s


@pytest.mark.parametrize(("name", "tier", "is_busy"), CASES)
def test_each_is_one_alert_of_the_right_place(name: str, tier: str, is_busy: bool) -> None:  # noqa: FBT001
    finding = FINDINGS[name]
    firings = firings_of(finding, tier=tier, is_busy=is_busy)

    accused = [tuple(sorted(each.accused)) for each in firings]
    assert accused == ([finding.nodes] if finding.rules else [])
    assert {each.rule for each in firings} <= set(finding.rules)
    assert {each.cause for each in firings} <= set(finding.causes)
