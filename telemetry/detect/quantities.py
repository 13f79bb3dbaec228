"""The quantities that detection compares, and what each one can show: add a row to add one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from telemetry.blocks import METRICS

# Where the time is lost: waiting for peers, transfer, compute of all workers, input, checkpoint;
# or the step as a whole, where the exchange is not timed.
Kind = Literal["waiting", "transferring", "computing", "input", "checkpoint", "step"]

# Of a quantity of steps: how a problem that it opens shows.
KINDS_OF_STEPS: Mapping[str, Kind] = {
    "own": "waiting",
    "own_compute": "waiting",
    "own_input": "input",
    "stage": "waiting",
    "compute": "computing",
    "transfer": "transferring",
    "input": "input",
    "wait": "waiting",
    "uneven": "waiting",
    "step": "step",
    "share of wait": "waiting",
    "share of transfer": "transferring",
}
# Sums of others. Quantities of steps that a cause changes; of them those of a worker.
SUMS = frozenset({"step", "own"})
WORKER = frozenset({"own_compute", "own_input"})
OF_STEPS = frozenset({"compute", "transfer", "input", "wait", "other", "uneven", "stage"}) | WORKER
# What a node's problem does to the other nodes.
OF_OTHERS = frozenset({"compute", "wait", "input"})

# What `unknown` expects: changes as large as the step, or as the value, in either direction.
WIDE = 0.5
# A job of a host by cron lasts (assumed: docs/physics.md), and one long step (the median of 36
# recorded configurations).
CRON_S, STEP_S = 20.0, 12.5
# Healthy fabrics lose up to 0.3 % of packets for half a minute (assumed: docs/physics.md).
BURST_S = 17.5


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity of hardware: what is compared, which direction is worse, and with what.

    Where ``counted_by`` is 0, nothing was measured. A count has a total that it is a share ``of``.
    Parts are compared with ``peers`` of their node or of the run, which are alike or differ for
    good; harmless excursions are expected to last ``lasts_s``. What all nodes show alike is
    compared with what they showed before, as ``of_all``; without harm it may change by ``common``.

    With a ``kind`` its shift is an alarm: so a problem of it shows. The signatures of causes name
    it as ``evidence``, pages call it ``symptom``. A node is unusual in it for half a minute with
    this ``chance``, and by so ``far``: it proves no more.
    """

    name: str
    metric: str
    worse: Literal[1, -1]
    peers: Literal["node", "run"]
    is_alike: bool = True
    by_device: bool = False
    lasts_s: float = 0.0
    counted_by: str = ""
    of: str = ""
    of_all: str = ""
    common: float = 0.0
    kind: Kind | None = None
    as_evidence: str = ""
    symptom: str = ""
    # Of what is not assumed to happen no harmless event is known.
    chance: float = 1e-4
    far: float = WIDE

    @property
    def evidence(self) -> str:
        return self.as_evidence or self.name

    @property
    def part(self) -> str:
        return METRICS[self.metric].part

    @property
    def unit(self) -> str:
        return next((unit for unit in UNITS if self.metric.endswith(f"_{unit}")), "count")


# What names of metrics end with; the longer ones first.
UNITS = ("flops_per_s", "bytes_per_s", "per_s", "bytes", "ratio", "s")
# Chances of jobs of hosts, of bursts of loss and of probes that meet traffic are assumed
# (docs/physics.md). Racks, stages and hosts differ for good. Longer exchanges are more traffic,
# which all probes meet. Where a cause changes several, the first one is shown.
QUANTITIES = (
    Quantity(
        "core", "core_utilization_ratio", 1, "node",
        kind="waiting", as_evidence="core_own", symptom="core_busier",
    ),
    Quantity(
        "memory", "hbm_bandwidth_bytes_per_s", -1, "node", kind="waiting", symptom="hbm_bandwidth"
    ),
    Quantity(
        "device", "core_utilization_ratio", 1, "node", by_device=True,
        kind="waiting", symptom="device_busier",
    ),
    Quantity("power", "device_power_ratio", 1, "node"),
    Quantity(
        "latency", "efa_latency_s", 1, "run", is_alike=False, of_all="all latencies", common=0.05,
        kind="transferring", symptom="efa_latency", chance=0.02, far=0.25,
    ),
    Quantity(
        "retransmits", "efa_retransmits_per_s", 1, "run", is_alike=False, lasts_s=BURST_S,
        of="efa_tx_packets_per_s", of_all="retransmits",
        kind="transferring", symptom="efa_retransmits", chance=0.0033,
    ),
    Quantity(
        "bytes", "efa_tx_bytes_per_s", -1, "node", kind="transferring", symptom="efa_device_bytes"
    ),
    Quantity(
        "host", "vcpu_usage_ratio", 1, "run", is_alike=False, lasts_s=CRON_S, of_all="all hosts",
        symptom="host_busier", chance=0.02,
    ),
    Quantity(
        "execution", "execution_latency_p50_s", 1, "run", is_alike=False, lasts_s=STEP_S,
        counted_by="executions_completed_per_s",
    ),
)  # fmt: skip

BY_NAME: Mapping[str, Quantity] = {each.name: each for each in QUANTITIES}
BY_EVIDENCE: Mapping[str, Quantity] = {each.evidence: each for each in QUANTITIES}
LEVELS = tuple(each for each in QUANTITIES if not each.of)
METRICS_READ = tuple(
    dict.fromkeys(
        name for each in QUANTITIES for name in (each.metric, each.counted_by, each.of) if name
    )
)
ALARMS = frozenset(each.name for each in QUANTITIES if each.kind)
KINDS: Mapping[str, Kind] = {
    **KINDS_OF_STEPS,
    **{each.name: each.kind for each in QUANTITIES if each.kind},
}
# Of one value per node; of cores; of parts of a device, which has several; of any part.
OF_NODES = frozenset(each.name for each in QUANTITIES if each.part == "node")
OF_CORES = frozenset(
    name
    for each in QUANTITIES
    if each.part == "core" and not each.by_device
    for name in (each.name, each.evidence)
)
OF_DEVICES = OF_CORES | {each.name for each in QUANTITIES if each.part in ("core", "device")}
PARTS = OF_DEVICES | {each.name for each in QUANTITIES if each.part == "efa"}
# Something is unusual somewhere all the time: a place is shown by what a row says of it.
OF_HARDWARE = frozenset(BY_EVIDENCE)
OF_PLACE = WORKER | OF_HARDWARE
# Bad where it falls; the other is bad where it rises.
FALLS = frozenset(name for name, each in BY_EVIDENCE.items() if each.worse == -1)
# Which part is at fault, and its metric on its page, the most specific first.
SHOW_PART: Mapping[str, Quantity] = {name: q for name, q in BY_EVIDENCE.items() if q.kind}
# What a problem of the whole run shows on all nodes alike.
EVERYWHERE = {each.evidence: each.of_all for each in QUANTITIES if each.of_all}
# What pages call a quantity.
SYMPTOMS: Mapping[str, str] = {
    "step": "step_s",
    "compute": "compute_s",
    "wait": "wait_s",
    "transfer": "transfer_s",
    "input": "input_s",
    "jitter": "step_jitter",
    "stage": "stage_longer",
    **{name: each.symptom for name, each in BY_EVIDENCE.items() if each.symptom},
}
