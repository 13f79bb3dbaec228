"""The JSON of what neuron-monitor lacks: EFA counters, the Neuron driver's sysfs, the agent."""

from typing import Annotated

from msgspec import Meta, Struct

from telemetry.ingest.bounds import (
    MAX_CORES,
    MAX_DEVICES,
    Bytes,
    Component,
    CoreIndex,
    Count,
    CounterName,
    DeviceIndex,
    DeviceName,
    EfaIndex,
    Latency,
    Name,
    Period,
    Port,
    Ratio,
    WholeCount,
)


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

    ``latency_s`` is what a probe measured: no counter of EFA tells it.
    """

    device: DeviceName
    index: EfaIndex
    port: Port = 1
    increase: Increase | None = None
    counters: Annotated[dict[CounterName, WholeCount], Meta(max_length=96)] | None = None
    latency_s: Latency | None = None


class Efa(Struct, gc=False):
    """The EFA devices of a node, and the seconds over which their counters grew."""

    devices: Annotated[list[EfaPort], Meta(max_length=256)]
    period: Period | None = None


class NeuronDevice(Struct, gc=False):
    """One Neuron device as its driver counts; power is the last minute's mean."""

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
    """One physical core: the share of the period in which it was in use."""

    device: DeviceIndex
    core: CoreIndex
    busy: Ratio


class Neuron(Struct, gc=False):
    """What the Neuron driver's sysfs says of its devices."""

    devices: Annotated[list[NeuronDevice], Meta(max_length=MAX_DEVICES)] | None = None
    cores: Annotated[list[CoreBusy], Meta(max_length=MAX_CORES)] | None = None
    period: Period | None = None


class Instance(Struct, gc=False):
    """Which machine a line without a report is of."""

    instance_id: Name | None = None
    instance_type: Name | None = None
    instance_name: Name | None = None
    instance_availability_zone: Name | None = None


class AgentState(Struct, gc=False):
    """How the agent fares: lines that wait, and those that were lost on the way and why."""

    version: Name
    n_waiting: WholeCount = 0
    n_dropped: WholeCount = 0
    n_refused: WholeCount = 0
    n_skipped: WholeCount = 0
    problem: Name | None = None
