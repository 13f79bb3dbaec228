"""Drills with the second version of detection, with noise as measured on public runs."""

from typing import Any

import pytest

from drills.report import DrillReport, drill
from fleet.alerts.evaluate import DETECTORS, slowdowns_of
from fleet.simulation.scoring import accuses_wrongly
from telemetry.simulate.inputs import TIERS
from telemetry.simulate.scenario import scenario_of

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
SLOW_CORE = {
    "kind": "slow_core",
    "node": "llama-02",
    "device": 3,
    "start_s": 240.0,
    "duration_s": 160.0,
    "magnitude": 1.4,
}
# Without an agent and timed exchanges it is not known who is late.
NAMES_NO_NODE = {"hooks_only"}

pytestmark = pytest.mark.django_db


def play(tier: str, *faults: dict[str, Any], detector: str = "2") -> DrillReport:
    table = {
        "name": "measured",
        "duration_s": 420.0,
        "seed": 3,
        "inputs": {"tier": tier},
        "noise": {"measured": True},
        "run": [RUN],
        "fault": list(faults),
    }
    return drill(scenario_of(table), detector=detector)


@pytest.mark.parametrize("tier", TIERS)
def test_a_healthy_run_has_no_alert(tier: str) -> None:
    assert play(tier).firings == ()


@pytest.mark.parametrize("tier", TIERS)
def test_a_slow_core_is_noticed_and_no_other_node_is_accused(tier: str) -> None:
    report = play(tier, SLOW_CORE)

    assert report.matches.noticed
    firing = report.firings[report.matches.noticed[0]]
    assert firing.fired_s < 240.0 + 90.0
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


def test_a_drill_plays_with_the_version_that_it_is_given() -> None:
    first, second = (play("agent_hooks", SLOW_CORE, detector=version) for version in DETECTORS)
    # Versions weigh evidence differently.
    assert first.firings != second.firings
    assert first.truths == second.truths


def test_the_version_is_that_of_the_environment_unless_one_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRNWATCH_DETECTOR", raising=False)
    assert slowdowns_of() is DETECTORS["2"]
    monkeypatch.setenv("TRNWATCH_DETECTOR", "1")
    assert slowdowns_of() is DETECTORS["1"]
    assert slowdowns_of("1") is DETECTORS["1"]
    monkeypatch.setenv("TRNWATCH_DETECTOR", "3")
    with pytest.raises(ValueError, match="TRNWATCH_DETECTOR: '3' is no version of detection; set"):
        slowdowns_of()
