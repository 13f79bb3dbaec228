"""The exporters whose series are read: names, units, bounds, blank values, labels of identity."""

import ipaddress
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

MIB = 1024.0**2

# Labels by which two Prometheus, or a pair of agents, tell their copies of a series apart: those
# of Prometheus Operator, Mimir and Cortex, Thanos' receivers and rulers, and Grafana's and
# VictoriaMetrics' guides. `cluster` is no such label.
REPLICA_LABELS = (
    "prometheus_replica",
    "__replica__",
    "replica",
    "receive_replica",
    "rule_replica",
    "thanos_replica",
    "prom_replica",
    "ha_replica",
    "replica_name",
)
# Series whose labels differ in these alone describe the same part of the same node.
IDENTITY_LABELS = {
    "instance_id": "instance_id",
    "instance_name": "instance_name",
    "instance_type": "instance_type",
    "availability_zone": "zone",
    "ultraserver_id": "ultraserver_id",
}
# Labels that name a node: the user's own, Kubernetes' node, the host. The address that was scraped
# may be that of the exporter's pod, which is another one after each restart.
KUBERNETES_LABELS = ("kubernetes_node", "k8s_node_name", "node_name", "NodeName")
HOST_LABELS = ("host_name", "hostname", "nodename", "Hostname")
ADDRESS = "instance"
NODE_LABELS = ("node", *KUBERNETES_LABELS, *HOST_LABELS, ADDRESS)
# What a container calls itself unless it is configured otherwise.
CONTAINER = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}")
# Labels that collectors give other names.
ALIASES = {
    # The CloudWatch agent's pipeline of OpenTelemetry.
    "aws_neuron_core": "neuroncore",
    "aws_neuron_device": "neuron_device_index",
    # The public awsneuronreceiver of OpenTelemetry.
    "aws_neuron_neuroncore_id": "neuroncore",
    "aws_neuron_device_id": "neuron_device_index",
    "hw_id": "neuron_device_index",
    "aws_neuron_execution_status": "status_type",
    "aws_neuron_latency_quantile": "percentile",
    # Container Insights.
    "NeuronCore": "neuroncore",
    "NeuronDevice": "neuron_device_index",
    "InstanceId": "instance_id",
    "InstanceType": "instance_type",
    "host_id": "instance_id",
    "host_type": "instance_type",
}
# Container Insights numbers parts with their kind: core0, device3. Others name a device by its
# file: /dev/neuron3, nvidia3. Ids and PCI addresses tell no number.
NUMBERED = re.compile(r"(?:(?:/dev/)?[A-Za-z]+[-_:]?)?([0-9]+)")
# Labels that say what a value is: Prometheus gives them by its feature type-and-unit-labels.
UNIT, TYPE = "__unit__", "__type__"
# The process that a series is of; its series may stay after it has ended.
PROCESS = "runtime_tag"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a value can be; others are unknown, never cut to the nearest possible one."""

    low: float = 0.0
    high: float = math.inf

    def has(self, value: float) -> bool:
        return self.low <= value <= self.high


# Shares are rounded by those who measure them.
SHARE = Bounds(high=1.01)
# More than any machine has: of a device 1 TB, of a host 64 TiB.
DEVICE_BYTES, HOST_BYTES = Bounds(high=1e12), Bounds(high=2.0**46)
# An EFA device sends 400 Gbit/s at most, in packets of at least 64 bytes; a core completes an
# execution in a microsecond at best.
EFA_BYTES_PER_S, EVENTS_PER_S = Bounds(high=1e12), Bounds(high=1e9)
LATENCY_S = Bounds(high=1e6)
# Counters of drivers have 32 bits at least.
EVENTS = Bounds(high=2.0**40)


class Row(NamedTuple):
    """What one series means.

    ``metric`` is ours, or one that ``_derive`` reads. ``part`` is the label with the number (or
    name) of the part. A counter is turned into a rate. ``labels`` must have one of these values.
    Values of one part that differ in other labels are combined by ``METRICS_BY_MAX``, or added.
    """

    metric: str
    part: str = ""
    is_counter: bool = False
    scale: float = 1.0
    labels: tuple[tuple[str, frozenset[str]], ...] = ()


def _only(label: str, *values: str) -> tuple[tuple[str, frozenset[str]], ...]:
    return ((label, frozenset(values)),)


CORE, DEVICE = "neuroncore", "neuron_device_index"
_MEMORY = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
_FAILED = ("completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input")
ECC = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
_EFA = {
    "tx_bytes": "efa_tx_bytes_per_s",
    "rx_bytes": "efa_rx_bytes_per_s",
    "tx_pkts": "efa_tx_packets_per_s",
    "retrans_pkts": "efa_retransmits_per_s",
    "rx_drops": "efa_drops_per_s",
    "impaired_remote_conn_events": "efa_impaired_per_s",
    "unresponsive_remote_events": "efa_unresponsive_per_s",
}


def _observed(
    scope: str, rows: Mapping[str, Row], strategies: Sequence[str] = ("", "_sum")
) -> dict[str, tuple[Row]]:
    """Name series of Neuron Observer by its rule: neuron_{scope}_{name}[_{strategy}].

    OpenTelemetry appends ``_total`` to the names of counters.
    """
    return {
        f"neuron_{scope}_{name}{strategy}{suffix}": (row,)
        for name, row in rows.items()
        for strategy in strategies
        for suffix in ("", "_total")
    }


_COMPLETED, _FAILURES, _ERRORS = (
    Row(metric, is_counter=True)
    for metric in (
        "executions_completed_per_s",
        "executions_failed_per_s",
        "execution_errors_per_s",
    )
)
# Names of 0.2, by AWS's reference and a public fork of AWS's chart for CloudWatch
# (spanaik/helm-charts). Health is only in its API.
_OBSERVER: Mapping[str, Sequence[Row]] = {
    # Neither says the unit without a suffix.
    **dict.fromkeys(
        ("neuron_core_utilization", "neuron_core_utilization_avg"),
        (Row("core_utilization_of_any_unit", CORE),),
    ),
    "neuron_core_utilization_avg_ratio": (Row("core_utilization_ratio", CORE),),
    "neuron_core_utilization_avg_percent": (Row("core_utilization_ratio", CORE, scale=0.01),),
    **_observed(
        "core",
        {
            "infer_completed": _COMPLETED,
            **dict.fromkeys(
                (f"infer_{ending}" for ending in (*_FAILED, "failed_to_queue")), _FAILURES
            ),
            # Executions that end with a fault of the hardware.
            **dict.fromkeys(
                (
                    f"hw_err_{fault}"
                    for fault in (
                        "collectives",
                        "hbm_ue",
                        "nc_ue",
                        "dma_abort",
                        "repairable_hbm_ue",
                    )
                ),
                _FAILURES,
            ),
            # The classes that neuron-monitor counts.
            **dict.fromkeys(
                (
                    f"err_{kind}"
                    for kind in ("generic", "numerical", "transient", "model", "rt", "hw")
                ),
                _ERRORS,
            ),
        },
    ),
    **_observed("device", {kind: Row(kind, DEVICE) for kind in ECC}),
    **_observed(
        "efa",
        {name: Row(metric, "efa_device", is_counter=True) for name, metric in _EFA.items()},
        ("",),
    ),
    "neuron_system_memory_used_bytes": (Row("host_memory_used_bytes"),),
    "neuron_system_neuron_device_count": (Row("device_count"),),
    "neuron_system_logical_neuroncore_count": (Row("core_count"),),
    "neuron_vcpu_vcpu_idle_percent_avg": (Row("idle_percent"),),
}
INSPECTOR = "nccl inspector"
# Communicators within a node have the bandwidth of NVLink.
_ACROSS_NODES = _only("n_nodes", *map(str, range(2, 10_000)))
# By exporter, the series that are read.
EXPORTERS: Mapping[str, Mapping[str, Sequence[Row]]] = {
    "neuron-monitor": {
        "neuroncore_utilization_ratio": (Row("core_utilization_ratio", CORE),),
        **{
            f"neuroncore_memory_usage_{kind}": (Row("core_memory_bytes", CORE),)
            for kind in _MEMORY
        },
        "execution_errors_total": (Row("execution_errors_per_s", is_counter=True),),
        "execution_status_total": (
            Row(
                "executions_completed_per_s",
                is_counter=True,
                labels=_only("status_type", "completed"),
            ),
            Row(
                "executions_failed_per_s",
                is_counter=True,
                labels=_only("status_type", *_FAILED, "failed_to_queue"),
            ),
        ),
        "execution_latency_seconds": (
            Row("execution_latency_p50_s", labels=_only("percentile", "p50")),
            Row("execution_latency_p99_s", labels=_only("percentile", "p99")),
            Row("execution_latency_p100_s", labels=_only("percentile", "p100")),
        ),
        "hardware_ecc_events_total": tuple(
            Row(kind, DEVICE, labels=_only("event_type", kind)) for kind in ECC
        ),
        "system_memory_used_bytes": (Row("host_memory_used_bytes"),),
        "system_vcpu_usage_ratio": (Row("vcpu_usage_ratio"),),
        "neuron_hardware_info": (Row("hardware_info"),),
    },
    # What the public awsneuronreceiver of OpenTelemetry makes of neuron-monitor's JSON
    # (observiq/bindplane-otel-contrib), and what exporters of Prometheus append to its names.
    "awsneuronreceiver": {
        f"aws_neuron_{name}{suffix}": rows
        for name, suffixes, rows in (
            ("neuroncore_utilization", ("", "_ratio"), (Row("core_utilization_ratio", CORE),)),
            ("neuroncore_memory_usage", ("", "_bytes"), (Row("core_memory_bytes", CORE),)),
            (
                "execution_count",
                ("", "_total"),
                (
                    _COMPLETED._replace(labels=_only("status_type", "completed")),
                    _FAILURES._replace(labels=_only("status_type", *_FAILED, "failed_to_queue")),
                ),
            ),
            ("execution_errors", ("", "_total"), (_ERRORS,)),
            (
                "execution_latency",
                ("", "_seconds"),
                tuple(
                    Row(
                        f"execution_latency_{percentile}_s",
                        labels=(
                            *_only("percentile", percentile),
                            *_only("aws_neuron_latency_type", "total"),
                        ),
                    )
                    for percentile in ("p50", "p99", "p100")
                ),
            ),
            (
                "errors",
                ("", "_total"),
                tuple(
                    Row(
                        f"{short}_ecc_{kind}",
                        DEVICE,
                        labels=(
                            *_only("error_type", kind),
                            *_only("aws_neuron_memory_type", memory),
                        ),
                    )
                    for short, memory in (("mem", "dram"), ("sram", "sram"))
                    for kind in ("corrected", "uncorrected")
                ),
            ),
        )
        for suffix in suffixes
    },
    # The CloudWatch agent's Container Insights: a copy for each node, and shares in percent.
    "container insights": {
        "node_neuroncore_utilization": (Row("core_utilization_ratio", CORE, scale=0.01),),
        **{
            f"node_neuroncore_memory_usage_{kind}": (Row("core_memory_bytes", CORE),)
            for kind in _MEMORY
        },
    },
    "neuron observer": _OBSERVER,
    "efa": {
        f"node_amazonefa_{name}": (Row(metric, "device", is_counter=True),)
        for name, metric in _EFA.items()
    },
    "node_exporter": {
        "node_cpu_seconds_total": (
            Row("idle_cpus", "cpu", is_counter=True, labels=_only("mode", "idle")),
        ),
        "node_memory_MemTotal_bytes": (Row("memory_total_bytes"),),
        "node_memory_MemAvailable_bytes": (Row("memory_available_bytes"),),
    },
    "dcgm": {
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (Row("core_utilization_ratio", "gpu"),),
        "DCGM_FI_DEV_GPU_UTIL": (Row("gpu_utilization_ratio", "gpu", scale=0.01),),
        "DCGM_FI_DEV_FB_USED": (Row("device_memory_used_bytes", "gpu", scale=MIB),),
        "DCGM_FI_PROF_DRAM_ACTIVE": (Row("hbm_active_ratio", "gpu"),),
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": (Row("mem_ecc_corrected", "gpu"),),
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (Row("mem_ecc_uncorrected", "gpu"),),
        "DCGM_FI_DEV_XID_ERRORS": (Row("last_xid", "gpu"),),
    },
    # NCCL Inspector's textfile, and its OTLP: NVIDIA/nccl, plugins/profiler/inspector.
    INSPECTOR: {
        "nccl_bus_bandwidth_gbs": (
            Row("collective_bandwidth_bytes_per_s", scale=1e9, labels=_ACROSS_NODES),
        ),
        "nccl_collective_exec_time_microseconds": (
            Row("collective_time_s", scale=1e-6, labels=_ACROSS_NODES),
        ),
    },
    # What a health check of the user's says, by node_exporter's textfile collector.
    "health check": {"accelerator_unhealthy": (Row("device_unhealthy", "device"),)},
}
# What a sender should keep by ``write_relabel_configs``: it matches each name of the table.
KEEP = (
    "neuroncore_.+|neuron_hardware_info|aws_neuron_.+|node_neuroncore_.+|execution_.+|hardware_ecc_events_total|"
    "system_(memory_used_bytes|vcpu_usage_ratio)|"
    "neuron_(core_(utilization|infer|(hw_)?err).*|device_(mem|sram)_ecc_.+|(efa|system|vcpu)_.+)|"
    "node_amazonefa_.+|node_cpu_seconds_total|node_memory_Mem(Total|Available)_bytes|DCGM_FI_.+|"
    "nccl_(bus_bandwidth_gbs|collective_exec_time_microseconds)|accelerator_unhealthy"
)
ROWS = {name: (exporter, rows) for exporter, of in EXPORTERS.items() for name, rows in of.items()}
# XIDs that applications cause: the GPU is healthy. NVIDIA's device plugin for Kubernetes ignores
# the same ones (k8s-device-plugin, internal/rm/health.go).
XIDS_OF_APPLICATIONS = frozenset({13, 31, 43, 45, 68, 109})
# Of processes on one core the busiest counts, of several checks the worst; latencies of processes
# do not add up, nor do collectives of several kinds and communicators.
METRICS_BY_MAX = {
    "collective_bandwidth_bytes_per_s",
    "collective_time_s",
    "core_utilization_of_any_unit",
    "device_unhealthy",
    "core_utilization_ratio",
    "gpu_utilization_ratio",
    "execution_latency_p50_s",
    "execution_latency_p99_s",
    "execution_latency_p100_s",
}


# By metric, what a value can be; of counters, what their rate can be.
BOUNDS: Mapping[str, Bounds] = {
    **dict.fromkeys(
        (
            "core_utilization_ratio",
            "gpu_utilization_ratio",
            "hbm_active_ratio",
            "vcpu_usage_ratio",
            "device_unhealthy",
        ),
        SHARE,
    ),
    # Scrapes are not exactly as far apart as they say.
    "idle_cpus": Bounds(high=2.0),
    **dict.fromkeys(("core_utilization_of_any_unit", "idle_percent"), Bounds(high=101.0)),
    **dict.fromkeys(("core_memory_bytes", "device_memory_used_bytes"), DEVICE_BYTES),
    **dict.fromkeys(
        ("host_memory_used_bytes", "memory_total_bytes", "memory_available_bytes"), HOST_BYTES
    ),
    **dict.fromkeys(ECC, EVENTS),
    **dict.fromkeys(_EFA.values(), EVENTS_PER_S),
    **dict.fromkeys(
        (_EFA["tx_bytes"], _EFA["rx_bytes"], "collective_bandwidth_bytes_per_s"), EFA_BYTES_PER_S
    ),
    **dict.fromkeys(
        ("executions_completed_per_s", "executions_failed_per_s", "execution_errors_per_s"),
        EVENTS_PER_S,
    ),
    **dict.fromkeys((f"execution_latency_p{n}_s" for n in (50, 99, 100)), LATENCY_S),
    "collective_time_s": LATENCY_S,
    # NVIDIA numbers them from 1; the newest are below 200.
    "last_xid": Bounds(high=1_000.0),
}
POSSIBLE = Bounds()
# By exporter, the values that mean none. DCGM's are for "blank", "not found", "not supported" and
# "not permitted": the last sixteen of 32 and of 64 bits, and 2^47 and up as a float
# (dcgm_structs.h). A float holds those of 64 bits as 2^63.
BLANK: Mapping[str, Sequence[Bounds]] = {
    "dcgm": (
        Bounds(2.0**31 - 16, 2.0**31 - 1),
        Bounds(2.0**47, 2.0**47 + 15),
        Bounds(2.0**63 - 2048, 2.0**63),
    )
}

# The units that a sender may give for shares, seconds and bytes, in those of our metrics.
_BYTES = {"By": 1.0, "KiBy": 2.0**10, "MiBy": 2.0**20, "GiBy": 2.0**30}
_UNIT_SCALES = {
    "_ratio": {"%": 0.01, "percent": 0.01},
    "_s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "_bytes": _BYTES | {"kBy": 1e3, "MBy": 1e6, "GBy": 1e9},
}


def scale_of(row: Row, unit: str) -> float:
    """Return what turns a value in this unit into one of our metric.

    A name says the unit unless a sender says another one: the CloudWatch agent multiplies
    `neuroncore_utilization_ratio` by 100, and gives the unit "%".
    """
    if row.is_counter:
        return row.scale
    units = (units for end, units in _UNIT_SCALES.items() if row.metric.endswith(end))
    return next(units, {}).get(unit, row.scale)


def is_of_known_exporter(name: str) -> bool:
    """Whether a series has a name like those of an exporter that is read."""
    return _LIKE_KNOWN.fullmatch(name) is not None


_LIKE_KNOWN = re.compile(
    f"{KEEP}|(aws_neuron|neuron|neuroncore|neurondevice|node_neuron|pod_neuron|container_neuron|"
    "dcgm|DCGM|node_amazonefa)_.+"
)


def common_labels(labels: Collection[tuple[str, str]]) -> dict[str, str]:
    """Return labels under the names of the table; a name of the table's own wins."""
    values = {name: text for name, text in labels if name not in ALIASES}
    for name, text in labels:
        if name in ALIASES and text:
            values.setdefault(ALIASES[name], text)
    return values


