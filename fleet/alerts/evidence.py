"""What an alert rests on: its evidence, read leniently."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from fleet.models import Alert
from telemetry.detect.findings import UNKNOWN

# What each cause is called, at the culprit: {device} is its number, {node} its linked name.
CAUSES: Mapping[str, str] = {
    "efa_latency": "EFA latency on device {device} of {node}",
    "efa_loss": "EFA retransmits on device {device} of {node}",
    "efa_down": "EFA device {device} of {node}, which is down",
    "slow_core": "core {device} of {node}, which computes more slowly than its peers",
    "hbm_slow": "slow HBM on device {device} of {node}",
    "throttle": "device {device} of {node}, which is throttled",
    "input_stall": "input that keeps {node} waiting for data",
    "checkpoint_slow": "slow checkpoints",
    "recompile": "a recompile",
    "ecc_uncorrected": "uncorrected ECC errors on device {device} of {node}",
    "node_silent": "{node}, which stopped reporting",
    "node_crash": "{node}, which has crashed",
    "hang": "{node}, which does not join the collective",
    "exec_errors": "executions that fail on {node}",
    "node_idle": "{node}, which idles",
    "seq_imbalance": "uneven sequence lengths: each worker is late in turn",
    "stage_imbalance": "a pipeline stage that takes longer than the others",
}
# A throttled accelerator that is a single core.
SINGLE_CORE = (
    "device {device} of {node}, which is throttled or has a slow core: with one core per "
    "accelerator they look the same"
)
SHORT_CAUSES: Mapping[str, str] = {
    "efa_latency": "EFA latency",
    "efa_loss": "EFA retransmits",
    "efa_down": "EFA device down",
    "slow_core": "slow core",
    "hbm_slow": "slow HBM",
    "throttle": "throttling",
    "input_stall": "input stall",
    "checkpoint_slow": "slow checkpoint",
    "ecc_uncorrected": "uncorrected ECC",
    "node_silent": "silent node",
    "node_crash": "crashed node",
    "exec_errors": "failing executions",
    "node_idle": "idle node",
    "seq_imbalance": "sequence lengths",
    "stage_imbalance": "pipeline stage",
}


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
    """Return what an alert's device counts; None where its cause has no device."""
    return PARTS.get(cause)


def cause_name(cause: str) -> str:
    """Return what a cause is called in a list."""
    return SHORT_CAUSES.get(cause, cause.replace("_", " "))


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
