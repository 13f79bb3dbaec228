"""The rules that can break, as a table: the registry of everything detection may say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["page", "warn"]
Subject = Literal["run", "node", "fleet"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that may be wrong, in words for people; ``subject`` is whom an alert is about."""

    name: str
    title: str
    severity: Severity
    subject: Subject
    help: str

    @property
    def runbook(self) -> str:
        """Path of the page that says what to do."""
        return f"docs/runbooks/{self.name}.md"


_ALL = (
    Rule(
        "allreduce_share",
        "All-reduce share above its limit",
        "page",
        "run",
        "Workers spend more of each step in the gradient all-reduce than the run's limit allows.",
    ),
    Rule(
        "node_silent",
        "Node silent",
        "page",
        "node",
        "A node that used to report has not been heard of; training on it may or may not go on.",
    ),
    Rule(
        "ecc_uncorrected",
        "Uncorrected ECC error",
        "page",
        "node",
        "An accelerator counted memory errors it could not correct: results may be wrong.",
    ),
    Rule(
        "monitoring_blind",
        "Monitoring is blind",
        "page",
        "fleet",
        "No node at all is heard of: what is broken is more likely the monitoring than the fleet.",
    ),
)
RULES: Mapping[str, Rule] = {rule.name: rule for rule in _ALL}
