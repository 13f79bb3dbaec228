"""Drills with noise as measured on public runs, at every input tier."""

from typing import Any

import pytest

from drills.report import DrillReport, drill
from drills.scenario import scenario_of
from fleet.simulation.scoring import accuses_wrongly
from telemetry.simulate.inputs import TIERS

RUN = {
    "name": "llama",
    "model": "llama2-7b",
    "instance": "trn1.32xlarge",
    "nodes": 4,
    "tp": 8,
    "seq_len": 4096,
    "global_batch": 64,
    "compile_s": 0,
}
SLOW_CORE: dict[str, Any] = {
    "kind": "slow_core",
    "node": "llama-02",
    "device": 3,
    "start_s": 420.0,
    "duration_s": 160.0,
    "magnitude": 1.4,
}
# Without an agent and timed exchanges it is not known who is late.
NAMES_NO_NODE = {"hooks_only"}

pytestmark = pytest.mark.django_db


def play(tier: str, *faults: dict[str, Any]) -> DrillReport:
    table = {
        "name": "measured",
        "duration_s": 600.0,
        "seed": 3,
        "inputs": {"tier": tier},
        "noise": {"measured": True},
        "run": [RUN],
        "fault": list(faults),
    }
    return drill(scenario_of(table))


@pytest.mark.parametrize("tier", TIERS)
def test_a_healthy_run_has_no_alert_and_of_a_slow_core_no_other_node_is_accused(
    tier: str,
) -> None:
    report = play(tier, SLOW_CORE)

    assert min(each.fired_s for each in report.firings) >= SLOW_CORE["start_s"]
    assert report.matches.noticed
    firing = report.firings[report.matches.noticed[0]]
    assert firing.fired_s < SLOW_CORE["start_s"] + 90.0
    assert not any(accuses_wrongly(each, report.truths) for each in report.firings)
    if tier not in NAMES_NO_NODE:
        assert firing.node == "llama-02"


def test_slow_memory_is_one_alert_that_names_its_device() -> None:
    """Cores that wait count as busy, so that only the memory shows which device it is."""
    fault = SLOW_CORE | {"kind": "hbm_slow", "magnitude": 0.5, "device": 7}
    firings = play("full", fault).firings

    assert [(each.cause, each.node, each.device) for each in firings] == [
        ("hbm_slow", "llama-02", 7)
    ]
