"""What the causes of alerts are called: in a sentence, and in a list."""

from collections.abc import Mapping

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
