"""The table of causes: what explains symptoms, what they rule out, and when a class is named."""

from pathlib import Path

import pytest

from telemetry.detect import RULES
from telemetry.detect.causes import (
    CAUSES,
    SYMPTOMS,
    Cause,
    best_explanation,
    explanations_json,
    separable,
)
from telemetry.detect.symptoms import MEASURES

QUIET_EFA = {"efa_latency": 0, "efa_retransmits": 0, "efa_device_bytes": 0}
ROOT = Path(__file__).parents[3]
FAULTS = ROOT / "docs" / "faults.md"


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_each_row_is_consistent_and_documented(cause: Cause) -> None:
    changed = {*cause.raises, *cause.lowers}
    assert changed.isdisjoint(cause.leaves)
    assert cause.name in FAULTS.read_text()
    assert cause.rule in RULES


def test_a_slow_step_alone_names_nothing() -> None:
    assert best_explanation({"step_s": 1}, scope="run") == "unknown"


def test_a_slow_transfer_without_probes_is_the_network() -> None:
    seen = {"step_s": 1, "transfer_s": 1, "wait_s": 0, "efa_retransmits": 0, "efa_device_bytes": 0}
    assert best_explanation(seen, scope="run") == "network"
    assert best_explanation(seen | {"efa_latency": 1}, scope="run") == "efa_latency"


def test_steady_slow_steps_with_a_healthy_network_are_slow_compute() -> None:
    seen = {"step_s": 1, "input_s": 0, "step_jitter": 0, "stage_longer": 0} | QUIET_EFA
    assert best_explanation(seen, scope="run") == "slow_compute"
    assert best_explanation(seen | {"step_jitter": 1}, scope="run") == "seq_imbalance"


def test_a_busy_device_is_throttled_only_if_its_memory_is_measured() -> None:
    seen = {"step_s": 1, "device_busier": 1, "core_busier": 0}
    assert separable("throttle", seen, scope="node") == "slow_compute"
    assert separable("throttle", seen | {"hbm_bandwidth": 0}, scope="node") == "throttle"


def test_the_table_says_why_a_cause_was_rejected() -> None:
    seen = {"step_s": 1, "transfer_s": 1, "efa_retransmits": 1}
    rows = {row["cause"]: row for row in explanations_json(seen, scope="node", named="efa_loss")}
    assert next(iter(rows)) == "efa_loss"
    assert rows["efa_loss"]["verdict"] == "named"
    assert rows["efa_latency"]["contradicting"] == ["efa_retransmits"]
    assert rows["hbm_slow"]["unmeasured"] == ["device_busier", "hbm_bandwidth"]


def test_each_symptom_has_one_measure_and_a_text() -> None:
    assert set(SYMPTOMS) == set(MEASURES)
    texts = (ROOT / "templates/alerts/_symptoms.html").read_text()
    assert [name for name in MEASURES if f"partialdef {name} " not in texts] == []
