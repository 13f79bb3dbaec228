"""The JSON that neuron-monitor writes: only the keys we read, with the bounds we hold them to."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from telemetry.units import DAY_S

MAX_CORES = 4096
MAX_DEVICES = 1024
MAX_EFA = 64

Percent = Annotated[float, Meta(ge=0, le=101)]
Ratio = Annotated[float, Meta(ge=0, le=1.01)]
Bytes = Annotated[float, Meta(ge=0, le=1e16)]
Count = Annotated[float, Meta(ge=0, le=1e18)]
WholeCount = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Period = Annotated[float, Meta(ge=0, le=DAY_S)]
Latency = Annotated[float, Meta(gt=0, le=60)]
UnixSeconds = Annotated[float, Meta(ge=0, le=1e11)]
SequenceNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]
CoreIndex = Annotated[int, Meta(ge=0, lt=MAX_CORES)]
DeviceIndex = Annotated[int, Meta(ge=0, lt=MAX_DEVICES)]
EfaIndex = Annotated[int, Meta(ge=0, lt=MAX_EFA)]
Port = Annotated[int, Meta(ge=0, le=255)]
# Text without control characters, which no store likes.
Name = Annotated[str, Meta(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
DeviceName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]
CounterName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")]
Component = Annotated[str, Meta(pattern=r"^[a-z0-9_.-]{1,64}\Z")]
StreamName = Annotated[str, Meta(pattern=r"^[0-9A-Za-z-]{8,64}\Z")]

# Labels of a node or run; an empty value removes one.
LabelName = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,39}\Z")]
LabelValue = Annotated[str, Meta(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Labels = Annotated[dict[LabelName, LabelValue], Meta(max_length=24)]

MAX_LINE_BYTES = 8_000_000


class Increase(Struct, gc=False):
    """By how much a port's counters grew over the period."""

    tx_bytes: Count | None = None
    rx_bytes: Count | None = None
    tx_pkts: Count | None = None
    retrans_pkts: Count | None = None
    rx_drops: Count | None = None
    impaired_remote_conn_events: Count | None = None
    unresponsive_remote_events: Count | None = None


class EfaPort(Struct, gc=False, kw_only=True):
    """One port of one EFA device: ``index`` is the device's place on the machine, which lasts.

    ``latency_s`` is measured by a probe: no EFA counter has it.
    """

    device: DeviceName
    index: EfaIndex
    port: Port = 1
    increase: Increase | None = None
    counters: Annotated[dict[CounterName, WholeCount], Meta(max_length=96)] | None = None
    latency_s: Latency | None = None


class EfaLine(Struct, gc=False):
    """The EFA devices of a node, and the seconds over which their counters grew."""

    devices: Annotated[list[EfaPort], Meta(max_length=256)]
    period: Period | None = None


class NeuronDevice(Struct, gc=False):
    """One Neuron device as its driver counts; older agents send the power here, without a time."""

    index: DeviceIndex
    cores: Annotated[int, Meta(ge=0, le=MAX_CORES)] | None = None
    mem_ecc_corrected: Count | None = None
    mem_ecc_uncorrected: Count | None = None
    sram_ecc_corrected: Count | None = None
    sram_ecc_uncorrected: Count | None = None
    power_ratio: Ratio | None = None
    memory_used_bytes: Bytes | None = None
    unhealthy: Annotated[list[Component], Meta(max_length=32)] | None = None


class CoreBusy(Struct, gc=False):
    """One physical core: the share of the period in which it was in use, and its FLOPs in it."""

    device: DeviceIndex
    core: CoreIndex
    busy: Ratio
    flops: Count | None = None


class DevicePower(Struct, gc=False):
    """Mean power of a device over its maximum, in the minute ending ``at``, by its clock."""

    device: DeviceIndex
    at: UnixSeconds
    ratio: Ratio


class NeuronLine(Struct, gc=False):
    """What the Neuron driver's sysfs reports of its devices; ``power`` only when new."""

    devices: Annotated[list[NeuronDevice], Meta(max_length=MAX_DEVICES)] | None = None
    cores: Annotated[list[CoreBusy], Meta(max_length=MAX_CORES)] | None = None
    period: Period | None = None
    power: Annotated[list[DevicePower], Meta(max_length=MAX_DEVICES)] | None = None
    ultraserver_id: Name | None = None


