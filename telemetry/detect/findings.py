"""What detection returns (findings), and the scores and problems behind them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from telemetry.blocks import METRICS
from telemetry.detect.causes import CLASSES, PART_OF, Part, kind_of, rule_of
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.quantities import Kind
from telemetry.detect.rules import Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule.

    ``node`` and ``device`` are None where no single one is the culprit; several nodes are in
    ``nodes``. ``score`` is evidence over threshold: 1 is just enough. ``evidence`` holds JSON
    values; docs/rules.md lists the keys.
    """

    rule: str
    cause: str
    severity: Severity
    run: str | None
    node: str | None = None
    device: int | None = None
    onset_s: float = field(kw_only=True)
    score: float = field(kw_only=True)
    victims: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()

    @property
    def accused(self) -> tuple[str, ...]:
        """Every accused node: none, one or several."""
        return self.nodes or (() if self.node is None else (self.node,))

    @property
    def part(self) -> Part | None:
        """What ``device`` numbers; None without one."""
        return part_of(self.cause, self.device, self.evidence)


def part_of(cause: str, device: int | None, evidence: Mapping[str, Any]) -> Part | None:
    """Return what a device number counts: by the culprit's figure, else by the cause."""
    if device is None:
        return None
    figure = evidence.get("culprit")
    kind = figure.get("part") if isinstance(figure, Mapping) else None
    return kind or PART_OF.get(cause, "device")


@dataclass(frozen=True, slots=True)
class CauseScore:
    """The score of one cause.

    ``strength`` is evidence over threshold: from 1 on the cause holds, below it is ruled out.
    ``value`` is the most conspicuous part's figure in ``unit``, ``peers_median`` that of
    ``n_peers`` others. ``node`` and ``device`` (core, accelerator or EFA device, by cause) are
    None where no single one is the culprit. ``part`` is what ``device`` numbers: it stays when
    the cause is replaced by its class.
    """

    cause: str
    strength: float
    metric: str
    value: float
    peers_median: float
    n_peers: int
    unit: str
    node: str | None = None
    device: int | None = None
    part: Part | None = None

    def __post_init__(self) -> None:
        if self.part is None:
            object.__setattr__(self, "part", PART_OF.get(self.cause))

    @property
    def charts(self) -> list[dict[str, Any]]:
        """The chart of the metric that identifies the culprit, if the store keeps it."""
        if self.node is None or self.metric not in METRICS:
            return []
        return [{"metric": self.metric, "node": self.node, "device": self.device}]

    def figure(self) -> dict[str, Any]:
        """As JSON; non-finite values are None."""
        return {
            "metric": self.metric,
            "value": json_number(self.value),
            "peers_median": json_number(self.peers_median),
            "n_peers": self.n_peers,
            "unit": self.unit,
            "part": self.part,
        }


def json_number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


# Charts begin this long before the onset to show the normal level.
LEAD_S = 120.0


def score_of_alert(alert: OpenProblem) -> CauseScore:
    """Return the score that an open alert was made from."""
    figure = alert.evidence.get("culprit") or {}
    return CauseScore(
        cause=alert.cause,
        strength=1.0,
        metric=str(figure.get("metric") or ""),
        value=_number_or_nan(figure.get("value")),
        peers_median=_number_or_nan(figure.get("peers_median")),
        n_peers=int(figure.get("n_peers") or 0),
        unit=str(figure.get("unit") or ""),
        node=alert.node,
        device=alert.device,
        part=figure.get("part"),
    )


def onset_of_alert(alert: OpenProblem, else_s: float) -> float:
    onset_s = _number_or_nan(alert.evidence.get("onset_s"))
    return onset_s if np.isfinite(onset_s) else float(else_s)


def _number_or_nan(value: object) -> float:
    return float(value) if isinstance(value, int | float) else np.nan


@dataclass(frozen=True, slots=True)
class Problem:
    """A cause with its culprit.

    ``cause`` is that of ``score``, or unknown. ``late`` names the workers that arrive late,
    ``extra`` holds figures of this kind of problem.
    """

    cause: str
    score: CauseScore | None
    kind: Kind
    onset_s: float
    strength: float
    late: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        return self.score.node if self.score else None

    @property
    def device(self) -> int | None:
        return self.score.device if self.score else None

    @property
    def rule(self) -> str:
        """The rule that is broken where allreduce_share is not.

        A cause breaks the same rule on one node and on all: two run-wide causes are two alerts.
        """
        if self.cause in CLASSES and self.device is None:
            return "step_slow"
        return rule_of(self.cause) or "step_slow"


def problem_of(score: CauseScore, onset_s: float) -> Problem:
    """Return the problem that a score alone shows."""
    return Problem(score.cause, score, kind_of(score.cause), onset_s, score.strength)
