"""One problem: a cause at a culprit, whichever rule will speak of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from telemetry.blocks import Span
from telemetry.detect.inputs import OpenProblem
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


@dataclass(frozen=True, slots=True)
class CauseScore:
    """What looking for one cause has shown.

    ``strength`` is evidence over threshold: 1 is just enough to believe it, less rules it out.
    ``value`` is the most conspicuous part's figure in ``unit``, beside the ``peers_median`` of
    ``n_peers`` others. ``node`` and ``device`` are the machine and the part (core, accelerator or
    EFA device, by cause); None where no single one is to blame. ``is_only_part``: the machine has
    no other such part, the peers are those of other machines.
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
    is_only_part: bool = False

    @property
    def stands_out(self) -> bool:
        """Whether the evidence suffices."""
        return self.strength >= 1.0

    def figure(self) -> dict[str, Any]:
        """Return the figure as plain JSON: what is not finite is None."""
        return {
            "metric": self.metric,
            "value": json_number(self.value),
            "peers_median": json_number(self.peers_median),
            "n_peers": self.n_peers,
            "unit": self.unit,
        }


def json_number(value: float) -> float | None:
    """Return a float that JSON can hold, or None."""
    return float(value) if np.isfinite(value) else None


def ruled_out_json(scores: Iterable[CauseScore]) -> dict[str, dict[str, Any]]:
    """Return the figures of causes that do not hold; that the cause is unknown is no cause."""
    return {score.cause: score.figure() for score in scores if score.cause != UNKNOWN}


def strongest(scores: list[CauseScore]) -> CauseScore | None:
    """Return the look that stands out most; None where none does.

    Of several at the same part of the same machine the first in the list explains the others:
    put the most special cause first.
    """
    convincing = [score for score in scores if score.stands_out]
    if not convincing:
        return None
    most = max(convincing, key=lambda score: score.strength)
    return next(e for e in convincing if (e.node, e.device) == (most.node, most.device))


# The rule that a cause breaks at a node.
RULE_OF_NODE: Mapping[str, str] = {
    "slow_core": "core_slow",
    "throttle": "core_slow",
    "hbm_slow": "hbm_slow",
    "efa_latency": "efa_degraded",
    "efa_loss": "efa_degraded",
    "efa_down": "efa_degraded",
}
LINK_CAUSES = ("efa_latency", "efa_loss", "efa_down")


@dataclass(frozen=True, slots=True)
class Symptom:
    """A look that stands out, and when what it shows began."""

    score: CauseScore
    onset_s: float


def score_of_alert(alert: OpenProblem) -> CauseScore:
    """Return the look that an open alert was made of."""
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
    )


def onset_of_alert(alert: OpenProblem, span: Span) -> float:
    """Return since when an open alert has been so: as it says, or since the window began."""
    onset_s = _number_or_nan(alert.evidence.get("onset_s"))
    return onset_s if np.isfinite(onset_s) else float(span.ticks[0])


def _number_or_nan(value: object) -> float:
    """Return a number of some evidence; NaN where there is none."""
    return float(value) if isinstance(value, int | float) else np.nan


# Where the lost time goes: peers wait, bytes move slowly, all compute for longer, data are late;
# anywhere in the step, where nobody times the exchange of gradients.
Kind = Literal["waiting", "transferring", "computing", "input", "checkpoint", "step"]
KIND_OF: Mapping[str, Kind] = {
    "slow_core": "waiting",
    "throttle": "waiting",
    "hbm_slow": "waiting",
    "stage_imbalance": "waiting",
    "seq_imbalance": "waiting",
    "input_stall": "input",
    "checkpoint_slow": "checkpoint",
    "efa_latency": "transferring",
    "efa_loss": "transferring",
    "efa_down": "transferring",
}
RULE_OF_RUN: Mapping[str, str] = {
    "input_stall": "input_stall",
    "checkpoint_slow": "checkpoint_slow",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong and who is to blame; ``look`` is the figure that gives it away.

    ``cause`` is the look's, or unknown where no look convinces. ``late`` names the workers that
    arrive late, ``ruled_out`` the causes that were looked at and not believed, ``more`` figures
    that only this kind of problem has.
    """

    cause: str
    score: CauseScore | None
    kind: Kind
    onset_s: float
    strength: float
    late: tuple[str, ...] = ()
    ruled_out: tuple[CauseScore, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        """The machine to blame, if one is."""
        return self.score.node if self.score else None

    @property
    def device(self) -> int | None:
        """The part of it."""
        return self.score.device if self.score else None

    @property
    def rule(self) -> str:
        """The rule that is broken where the headline rule is not.

        Sick parts break the same rule on one node and on all: two troubles of a whole run at
        once are two alerts.
        """
        return RULE_OF_NODE.get(self.cause) or RULE_OF_RUN.get(self.cause, "step_slow")
