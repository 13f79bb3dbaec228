"""Faults and firings for matching tests."""

from collections.abc import Callable
from typing import Any

import pytest

from fleet.simulation.ground_truth import FaultTruth, is_shown_by_hardware, right_causes
from fleet.simulation.scoring import Firing
from telemetry.simulate.inputs import FULL
from telemetry.simulate.plan import Fault

Made = Callable[..., Any]


@pytest.fixture
def truth() -> Made:
    """Make the truth about a fault of a node, from 100 to 200 s, that costs half as much again."""

    def make(**fields: Any) -> FaultTruth:
        of_fault: dict[str, Any] = {
            "kind": "slow_core",
            "node": "llama-01",
            "device": 7,
            "magnitude": 1.5,
        }
        of_fault |= {name: fields.pop(name) for name in list(fields) if name in of_fault}
        start_s, end_s = fields.pop("start_s", 100.0), fields.pop("end_s", 200.0)
        fault = Fault(**of_fault, start_s=start_s, duration_s=end_s - start_s)
        usual: dict[str, Any] = {
            "runs": ("llama",),
            "nodes": (fault.node,) if fault.node else (),
            "causes": right_causes(fault, FULL, is_one_core=False),
            "is_shown": is_shown_by_hardware(fault, FULL),
            "step_slowdown_ratio": 1.5,
            "step_s": 3.0,
            "felt_until_s": end_s,
        }
        return FaultTruth(fault, start_s=start_s, end_s=end_s, **usual | fields)

    return make


@pytest.fixture
def firing() -> Made:
    """Make an alert that fires at 106 s about that fault, rightly."""

    def make(**fields: Any) -> Firing:
        usual: dict[str, Any] = {
            "rule": "core_slow",
            "cause": "slow_core",
            "severity": "1-page",
            "run": "llama",
            "node": "llama-01",
            "device": 7,
            "onset_s": 101.0,
            "fired_s": 106.0,
            "resolved_s": 215.0,
            "score": 1.4,
            "victims": (),
        }
        return Firing(**usual | fields)

    return make
