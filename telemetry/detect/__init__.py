"""What is broken now, from numbers alone: rules over steps and hardware, each a finding."""

from telemetry.detect.engine import INDEPENDENT_RULES, SLOWDOWNS, Finder, find
from telemetry.detect.findings import Finding
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.node_errors import (
    STATE_METRICS,
    missing_devices,
    uncorrected,
    unhealthy_devices,
)
from telemetry.detect.rules import RULES, Rule, names_of
from telemetry.detect.stopped import StepHeartbeat, crashed_nodes, find_silent

__all__ = [
    "INDEPENDENT_RULES",
    "RULES",
    "SLOWDOWNS",
    "STATE_METRICS",
    "DetectionInput",
    "Finder",
    "Finding",
    "Rule",
    "StepHeartbeat",
    "crashed_nodes",
    "find",
    "find_silent",
    "missing_devices",
    "names_of",
    "uncorrected",
    "unhealthy_devices",
]