class LineInstance(Struct, gc=False):
    """The machine that a line without a report comes from."""

    instance_id: Name | None = None
    instance_type: Name | None = None
    instance_name: Name | None = None
    instance_availability_zone: Name | None = None
    ultraserver_id: Name | None = None


class ProbeAnswer(Struct, gc=False):
    """What a requested probe measured, seconds by EFA device, or why there is no result."""

    id: WholeCount
    reason: Name | None = None
    latency_s: dict[Name, Latency] | None = None


class AgentState(Struct, gc=False):
    """State of the agent: lines that wait, and lines that were lost, with the reason."""

    version: Name
    n_waiting: WholeCount = 0
    n_dropped: WholeCount = 0
    n_refused: WholeCount = 0
    n_skipped: WholeCount = 0
    problem: Name | None = None
    # The agent was asked to end, as for an upgrade.
    stopping: bool | UnsetType = UNSET
    # Left out of what is stored and passed on unless the agent answers a request.
    probe: ProbeAnswer | UnsetType = UNSET
    # As telemetry/ingest/samples.py reads it: what is wrong with it does not refuse the line.
    sample: Any | UnsetType = UNSET
    # What the agent's surroundings say of the node; sent now and then.
    labels: Labels | UnsetType = UNSET


class MetricGroup(Struct, gc=False, kw_only=True):
    """The fields of every metric group: the seconds it covers, and its error if any."""

    period: Period | None = None
    error: str | None = None


class PhysicalCoreUse(Struct, gc=False):
    neuroncore_utilization: Percent | None = None


class CoreUse(Struct, gc=False):
    """One core, logical on trn2, where ``v3d`` holds the physical ones."""

    neuroncore_utilization: Percent | None = None
    flops: Count | None = None
    effective_flops: Count | None = None
    v3d: dict[str, PhysicalCoreUse] | None = None


class NeuroncoreCounters(MetricGroup, gc=False, kw_only=True):
    """Utilization of the cores that a process holds."""

    neuroncores_in_use: dict[CoreIndex, CoreUse] | None = None


class CoreMemory(Struct, gc=False):
    """Device memory used on behalf of one core, in bytes by purpose."""

    constants: Bytes | None = None
    model_code: Bytes | None = None
    model_shared_scratchpad: Bytes | None = None
    runtime_memory: Bytes | None = None
    tensors: Bytes | None = None


class UsageBreakdown(Struct, gc=False):
    """Device memory, core by core."""

    neuroncore_memory_usage: dict[CoreIndex, CoreMemory] | None = None


class RuntimeUsedBytes(Struct, gc=False):
    """Memory of one process: on the host, on the devices, and the latter by core."""

    host: Bytes | None = None
    neuron_device: Bytes | None = None
    usage_breakdown: UsageBreakdown | None = None


class MemoryUsed(MetricGroup, gc=False, kw_only=True):
    neuron_runtime_used_bytes: RuntimeUsedBytes | None = None


class ErrorSummary(Struct, gc=False):
    """Errors of the runtime in the period, by kind."""

    generic: Count | None = None
    numerical: Count | None = None
    transient: Count | None = None
    model: Count | None = None
    runtime: Count | None = None
    hardware: Count | None = None


class ExecutionSummary(Struct, gc=False):
    """How the executions of the period ended."""

    completed: Count | None = None
    completed_with_err: Count | None = None
    completed_with_num_err: Count | None = None
    timed_out: Count | None = None
    incorrect_input: Count | None = None
    failed_to_queue: Count | None = None


class LatencyStats(Struct, gc=False):
    """Execution latency by percentile; null when nothing ran. ``total_latency`` is used."""

    total_latency: dict[str, Seconds | None] | None = None
    device_latency: dict[str, Seconds | None] | None = None


class ExecutionStats(MetricGroup, gc=False, kw_only=True):
    """What a process executed in the period."""

    error_summary: ErrorSummary | None = None
    execution_summary: ExecutionSummary | None = None
    latency_stats: LatencyStats | None = None


class RuntimeCpuShare(Struct, gc=False):
    """vCPU time of one process, in percent of one vCPU. Checked, and not kept."""

    user: Count | None = None
    system: Count | None = None


class RuntimeVcpuUsage(MetricGroup, gc=False, kw_only=True):
    vcpu_usage: RuntimeCpuShare | None = None


