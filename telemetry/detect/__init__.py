"""What is broken now, from numbers alone: rules over steps and hardware, each a finding."""

from telemetry.detect.finding import Finding
from telemetry.detect.parts.ecc import ECC_METRICS, uncorrected
from telemetry.detect.recall import Recall
from telemetry.detect.rules import RULES, Rule
from telemetry.detect.standstill.hang import known_dead
from telemetry.detect.standstill.silence import Pulse, silent
from telemetry.detect.vitals import Vitals
from telemetry.detect.watch import find

__all__ = [
    "ECC_METRICS",
    "RULES",
    "Finding",
    "Pulse",
    "Recall",
    "Rule",
    "Vitals",
    "find",
    "known_dead",
    "silent",
    "uncorrected",
]
