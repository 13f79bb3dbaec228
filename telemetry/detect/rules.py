"""The rules that can break: the registry of everything detection, and Prometheus, may say."""

from collections.abc import Mapping

from telemetry.detect.rulebook.money import MONEY
from telemetry.detect.rulebook.nodes import NODES
from telemetry.detect.rulebook.parts import PARTS
from telemetry.detect.rulebook.rule import Query, Rule, Severity, Subject
from telemetry.detect.rulebook.standstill import STANDSTILL
from telemetry.detect.rulebook.starts import STARTS
from telemetry.detect.rulebook.steps import STEPS

__all__ = ["RULES", "Query", "Rule", "Severity", "Subject"]

RULES: Mapping[str, Rule] = {
    rule.name: rule for rule in (*STEPS, *PARTS, *STANDSTILL, *NODES, *STARTS, *MONEY)
}
