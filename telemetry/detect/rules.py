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
        "step_slow",
        "Steps take longer",
        "page",
        "run",
        "Steps take longer than they used to, or than the workers' own peers explain.",
    ),
    Rule(
        "input_stall",
        "Input stalls training",
        "page",
        "run",
        "Steps wait for their training data, on one node or on all of them.",
    ),
    Rule(
        "checkpoint_slow",
        "Checkpoints are slow",
        "warn",
        "run",
        "Writing a checkpoint took much longer than it should, and the whole run stood still.",
    ),
    Rule(
        "core_slow",
        "Core or accelerator computes slowly",
        "page",
        "node",
        "A core, or all cores of an accelerator, stay busy while the rest of the node waits.",
    ),
    Rule(
        "hbm_slow",
        "HBM has lost bandwidth",
        "page",
        "node",
        "An accelerator moves fewer bytes from and to its memory than its peers do.",
    ),
    Rule(
        "efa_degraded",
        "EFA device degraded",
        "page",
        "node",
        "An EFA device answers late, loses packets, or carries nothing any more.",
    ),
    Rule(
        "hang",
        "Run hangs",
        "page",
        "run",
        "No step ends any more, though the run says that it trains.",
    ),
    Rule(
        "recompile",
        "Unexpected recompilation",
        "warn",
        "run",
        "The run stands still to compile its graphs again, and nobody announced it.",
    ),
    Rule(
        "exec_errors",
        "Executions fail",
        "page",
        "node",
        "Graph executions on a node fail, or its runtime reports errors.",
    ),
    Rule(
        "node_idle",
        "Node idles",
        "warn",
        "node",
        "A node is part of a run that trains, and does nothing.",
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
