"""What a preflight holds against a node, a device of it, or two nodes together."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What becomes of a node: take it, look at it first, or send it back."""

    PASS = "pass"  # noqa: S105
    HOLD = "hold"
    FAIL = "fail"


# What each kind of trouble means for the node it is on. Of a bad pair one may come.
KINDS: dict[str, Verdict] = {
    "device_missing": Verdict.FAIL,
    "efa_missing": Verdict.FAIL,
    "efa_down": Verdict.FAIL,
    "efa_latency": Verdict.FAIL,
    "efa_loss": Verdict.FAIL,
    "node_silent": Verdict.FAIL,
    "node_slow": Verdict.FAIL,
    "ecc_uncorrected": Verdict.FAIL,
    "hardware_errors": Verdict.FAIL,
    "rest_moving": Verdict.HOLD,
    "not_measured": Verdict.HOLD,
    "pair_slow": Verdict.HOLD,
    "pair_silent": Verdict.HOLD,
}
PAIRS = ("pair_slow", "pair_silent")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong; of a pair, ``peer`` is the other node.

    ``metric`` says which figure shows it, ``value`` and ``usual`` its value here and elsewhere;
    None where there is nothing to compare.
    """

    kind: str
    node: str
    peer: str | None = None
    device: int | None = None
    metric: str = ""
    value: float | None = None
    usual: float | None = None

    @property
    def verdict(self) -> Verdict:
        """What this alone means for the node."""
        return KINDS[self.kind]

    @property
    def is_of_pair(self) -> bool:
        """Whether two nodes have it together and neither alone."""
        return self.kind in PAIRS
