"""A finding: a rule that is broken now, who is to blame, and the figures that say so."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from telemetry.detect.rules import Severity

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule.

    ``run`` and ``node`` say whom it concerns; ``node`` and ``device`` are None where no machine
    is to blame, or several are: then ``nodes`` lists them. ``score`` is evidence over threshold:
    1 is just enough. ``evidence`` holds plain JSON figures, by the keys that docs/rules.md lists.
    """

    rule: str
    cause: str
    severity: Severity
    run: str | None
    node: str | None
    device: int | None
    onset_s: float
    score: float
    victims: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()

    @property
    def accused(self) -> tuple[str, ...]:
        """Every node to blame: several, one or none."""
        return self.nodes or (() if self.node is None else (self.node,))
