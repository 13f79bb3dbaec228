"""Labels that identify a node's machine in the series of AWS' exporters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from telemetry import catalog
from telemetry.exporter.exposition import LabelRows, Spec, counter, gauge

# Labels of every family, in the exporter's order.
BASE = (
    "instance_name",
    "instance_id",
    "instance_type",
    "availability_zone",
    "region",
    "subnet_id",
)
TAG = "runtime_tag"
OF_RUNTIME = (*BASE, TAG)

PURPOSES = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
ERRORS = ("generic", "numerical", "transient", "model", "runtime", "hardware")
ENDINGS = (
    "completed",
    "completed_with_err",
    "completed_with_num_err",
    "timed_out",
    "incorrect_input",
    "failed_to_queue",
)
PERCENTILES = ("p0", "p1", "p25", "p50", "p75", "p99", "p100")
ECC = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
# The exporter's location of a core's memory.
NO_LOCATION = "None"


UTILIZATION = gauge(
    "neuroncore_utilization_ratio", "NeuronCore utilization ratio.", *OF_RUNTIME, "neuroncore"
)
CORE_MEMORY: Mapping[str, Spec] = {
    purpose: gauge(
        f"neuroncore_memory_usage_{purpose}",
        f"NeuronCore memory used for {purpose.replace('_', ' ')}, bytes.",
        *OF_RUNTIME,
        "neuroncore",
        "memory_location",
    )
    for purpose in PURPOSES
}
RUNTIME_MEMORY = gauge(
    "neuron_runtime_memory_used_bytes", "Memory used by a runtime.", *OF_RUNTIME, "memory_location"
)
RUNTIME_VCPU = gauge(
    "neuron_runtime_vcpu_usage_ratio", "vCPU time used by a runtime.", *OF_RUNTIME, "usage_type"
)
EXECUTION_ERRORS = counter(
    "execution_errors_total", "Execution errors by type.", *OF_RUNTIME, "error_type"
)
EXECUTION_STATUS = counter(
    "execution_status_total", "Executions by how they ended.", *OF_RUNTIME, "status_type"
)
LATENCY = gauge(
    "execution_latency_seconds",
    "Execution latency by percentile, seconds.",
    *OF_RUNTIME,
    "percentile",
)
ECC_EVENTS = counter(
    "hardware_ecc_events_total",
    "ECC events by kind and device, as the node counts them.",
    *BASE,
    "event_type",
    "neuron_device_index",
)
MEMORY_TOTAL = gauge("system_memory_total_bytes", "Host memory there is.", *BASE)
MEMORY_USED = gauge("system_memory_used_bytes", "Host memory in use.", *BASE)
SWAP_TOTAL = gauge("system_swap_total_bytes", "Swap space there is.", *BASE)
SWAP_USED = gauge("system_swap_used_bytes", "Swap space in use.", *BASE)
VCPU_COUNT = gauge("system_vcpu_count", "vCPUs of the host.", *BASE)
VCPU_USAGE = gauge("system_vcpu_usage_ratio", "vCPU time used, by kind.", *BASE, "usage_type")
INSTANCE = Spec("instance_info", "info", "Which machine a node is; always 1.", BASE)
HARDWARE = Spec(
    "neuron_hardware_info",
    "info",
    "How many devices and cores a node has; always 1.",
    (*BASE, "neuron_device_count", "neuroncore_per_device_count"),
)

OF_RUNTIMES = (
    UTILIZATION,
    *CORE_MEMORY.values(),
    RUNTIME_MEMORY,
    RUNTIME_VCPU,
    EXECUTION_ERRORS,
    EXECUTION_STATUS,
    LATENCY,
)
OF_NODES = (
    ECC_EVENTS,
    MEMORY_TOTAL,
    MEMORY_USED,
    SWAP_TOTAL,
    SWAP_USED,
    VCPU_COUNT,
    VCPU_USAGE,
    INSTANCE,
    HARDWARE,
)
ALL = (*OF_RUNTIMES, *OF_NODES)


def own_labels(spec: Spec) -> tuple[str, ...]:
    """Labels that distinguish the series of one node or process."""
    return tuple(label for label in spec.labels if label not in OF_RUNTIME)


def of_many(spec: Spec) -> Spec:
    """Return the family of a page of many nodes, whose series name theirs."""
    return replace(spec, labels=(*OF_NODE, *spec.labels))


LABELS = ("device", "port")
# Only on pages of many nodes: the real exporters have no such labels, and Prometheus gives each
# target its own. Public dashboards and rules group by one or the other.
NODE = "node"
OF_NODE = (NODE, "instance")

OF_PORTS: Mapping[str, str] = {
    "tx_bytes": "Bytes sent.",
    "tx_pkts": "Packets sent.",
    "rx_bytes": "Bytes received.",
    "rx_pkts": "Packets received.",
    "rx_drops": "Received packets dropped: the receiver had no buffer.",
    "send_bytes": "Bytes of send work requests.",
    "send_wrs": "Send work requests.",
    "recv_bytes": "Bytes of receive work requests.",
    "recv_wrs": "Receive work requests.",
    "rdma_read_wrs": "RDMA reads begun.",
    "rdma_read_bytes": "Bytes read by RDMA.",
    "rdma_read_wr_err": "RDMA reads that failed.",
    "rdma_read_resp_bytes": "Bytes served to RDMA reads of others.",
    "rdma_write_wrs": "RDMA writes begun.",
    "rdma_write_bytes": "Bytes written by RDMA.",
    "rdma_write_wr_err": "RDMA writes that failed.",
    "rdma_write_recv_bytes": "Bytes that others wrote here by RDMA.",
    "retrans_bytes": "Bytes sent again.",
    "retrans_pkts": "Packets sent again.",
    "retrans_timeout_events": "Times that traffic timed out and had to change its path.",
    "unresponsive_remote_events": "Connections whose peer became unresponsive.",
    "impaired_remote_conn_events": "Connections that were slowed down as impaired.",
    "lifespan": "Milliseconds between two refreshes of the counters.",
}
OF_DEVICES: Mapping[str, str] = {
    "submitted_cmds": "Administrative commands submitted.",
    "completed_cmds": "Administrative commands completed.",
    "cmds_err": "Administrative commands that failed.",
    "no_completion_cmds": "Administrative commands that timed out.",
    "keep_alive_rcvd": "Signs of life received from the device.",
    "alloc_pd_err": "Protection domains that could not be allocated.",
    "create_qp_err": "Queue pairs that could not be created.",
    "create_cq_err": "Completion queues that could not be created.",
    "reg_mr_err": "Memory regions that could not be registered.",
    "alloc_ucontext_err": "User contexts that could not be allocated.",
    "create_ah_err": "Address handles that could not be created.",
    "mmap_err": "Memory maps that failed.",
}
# Counters of some driver versions only.
OF_SOME_DRIVERS: Mapping[str, str] = {
    "alloc_mr_err": "Memory regions that could not be allocated.",
    "get_dma_mr_err": "DMA memory regions that could not be had.",
}
COUNTERS: Mapping[str, Spec] = {
    name: counter(f"node_amazonefa_{name}", about, *LABELS)
    for name, about in {**OF_PORTS, **OF_DEVICES, **OF_SOME_DRIVERS}.items()
}
INFO = gauge("node_amazonefa_info", "An EFA device; always 1.", "device")


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The labels of a node, in the order of BASE.

    ``runtime_tag`` names the one process that a simulated node runs: its run. A real node's
    last report names its processes, and says better than we know what else it is.
    """

    instance_name: str
    instance_id: str
    instance_type: str
    availability_zone: str = ""
    region: str = ""
    subnet_id: str = ""
    runtime_tag: str = ""
    is_simulated: bool = True

    @property
    def base(self) -> tuple[str, ...]:
        return tuple(getattr(self, label) for label in BASE)

    @property
    def machine(self) -> catalog.Instance | None:
        """The instance type in the catalogue; None unless it has AWS chips."""
        instance = catalog.instances().get(self.instance_type)
        return instance if instance and instance.chip.vendor == "AWS" else None


def region_of(zone: str) -> str:
    """Return the region of an availability zone.

    >>> region_of("us-east-2b")
    'us-east-2'
    """
    return zone.rstrip("abcdefghijklmnopqrstuvwxyz") if zone[-1:].isalpha() else zone


def rows_of(nodes: Iterable[tuple[str, tuple[str, ...], str]]) -> LabelRows:
    """Return the labels of nodes by name, base labels and tag."""
    columns = list(zip(*((node, node, *base, tag) for node, base, tag in nodes), strict=True))
    labels: Mapping[str, tuple[str, ...]] = dict(
        zip((*OF_NODE, *OF_RUNTIME), columns, strict=True)
    )
    return LabelRows(labels)
