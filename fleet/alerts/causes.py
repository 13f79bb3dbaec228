"""How alerts name causes and parts; templates/alerts/_causes.html has their sentences."""

from collections.abc import Mapping
from dataclasses import dataclass

from telemetry.detect.causes import UNKNOWN, Part


@dataclass(frozen=True, slots=True)
class CauseText:
    """How alerts name a cause; templates/alerts/_causes.html has its sentence.

    ``several`` is what several nodes have, ``part`` what the device number of an alert counts,
    ``heat`` its name on the heat map, ``metric`` the chart that shows the cause. ``is_pause``: a
    run with it makes no step.
    """

    name: str
    several: str = ""
    part: str | None = None
    heat: str | None = None
    metric: str | None = None
    is_of_run: bool = False
    is_pause: bool = False


_CORES, _EFA_LATENCY = "core_utilization_ratio", "efa_latency_s"
CAUSES: Mapping[str, CauseText] = {
    "efa_latency": CauseText("EFA latency", "high EFA latency", "EFA device", "EFA", _EFA_LATENCY),
    "efa_loss": CauseText(
        "EFA retransmits", "EFA packet loss", "EFA device", "EFA", "efa_retransmits_per_s"
    ),
    "efa_down": CauseText(
        "EFA device down", "EFA devices down", "EFA device", "EFA", _EFA_LATENCY
    ),
    "slow_core": CauseText("slow core", "slow cores", "core", "core", _CORES),
    "hbm_slow": CauseText("slow HBM", "", "device", "HBM", "hbm_bandwidth_bytes_per_s"),
    "throttle": CauseText("throttling", "throttled devices", "device", "device", _CORES),
    "input_stall": CauseText("input stall"),
    "checkpoint_slow": CauseText("slow checkpoint", is_of_run=True, is_pause=True),
    "recompile": CauseText("recompile", is_of_run=True, is_pause=True),
    "ecc_uncorrected": CauseText("uncorrected ECC", "", "device", "ECC", "mem_ecc_uncorrected"),
    "device_unhealthy": CauseText("unhealthy device", "unhealthy devices", "device", "device"),
    "device_missing": CauseText("missing device", "missing devices", "device", "device"),
    "node_silent": CauseText("silent node", "no longer report", metric=_CORES),
    "node_crash": CauseText("crashed node", "crashed", metric=_CORES, is_pause=True),
    "hang": CauseText("hang", is_pause=True),
    "workers_ended": CauseText("all workers stopped", is_of_run=True),
    "reports_refused": CauseText("refused reports"),
    "workers_missing": CauseText("missing workers", is_of_run=True),
    "exec_errors": CauseText("failing executions"),
    "loss_not_finite": CauseText("loss not finite", is_of_run=True),
    "loss_spike": CauseText("loss spike", is_of_run=True),
    "node_idle": CauseText("idle node"),
    "seq_imbalance": CauseText("sequence lengths", is_of_run=True),
    "stage_imbalance": CauseText("pipeline stage", is_of_run=True),
    "slow_compute": CauseText("slow compute", "slow compute", "device"),
    "network": CauseText("slow network", "slow network", "EFA device", "EFA", _EFA_LATENCY),
}
PAUSES = frozenset(name for name, text in CAUSES.items() if text.is_pause)
LINKS = frozenset(name for name, text in CAUSES.items() if text.part == "EFA device")
PART_NAMES: Mapping[Part, str] = {"core": "core", "device": "device", "efa_device": "EFA device"}


def cause_text(cause: str) -> CauseText:
    return CAUSES.get(cause) or CauseText(cause.replace("_", " "))


def cause_name(cause: str) -> str:
    return cause_text(cause).name


def part_name(cause: str) -> str | None:
    """Name what an alert's device number counts; None if its cause has no device."""
    return cause_text(cause).part


def device_number(part: str | None, number: int | None, *, cores_per_device: int) -> int | None:
    """Return the accelerator of a part; None for EFA devices, and without a number.

    >>> device_number("core", 7, cores_per_device=2)
    3
    >>> device_number("efa_device", 7, cores_per_device=2)
    """
    if number is None or part == "efa_device":
        return None
    return number // cores_per_device if part == "core" else number


def part_text(part: Part | None, number: int | None) -> str:
    """Name a part by its kind and number; empty without a number."""
    return "" if number is None else f"{PART_NAMES[part or 'device']} {number}"


def shared_cause(cause: str) -> str:
    """Name what several nodes or runs have."""
    if cause == UNKNOWN:
        return "steps take longer"
    return cause_text(cause).several or cause_name(cause)
