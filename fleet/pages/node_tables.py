"""What the pages say of one node's hardware now: devices, links, memory, errors, as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fleet.models import Node
from telemetry import catalog
from telemetry.blocks import Block, FloatArray

NEVER = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator; None where nothing was reported."""

    number: int
    utilization_ratio: float | None
    hbm_bytes_per_s: float | None
    memory_used_bytes: float | None
    mem_corrected: int | None
    mem_uncorrected: int | None
    sram_corrected: int | None
    sram_uncorrected: int | None

    @property
    def n_uncorrected(self) -> int:
        """How many errors spoilt data."""
        return (self.mem_uncorrected or 0) + (self.sram_uncorrected or 0)


@dataclass(frozen=True, slots=True)
class Link:
    """One EFA device; None where nothing was reported."""

    number: int
    latency_s: float | None
    tx_bytes_per_s: float | None
    rx_bytes_per_s: float | None
    retransmits_per_s: float | None
    drops_per_s: float | None


@dataclass(frozen=True, slots=True)
class Hardware:
    """One node's parts, by its newest block."""

    devices: Sequence[Device]
    links: Sequence[Link]
    vcpu_usage_ratio: float | None
    host_memory_used_bytes: float | None
    errors_per_s: float | None
    memory_bytes: float | None  # of all devices, by the catalogue
    host_memory_bytes: float | None
    n_vcpus: int | None

    @property
    def n_uncorrected(self) -> int:
        """How many errors spoilt data, over all devices."""
        return sum(device.n_uncorrected for device in self.devices)


def hardware_of(node: Node, block: Block | None) -> Hardware:
    """Take one node's row out of its shard's newest block."""
    values = _row(node, block)
    chip = _catalogued(node)
    return Hardware(
        devices=_devices(node, values),
        links=_links(node, values),
        vcpu_usage_ratio=_at(values, "vcpu_usage_ratio", 0),
        host_memory_used_bytes=_at(values, "host_memory_used_bytes", 0),
        errors_per_s=_at(values, "execution_errors_per_s", 0),
        memory_bytes=chip.hbm_bytes if chip else None,
        host_memory_bytes=chip.host_memory_bytes if chip else None,
        n_vcpus=chip.vcpus if chip else None,
    )


def _catalogued(node: Node) -> "catalog.Instance | None":
    try:
        return catalog.instance(node.instance_type)
    except ValueError:
        return None


def _row(node: Node, block: Block | None) -> Mapping[str, FloatArray]:
    if block is None or node.name not in block.nodes:
        return {}
    row = block.nodes.index(node.name)
    return {name: values[row] for name, values in block.values.items()}


def _at(values: Mapping[str, FloatArray], metric: str, part: int) -> float | None:
    array = values.get(metric, NEVER)
    return float(array[part]) if part < array.size and np.isfinite(array[part]) else None


def _count(values: Mapping[str, FloatArray], metric: str, part: int) -> int | None:
    found = _at(values, metric, part)
    return None if found is None else int(found)


def _devices(node: Node, values: Mapping[str, FloatArray]) -> list[Device]:
    per_device = _by_device(values.get("core_utilization_ratio", NEVER), node)
    return [
        Device(
            i,
            per_device[i],
            _at(values, "hbm_bandwidth_bytes_per_s", i),
            _at(values, "device_memory_used_bytes", i),
            _count(values, "mem_ecc_corrected", i),
            _count(values, "mem_ecc_uncorrected", i),
            _count(values, "sram_ecc_corrected", i),
            _count(values, "sram_ecc_uncorrected", i),
        )
        for i in range(node.n_devices)
    ]


def _by_device(cores: FloatArray, node: Node) -> list[float | None]:
    """Average utilization over the cores of each device."""
    if not cores.size or cores.size != node.n_devices * node.cores_per_device:
        return [None] * node.n_devices
    grouped = cores.reshape(node.n_devices, -1)
    return [float(np.nanmean(row)) if np.isfinite(row).any() else None for row in grouped]


def _links(node: Node, values: Mapping[str, FloatArray]) -> list[Link]:
    return [
        Link(
            i,
            _at(values, "efa_latency_s", i),
            _at(values, "efa_tx_bytes_per_s", i),
            _at(values, "efa_rx_bytes_per_s", i),
            _at(values, "efa_retransmits_per_s", i),
            _at(values, "efa_drops_per_s", i),
        )
        for i in range(node.n_efa)
    ]