class RuntimeReport(Struct, gc=False):
    neuroncore_counters: NeuroncoreCounters | None = None
    memory_used: MemoryUsed | None = None
    execution_stats: ExecutionStats | None = None
    neuron_runtime_vcpu_usage: RuntimeVcpuUsage | None = None


class Runtime(Struct, gc=False):
    """One process that holds cores."""

    pid: int | None = None
    neuron_runtime_tag: Name | None = None
    error: str | None = None
    report: RuntimeReport | None = None


class DeviceCounters(Struct, gc=False):
    """ECC counts of one device, as the node counts them."""

    neuron_device_index: DeviceIndex
    mem_ecc_corrected: Count | None = None
    mem_ecc_uncorrected: Count | None = None
    sram_ecc_corrected: Count | None = None
    sram_ecc_uncorrected: Count | None = None


class HwCounters(MetricGroup, gc=False, kw_only=True):
    """ECC counts of the devices."""

    neuron_devices: list[DeviceCounters] | None = None


class CpuShare(Struct, gc=False):
    """Where the host's vCPU time went, in percent; ``idle`` is the rest."""

    user: Percent | None = None
    nice: Percent | None = None
    system: Percent | None = None
    io_wait: Percent | None = None
    irq: Percent | None = None
    soft_irq: Percent | None = None
    idle: Percent | None = None


class VcpuUsage(MetricGroup, gc=False, kw_only=True):
    average_usage: CpuShare | None = None


class MemoryInfo(MetricGroup, gc=False, kw_only=True):
    memory_total_bytes: Bytes | None = None
    memory_used_bytes: Bytes | None = None
    swap_total_bytes: Bytes | None = None
    swap_used_bytes: Bytes | None = None


class SystemData(Struct, gc=False):
    """The groups of the machine, there even when no process runs."""

    neuron_hw_counters: HwCounters | None = None
    vcpu_usage: VcpuUsage | None = None
    memory_info: MemoryInfo | None = None


class InstanceInfo(LineInstance, gc=False):
    """The machine that a report comes from."""

    error: str | None = None


class HardwareInfo(Struct, gc=False):
    """How many devices and cores, as the runtime counts them."""

    neuron_device_count: Annotated[int, Meta(ge=0, le=MAX_DEVICES)] | None = None
    neuroncore_per_device_count: Annotated[int, Meta(ge=0, le=MAX_CORES)] | None = None
    ultraserver_id: Name | None = None
    error: str | None = None


class MonitorReport(Struct, gc=False):
    neuron_runtime_data: list[Runtime] | None = None
    system_data: SystemData | None = None
    instance_info: InstanceInfo | None = None
    neuron_hardware_info: HardwareInfo | None = None


class MonitorLine(MonitorReport, gc=False):
    """One line: a plain report, or one in the sender's envelope.

    The envelope has the time of the report (``at``, Unix seconds by the node's clock) and its
    number (``seq``) in a ``stream`` whose numbers rise. ``hbm_bytes_per_step`` (per device, from
    a profile) and ``steps_per_s`` give an estimate of the HBM bandwidth. ``efa`` and ``neuron``
    have what neuron-monitor lacks; without a report ``instance`` names the machine. ``agent`` is
    the sender's health.
    """

    at: UnixSeconds | None = None
    seq: SequenceNumber | None = None
    stream: StreamName | None = None
    hbm_bytes_per_step: Bytes | None = None
    steps_per_s: Count | None = None
    report: MonitorReport | None = None
    efa: EfaLine | None = None
    neuron: NeuronLine | None = None
    instance: LineInstance | None = None
    agent: AgentState | None = None


class LastVcpuUsage(VcpuUsage, kw_only=True):
    """Usage of the host's vCPUs; ``usage_data`` has an entry per vCPU, which counts them."""

    usage_data: dict[str, Raw] | None = None


class LastSystemData(SystemData):
    vcpu_usage: LastVcpuUsage | None = None


class LastInstanceInfo(InstanceInfo):
    instance_region: Name | None = None
    subnet_id: Name | None = None


class LastReport(Struct):
    """A node's stored last report, with the fields that neuron-monitor's exporter shows."""

    neuron_runtime_data: list[Runtime] | None = None
    system_data: LastSystemData | None = None
    instance_info: LastInstanceInfo | None = None
    neuron_hardware_info: HardwareInfo | None = None


class LastLine(LastReport):
    """A report, plain or wrapped by the agent."""

    report: LastReport | None = None