def part_of(row: Row, labels: Mapping[str, str]) -> str | None:
    """Return the number of a series' part, or an EFA device's name; None for a name without one.

    Devices are distinguished by their numbers: a place among the names that were seen would be
    that of another device while some are missing. Of EFA devices only the order is known.
    """
    part = labels.get(row.part, "")
    if not part or row.metric in _EFA.values():
        return part
    numbered = NUMBERED.fullmatch(part)
    return str(int(numbered[1])) if numbered else None


def host_of(address: str) -> str:
    """Return the host of a scraped address, without its port."""
    name, colon, port = address.rpartition(":")
    has_port = colon and port.isdecimal() and (":" not in name or name.endswith("]"))
    return (name if has_port else address).strip("[]")


def is_of_every_machine(host: str) -> bool:
    """Whether a host is what each machine calls itself: it names none of them."""
    if host.partition(".")[0].lower() == "localhost":
        return True
    return is_address(host) and (
        (address := ipaddress.ip_address(host)).is_loopback or address.is_unspecified
    )


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _names_no_host(name: str) -> bool:
    return not name or CONTAINER.fullmatch(name) is not None or is_of_every_machine(name)


class NamedBy(IntEnum):
    """Who gave a node its name: a label of the user's, Kubernetes, its host, or no one."""

    NONE = 0
    HOST = 1
    KUBERNETES = 2
    LABEL = 3


