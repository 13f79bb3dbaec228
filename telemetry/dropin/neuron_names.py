"""The families that neuron-monitor-prometheus.py exports: names, types and labels."""

from collections.abc import Mapping

from telemetry.families import Spec

# On every family, in the order in which the exporter fills them in.
BASE = (
    "instance_name",
    "instance_id",
    "instance_type",
    "availability_zone",
    "region",
    "subnet_id",
)
TAG = "runtime_tag"

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
# Of a core's memory the exporter says nowhere in particular.
NOWHERE = "None"


def _of_runtime(name: str, about: str, *labels: str, kind: str = "gauge") -> Spec:
    return Spec(name, "counter" if kind == "counter" else "gauge", about, (*BASE, TAG, *labels))


def _of_node(name: str, about: str, *labels: str, kind: str = "gauge") -> Spec:
    return Spec(name, "counter" if kind == "counter" else "gauge", about, (*BASE, *labels))


UTILIZATION = _of_runtime(
    "neuroncore_utilization_ratio", "NeuronCore utilization ratio.", "neuroncore"
)
CORE_MEMORY: Mapping[str, Spec] = {
    purpose: _of_runtime(
        f"neuroncore_memory_usage_{purpose}",
        f"NeuronCore memory used for {purpose.replace('_', ' ')}, bytes.",
        "neuroncore",
        "memory_location",
    )
    for purpose in PURPOSES
}
RUNTIME_MEMORY = _of_runtime(
    "neuron_runtime_memory_used_bytes", "Memory used by a runtime.", "memory_location"
)
RUNTIME_VCPU = _of_runtime(
    "neuron_runtime_vcpu_usage_ratio", "vCPU time used by a runtime.", "usage_type"
)
EXECUTION_ERRORS = _of_runtime(
    "execution_errors_total", "Execution errors by type.", "error_type", kind="counter"
)
EXECUTION_STATUS = _of_runtime(
    "execution_status_total", "Executions by how they ended.", "status_type", kind="counter"
)
LATENCY = _of_runtime(
    "execution_latency_seconds", "Execution latency by percentile, seconds.", "percentile"
)
ECC_EVENTS = _of_node(
    "hardware_ecc_events_total",
    "ECC events by kind and device, as the node counts them.",
    "event_type",
    "neuron_device_index",
    kind="counter",
)
MEMORY_TOTAL = _of_node("system_memory_total_bytes", "Host memory there is.")
MEMORY_USED = _of_node("system_memory_used_bytes", "Host memory in use.")
SWAP_TOTAL = _of_node("system_swap_total_bytes", "Swap space there is.")
SWAP_USED = _of_node("system_swap_used_bytes", "Swap space in use.")
VCPU_COUNT = _of_node("system_vcpu_count", "vCPUs of the host.")
VCPU_USAGE = _of_node("system_vcpu_usage_ratio", "vCPU time used, by kind.", "usage_type")
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
    """Return the labels that tell a family's series of one node, or process, apart."""
    return tuple(label for label in spec.labels if label not in {*BASE, TAG})
