"""Kinds of faults and of benign events: scope, and meaning of the magnitude."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from telemetry.units import DAY_S

Scope = Literal["node", "run", "any"]
DevicePart = Literal["core", "device", "efa"]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault; docs/faults.md has its signature and source.

    ``device_part`` is the kind of part that ``device`` numbers; None without a device.
    ``magnitude_unit`` None: the magnitude is ignored.
    ``scope``: the fault affects a node, the whole run, or either.
    ``slows_compute``: the hardware computes slower; the magnitude is one of `slowdown`.
    ``flickers``: a step meets a share of it where it comes and goes within few steps.
    ``may_grow``: it can have a ramp; others happen at once, or count up.
    ``may_repeat``: it can come and go.
    ``of_many``: it slows several machines equally, so none of them need be named.
    ``stops_steps``: no step ends while it lasts.
    ``shown_from``: hardware shows it from this magnitude on, whatever it costs (docs/drills.md
    says why); None: it does not.
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
    slows_compute: bool = False
    flickers: bool = False
    may_grow: bool = True
    may_repeat: bool = True
    of_many: bool = False
    stops_steps: bool = False
    shown_from: float | None = None


@dataclass(frozen=True, slots=True)
class BenignKind:
    """A normal event that looks like a fault.

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


_SLOWER = "Slowdown factor. Values below 1 are the remaining speed."

_FAULTS = (
    FaultKind("efa_latency", "High EFA latency", "efa", "factor", 6, 1, 100,
              "Factor on the usual latency.", "any", flickers=True, shown_from=1.5),
    FaultKind("efa_loss", "EFA packet loss", "efa", "ratio", 0.05, 0, 0.5,
              "Share of packets that are retransmitted.", "any", flickers=True, shown_from=0.002),
    FaultKind("efa_down", "EFA device down", "efa", None, 1, 0, 1,
              "No magnitude. The device carries no traffic.", shown_from=0),
    FaultKind("slow_core", "Slow core", "core", "factor", 1.5, 0.1, 20,
              _SLOWER, slows_compute=True, flickers=True),
    FaultKind("hbm_slow", "Low HBM bandwidth", "device", "factor", 0.5, 0.05, 20,
              "Remaining share of the bandwidth. Values above 1 are a slowdown factor.", "any",
              slows_compute=True, flickers=True, shown_from=1.25),
    FaultKind("throttle", "Throttled accelerator", "device", "factor", 1.5, 0.1, 20,
              _SLOWER, "any", slows_compute=True, flickers=True),
    FaultKind("input_stall", "Slow input", None, "s", 2, 0, 3600,
              "Seconds that each step waits for its data.", "any", flickers=True),
    FaultKind("checkpoint_slow", "Slow checkpoints", None, "factor", 5, 1, 1000,
              "Factor on the usual duration. A checkpoint starts with the fault.", "any",
              may_grow=False, may_repeat=False),
    FaultKind("recompile", "Unplanned recompilation", None, "s", 300, 1, DAY_S,
              "Seconds without a step.", "run", may_grow=False),
    FaultKind("ecc_uncorrected", "Uncorrected ECC errors", "device", "per minute",
              6, 0.01, 10_000, "Errors per minute.", may_grow=False, shown_from=0),
    FaultKind("node_silent", "Telemetry stops", None, None, 1, 0, 1,
              "No magnitude. Training continues.", shown_from=0),
    FaultKind("node_crash", "Node crash", None, None, 1, 0, 1,
              "No magnitude. The run hangs, then restarts from its last checkpoint.",
              may_repeat=False, stops_steps=True, shown_from=0),
    FaultKind("hang", "Hang in a collective", None, None, 1, 0, 1,
              "No magnitude. No step completes while it lasts.", stops_steps=True),
    FaultKind("seq_imbalance", "Uneven sequence lengths", None, "ratio", 0.8, 0, 20,
              "Extra compute time of the slowest worker of a step.", "run",
              flickers=True, of_many=True),
    FaultKind("stage_imbalance", "Long pipeline stage", None, "ratio", 0.5, 0, 20,
              "Extra compute time of the nodes of the long stage.", "any", of_many=True),
)  # fmt: skip
FAULTS: Mapping[str, FaultKind] = {kind.name: kind for kind in _FAULTS}
STOPS = frozenset(kind.name for kind in _FAULTS if kind.stops_steps)
SLOW_COMPUTE = frozenset(kind.name for kind in _FAULTS if kind.slows_compute)
# Those of hardware slow the step under way; what a step consists of changes with the next one.
HARDWARE_KINDS = frozenset(
    kind.name for kind in _FAULTS if kind.slows_compute or kind.device_part == "efa"
)

_BENIGN = (
    BenignKind("checkpoint", "Checkpoint", "run", None, None, 1, 0, 1,
               "One checkpoint outside the run's schedule."),
    BenignKind("evaluation", "Evaluation", "run", 60, None, 1, 0, 1,
               "The model is evaluated between two steps."),
    BenignKind("planned_compile", "Planned compilation", "run", 300, None, 1, 0, 1,
               "The run announces a compilation and compiles."),
    BenignKind("batch_change", "Batch size change", "run", None, "factor", 2, 0.05, 50,
               "Factor on the sequences per step."),
    BenignKind("scale_change", "Scale change", "run", None, "ratio", 0.5, 0.01, 1,
               "Share of the nodes that continue training."),
    BenignKind("node_joins", "Node joins", "node", None, None, 1, 0, 1,
               "The node is absent at first. The run restarts with it."),
    BenignKind("node_leaves", "Node leaves", "node", None, None, 1, 0, 1,
               "The node is drained and idle. The run restarts without it."),
)  # fmt: skip
BENIGN: Mapping[str, BenignKind] = {kind.name: kind for kind in _BENIGN}


def slowdown(magnitude: float) -> float:
    """Convert a magnitude to the ratio of durations."""
    return magnitude if magnitude >= 1 else 1 / magnitude
