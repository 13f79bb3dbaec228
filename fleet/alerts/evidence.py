"""What an alert rests on: its evidence, read leniently."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from fleet.models import Alert
from telemetry.detect.findings import UNKNOWN

# The causes that templates/alerts/_causes.html has a sentence for, each with its name in a list.
CAUSES: Mapping[str, str] = {
    "efa_latency": "EFA latency",
    "efa_loss": "EFA retransmits",
    "efa_down": "EFA device down",
    "slow_core": "slow core",
    "hbm_slow": "slow HBM",
    "throttle": "throttling",
    "input_stall": "input stall",
    "checkpoint_slow": "slow checkpoint",
    "recompile": "recompile",
    "ecc_uncorrected": "uncorrected ECC",
    "node_silent": "silent node",
    "node_crash": "crashed node",
    "hang": "hang",
    "exec_errors": "failing executions",
    "node_idle": "idle node",
    "seq_imbalance": "sequence lengths",
    "stage_imbalance": "pipeline stage",
}
# Causes that lie in the run, not in one node.
RUN_CAUSES = frozenset({"checkpoint_slow", "recompile", "seq_imbalance", "stage_imbalance"})
LINKS = frozenset({"efa_latency", "efa_loss", "efa_down"})
# What an alert's device counts, by its cause.
PARTS: Mapping[str, str] = {
    "efa_latency": "EFA",
    "efa_loss": "EFA",
    "efa_down": "EFA",
    "slow_core": "core",
    "hbm_slow": "device",
    "throttle": "device",
    "ecc_uncorrected": "device",
}


def part_name(cause: str) -> str | None:
    """Return what an alert's device number counts; None if its cause has no device."""
    return PARTS.get(cause)


def cause_name(cause: str) -> str:
    """Return the name of a cause, as lists show it."""
    return CAUSES.get(cause, cause.replace("_", " "))


# Rules whose findings may say that the others wait for a worker.
WAITED = frozenset({"allreduce_share", "step_slow", "core_slow", "hbm_slow"})


def _number(value: object) -> float | None:
    """Return a finite number, or None for whatever else stands there."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Culprit:
    """The figure that gives the culprit away, beside that of its peers; None where unknown."""

    metric: str | None = None
    value: float | None = None
    peers_median: float | None = None
    n_peers: int | None = None
    unit: str | None = None
    limit: float | None = None


def _culprit(given: object) -> Culprit:
    """Read one figure and its peers."""
    if not isinstance(given, Mapping):
        return Culprit()
    n_peers = _number(given.get("n_peers"))
    return Culprit(
        metric=given.get("metric"),
        value=_number(given.get("value")),
        peers_median=_number(given.get("peers_median")),
        n_peers=None if n_peers is None else int(n_peers),
        unit=given.get("unit"),
        limit=_number(given.get("limit")),
    )


def blames_late_worker(alert: Alert) -> bool:
    """Whether the others wait for the alert's node: not where a link makes the transfer slow."""
    is_waited_for = Evidence(alert.evidence).is_waiting and alert.rule in WAITED
    return is_waited_for and alert.node is not None and alert.cause not in LINKS


@dataclass(frozen=True, slots=True)
class Evidence:
    """The figures of one alert; a rule gives those that it has."""

    figures: Mapping[str, Any]

    @property
    def clean(self) -> Mapping[str, Any]:
        """All figures but those that are NaN or infinite."""
        return {
            key: value
            for key, value in self.figures.items()
            if not isinstance(value, float) or isfinite(value)
        }

    def number(self, name: str) -> float | None:
        """Return a figure, or None where it is missing or no number."""
        return _number(self.figures.get(name))

    @property
    def is_waiting(self) -> bool:
        """Whether the time goes into waiting for a peer rather than into moving bytes."""
        if "kind" in self.figures:
            return bool(self.figures["kind"] == "waiting")
        return (self.number("wait_ratio") or 0.0) > (self.number("transfer_ratio") or 0.0)

    @property
    def is_layout(self) -> bool:
        """Whether nothing is broken: the run is laid out to communicate that much."""
        return str(self.figures.get("kind", "")).endswith("layout")

    @property
    def culprit(self) -> Culprit:
        """Return the culprit's own figure."""
        return _culprit(self.figures.get("culprit"))

    @property
    def wait_by_worker(self) -> Mapping[str, float]:
        """Return how long each worker waits per step, in seconds."""
        return self._numbers("wait_by_worker")

    @property
    def by_node(self) -> Mapping[str, float]:
        """Return how busy the host of each node is, 0 to 1, where that tells who is stuck."""
        return self._numbers("host_by_node")

    def _numbers(self, name: str) -> Mapping[str, float]:
        given = self.figures.get(name)
        pairs = given.items() if isinstance(given, Mapping) else ()
        return {str(k): n for k, v in pairs if (n := _number(v)) is not None}

    @property
    def ruled_out(self) -> Mapping[str, Culprit]:
        """Return the causes that were looked at and do not hold, each with its figure.

        That the cause is unknown is no cause, though older alerts list it.
        """
        given = self.figures.get("ruled_out")
        if isinstance(given, Mapping):
            found = {str(cause): _culprit(figure) for cause, figure in given.items()}
        else:
            found = {str(cause): Culprit() for cause in given} if isinstance(given, list) else {}
        return {cause: figure for cause, figure in found.items() if cause != UNKNOWN}

    def names(self, key: str) -> Sequence[str]:
        """Return a list of names; empty where there is none."""
        given = self.figures.get(key)
        return [str(name) for name in given] if isinstance(given, list | tuple) else []