class NodeName(NamedTuple):
    """A node's name, and what else tells that it is the same one.

    A name that no one gave is the machine's own number, or the scraped address, and another
    series may know a better one.
    """

    name: str
    instance_id: str
    address: str
    by: NamedBy


def name_of(labels: Mapping[str, str]) -> NodeName:
    """Name the node of a series: by its label, Kubernetes, its host, its number, its address."""
    host = host_of(labels.get(ADDRESS, ""))
    if is_of_every_machine(host):
        host = ""
    number, pod = labels.get("instance_id", ""), labels.get("pod", "")
    given, by = labels.get("node", ""), NamedBy.LABEL
    if not given:
        by = NamedBy.KUBERNETES
        given = next((labels[n] for n in KUBERNETES_LABELS if labels.get(n)), "")
    if not given:
        by = NamedBy.HOST
        hosts = (labels.get(n, "") for n in HOST_LABELS)
        given = next((h for h in hosts if h != pod and not _names_no_host(h)), "")
    if not given and host and host != pod and not is_address(host):
        # An address that a user chose; only a number, or a Kubernetes name, says more.
        given = host
    if given:
        # Set manually, `node` may be an address with its port too.
        return NodeName(host_of(given), number, host, by)
    return NodeName(number or host, number, host, NamedBy.NONE)
