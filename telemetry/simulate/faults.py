"""Kinds of faults and of benign events: scope, and meaning of the magnitude."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Scope = Literal["node", "run", "any"]
DevicePart = Literal["core", "device", "efa"]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault; docs/faults.md tells its signature and source.

    ``device_part`` is what a fault's ``device`` counts, None where it has no device.
    ``magnitude_unit`` None: the kind has no strength, its magnitude is ignored.
    ``scope`` says whether a node, the whole run or either is hit.
    """

    name: str
    title: str
    device_part: DevicePart | None
    magnitude_unit: str | None
    default_magnitude: float
    low: float
    high: float
    help: str
    scope: Scope = "node"


@dataclass(frozen=True, slots=True)
class BenignKind:
    """An event that looks like a fault and is none.

    ``default_duration_s`` None: the event lasts as long as the model says, or forever.
    """

    name: str
    title: str
    scope: Scope
    default_duration_s: float | None
    magnitude_unit: str | None
    default_magnitude: float
    low: float
    high: float
    help: str


_SLOWER = "Times slower; below 1 it is read as the speed that is left."

_FAULTS = (
    FaultKind("efa_latency", "EFA link answers slowly", "efa", "factor", 6, 1, 100,
              "Times its usual latency.", "any"),
    FaultKind("efa_loss", "EFA link loses packets", "efa", "ratio", 0.05, 0, 0.5,
              "Share of packets that must be sent again.", "any"),
    FaultKind("efa_down", "EFA device is down", "efa", None, 1, 0, 1,
              "Has no strength: the device carries nothing."),
    FaultKind("slow_core", "Core computes slowly", "core", "factor", 1.5, 0.1, 20, _SLOWER),
    FaultKind("hbm_slow", "HBM has lost bandwidth", "device", "factor", 0.5, 0.05, 20,
              "Share of the bandwidth that is left; above 1 it is read as times slower.", "any"),
    FaultKind("throttle", "Accelerator is throttled", "device", "factor", 1.5, 0.1, 20,
              _SLOWER, "any"),
    FaultKind("input_stall", "Input arrives late", None, "s", 2, 0, 3600,
              "Seconds that every step waits for its data.", "any"),
    FaultKind("checkpoint_slow", "Checkpoints are slow to write", None, "factor", 5, 1, 1000,
              "Times the usual duration; one checkpoint falls due as the fault begins.", "any"),
    FaultKind("recompile", "Graphs are compiled again by accident", None, "s", 300, 1, 86_400,
              "Seconds that the run stands still.", "run"),
    FaultKind("ecc_uncorrected", "Memory errors that ECC cannot correct", "device", "per minute",
              6, 0.01, 10_000, "Errors per minute."),
    FaultKind("node_silent", "Telemetry stops, training goes on", None, None, 1, 0, 1,
              "Has no strength."),
    FaultKind("node_crash", "Node crashes", None, None, 1, 0, 1,
              "Has no strength: the run hangs, then restarts from its last checkpoint."),
    FaultKind("hang", "Worker does not join the collective", None, None, 1, 0, 1,
              "Has no strength: no step completes while it lasts."),
    FaultKind("seq_imbalance", "Sequences are of uneven length", None, "ratio", 0.8, 0, 20,
              "How much longer the unluckiest worker of a step computes.", "run"),
    FaultKind("stage_imbalance", "One pipeline stage is too long", None, "ratio", 0.5, 0, 20,
              "How much longer the nodes of the long stage compute.", "any"),
)  # fmt: skip
FAULTS: Mapping[str, FaultKind] = {kind.name: kind for kind in _FAULTS}

_BENIGN = (
    BenignKind("checkpoint", "Checkpoint", "run", None, None, 1, 0, 1,
               "One checkpoint, outside the run's own rhythm."),
    BenignKind("evaluation", "Evaluation", "run", 60, None, 1, 0, 1,
               "The model is evaluated between two steps."),
    BenignKind("planned_compile", "Planned compilation", "run", 300, None, 1, 0, 1,
               "The run announces that it compiles, and does."),
    BenignKind("batch_change", "Batch size changes", "run", None, "factor", 2, 0.05, 50,
               "Times the sequences per step."),
    BenignKind("scale_change", "Run is scaled", "run", None, "ratio", 0.5, 0.01, 1,
               "Share of the nodes that go on training."),
    BenignKind("node_joins", "Node joins", "node", None, None, 1, 0, 1,
               "The node is absent before; the run restarts with it."),
    BenignKind("node_leaves", "Node leaves", "node", None, None, 1, 0, 1,
               "The node is drained and idles; the run restarts without it."),
)  # fmt: skip
BENIGN: Mapping[str, BenignKind] = {kind.name: kind for kind in _BENIGN}


def slowdown(magnitude: float) -> float:
    """Convert a magnitude to the ratio of durations."""
    return magnitude if magnitude >= 1 else 1 / magnitude
