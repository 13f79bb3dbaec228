"""Rule tests for alerts about devices and cores, with healthy peers."""

from telemetry.detect import RULES
from tests.fleet.metrics.rule_cases import ABOVE, CORE, FOUR, LLAMA, N0, RuleCase, nodes, parts

HBM = "trnwatch_device_hbm_bandwidth_bytes_per_second"
AGAIN, PACKETS = "trnwatch_efa_retransmits_per_second", "trnwatch_efa_tx_packets_per_second"
SENT, LATENCY = "trnwatch_efa_tx_bytes_per_second", "trnwatch_efa_latency_seconds"
LIMIT = 1 + RULES["core_slow"].limits["blatant_ratio"]
EFA = RULES["efa_degraded"].limits
USUAL = {AGAIN: 1.0, PACKETS: 1e5, SENT: 1e9, LATENCY: 2e-5}
# The limit of each kind, and on which side of it a device is sick.
KINDS = {
    "loss": (AGAIN, 1e5 * EFA["loss_ratio"], 1),
    "down": (SENT, 1e9 * EFA["dead_ratio"], -1),
    "latency": (LATENCY, 2e-5 * EFA["blatant_latency_ratio"], 1),
}


def efa_degraded(kind: str) -> RuleCase:
    """It fires for the one device that loses, carries nothing, or answers late."""
    metric, at, side = KINDS[kind]
    within, beyond = at * (1 - 0.02 * side), at * (1 + 0.02 * side)
    usual = USUAL[metric]
    device = f'{metric}{{node="n0", device="1"}}'
    series = {
        name: course
        for each, value in USUAL.items()
        for name, course in parts(each, "device", value, 4, *FOUR).items()
    }
    series |= {device: ((usual, 5), (within, 10), (beyond, 10), (usual, 15))}
    labels = N0 | LLAMA | {"device": "1", "kind": kind}
    return RuleCase("efa_degraded", metric, series | nodes(*FOUR), (4, 14, 35), (19, 24), labels)


def apart(alert: str, metric: str, label: str, usual: float, side: int) -> RuleCase:
    """It fires for the one part that stands away from the same part of other nodes."""
    limit = LIMIT**side
    slightly, clearly = usual * limit / ABOVE**side, usual * limit * ABOVE**side
    sick = {f'{metric}{{node="n0", {label}="1"}}': ((slightly, 10), (clearly, 10), (usual, 10))}
    series = parts(metric, label, usual, 3, *FOUR) | sick | nodes(*FOUR)
    return RuleCase(alert, metric, series, (9, 29), (14, 19), N0 | LLAMA | {label: "1"})


def a_role(alert: str, metric: str, label: str, usual: float, side: int) -> RuleCase:
    """It does not fire where the same part of every node is like that: it is its role."""
    role = usual * (LIMIT * ABOVE) ** side
    others = {f'{metric}{{node="{n}", {label}="1"}}': ((role, 30),) for n in FOUR}
    series = parts(metric, label, usual, 3, *FOUR) | others | nodes(*FOUR)
    return RuleCase(alert, metric, series, (9, 19, 29), ())


CASES = [
    *map(efa_degraded, KINDS),
    apart("core_slow", CORE, "core", 0.5, 1),
    apart("hbm_slow", HBM, "device", 1e12, -1),
    a_role("core_slow", CORE, "core", 0.5, 1),
    a_role("hbm_slow", HBM, "device", 1e12, -1),
]
