"""One problem: a cause at a culprit, whichever rule will speak of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from telemetry.detect.look import Look
from telemetry.detect.sighting import RULE_OF_NODE

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
    look: Look | None
    kind: Kind
    onset_s: float
    strength: float
    late: tuple[str, ...] = ()
    ruled_out: tuple[Look, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        """The machine to blame, if one is."""
        return self.look.node if self.look else None

    @property
    def device(self) -> int | None:
        """The part of it."""
        return self.look.device if self.look else None

    @property
    def rule(self) -> str:
        """The rule that is broken where the headline rule is not.

        Sick parts break the same rule on one node and on all: two troubles of a whole run at
        once are two alerts.
        """
        return RULE_OF_NODE.get(self.cause) or RULE_OF_RUN.get(self.cause, "step_slow")
