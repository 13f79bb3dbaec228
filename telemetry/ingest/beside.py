"""From EFA counters, probes and the Neuron driver's sysfs to readings in our units."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from telemetry.blocks import FloatArray
from telemetry.ingest import beside_wire as bw
from telemetry.ingest import wire
from telemetry.ingest.reading import Identity, Reading, Shape
from telemetry.ingest.refusal import RefusedError
from telemetry.ingest.values import ecc

RATES = {
    "efa_tx_bytes_per_s": "tx_bytes",
    "efa_rx_bytes_per_s": "rx_bytes",
    "efa_tx_packets_per_s": "tx_pkts",
    "efa_retransmits_per_s": "retrans_pkts",
    "efa_drops_per_s": "rx_drops",
    "efa_impaired_per_s": "impaired_remote_conn_events",
    "efa_unresponsive_per_s": "unresponsive_remote_events",
}
# A rate of less than this many seconds is noise.
LEAST_PERIOD_S = 0.05


def reading(sent: wire.Line, *, shape: Shape | None) -> Reading:
    """Return what a line without a report says; ``shape`` is what the node is known to have.

    Raises RefusedError where the line says nothing, or cannot be true.
    """
    if sent.efa is None and sent.neuron is None:
        raise RefusedError("", "says nothing: neither efa nor neuron is there")
    shape = shape or _counted(sent.neuron)
    if shape is None:
        reason = "counts no cores, and the node is not known: send a report of neuron-monitor too"
        raise RefusedError("neuron.devices", reason)
    periods = [part.period or 0.0 for part in (sent.efa, sent.neuron) if part is not None]
    values = {name: row[None, :] for name, row in values_beside(sent, shape, {}).items()}
    return Reading(
        _identity(sent.instance or bw.Instance()),
        shape,
        max(periods),
        values,
        sent.at,
        sent.seq,
        stream=sent.stream,
        n_efa=n_efa(sent.efa),
        kept=kept(sent),
    )


def n_efa(efa: bw.Efa | None) -> int:
    """Return how many EFA devices a node has, as far as a line tells."""
    return 1 + max((port.index for port in efa.devices), default=-1) if efa else 0


def values_beside(
    sent: wire.Line, shape: Shape, known: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Return what a line says beside its report; what the report has told already stays."""
    values = efa_values(sent.efa) if sent.efa else {}
    if sent.neuron:
        values |= neuron_values(sent.neuron, shape)
    return {name: row for name, row in values.items() if name not in known}


def efa_values(efa: bw.Efa) -> dict[str, FloatArray]:
    """Return rates and probed latencies of EFA devices: (n_efa,) each, NaN where none is told.

    The ports of a device add up; of their latencies the highest holds.
    """
    _once([(port.device, port.port) for port in efa.devices], "efa.devices", "device and port")
    size = n_efa(efa)
    rows = {name: [math.nan] * size for name in (*RATES, "efa_latency_s")}
    for port in efa.devices:
        grown = port.increase or bw.Increase()
        for name, counter in RATES.items():
            more: float | None = getattr(grown, counter)
            if more is not None and efa.period and efa.period >= LEAST_PERIOD_S:
                _add(rows[name], port.index, more / efa.period)
        if port.latency_s is not None:
            latency_s = rows["efa_latency_s"]
            latency_s[port.index] = float(np.fmax(latency_s[port.index], port.latency_s))
    return {name: np.array(row) for name, row in rows.items() if np.isfinite(row).any()}


def neuron_values(neuron: bw.Neuron, shape: Shape) -> dict[str, FloatArray]:
    """Return what the driver tells of devices, (n_devices,), and cores, (n_cores,)."""
    devices = neuron.devices or []
    _once([device.index for device in devices], "neuron.devices", "index")
    if devices and (index := max(device.index for device in devices)) >= shape.n_devices:
        reason = f"device {index}, but the node has {shape.n_devices}"
        raise RefusedError("neuron.devices", reason)
    counted = wire.HwCounters(
        neuron_devices=[
            wire.DeviceCounters(
                device.index,
                device.mem_ecc_corrected,
                device.mem_ecc_uncorrected,
                device.sram_ecc_corrected,
                device.sram_ecc_uncorrected,
            )
            for device in devices
        ]
    )
    values = dict(ecc(counted, n_devices=shape.n_devices))
    used = [math.nan] * shape.n_devices
    for device in devices:
        used[device.index] = math.nan if (n := device.memory_used_bytes) is None else n
    if np.isfinite(used).any():
        values["device_memory_used_bytes"] = np.array(used)
    if neuron.cores:
        values["core_utilization_ratio"] = core_use(neuron.cores, shape)
    return values


def core_use(cores: Sequence[bw.CoreBusy], shape: Shape) -> FloatArray:
    """Return how busy each core was: (n_cores,), 0 to 1; NaN where nothing was told.

    The driver counts physical cores; a logical one is the mean of those that it is made of.
    """
    per_device = shape.n_cores // shape.n_devices
    n_physical = max(per_device, 1 + max(core.core for core in cores))
    if n_physical % per_device or max(core.device for core in cores) >= shape.n_devices:
        reason = f"do not fit a node of {shape.n_devices} devices with {per_device} cores each"
        raise RefusedError("neuron.cores", reason)
    busy = np.full((shape.n_devices, n_physical), np.nan)
    for core in cores:
        busy[core.device, core.core] = core.busy
    groups = busy.reshape(shape.n_cores, -1)
    n_told = np.isfinite(groups).sum(axis=1)
    total = np.where(np.isfinite(groups), groups, 0.0).sum(axis=1)
    mean: FloatArray = np.where(n_told > 0, total, np.nan) / np.maximum(n_told, 1)
    return np.minimum(mean, 1.0, dtype=float)


def kept(sent: wire.Line) -> dict[str, object]:
    """Return what pages and /metrics may want of a line beside its values: the last of each."""
    said: dict[str, object] = {}
    if sent.efa:
        ports = [port for port in sent.efa.devices if port.counters is not None]
        if ports:
            said["efa"] = [
                {"device": port.device, "port": port.port, "counters": port.counters}
                for port in ports
            ]
    if sent.neuron and sent.neuron.devices:
        said["neuron"] = msgspec.to_builtins(sent.neuron.devices)
    if sent.agent:
        said["agent"] = msgspec.to_builtins(sent.agent)
    return said


def _counted(neuron: bw.Neuron | None) -> Shape | None:
    """Return the shape that the driver counts, None where it does not."""
    devices = (neuron and neuron.devices) or []
    per_device = max((device.cores or 0 for device in devices), default=0)
    n_devices = 1 + max((device.index for device in devices), default=-1)
    return Shape(n_devices, n_devices * per_device) if per_device else None


def _identity(instance: bw.Instance) -> Identity:
    """Return which machine a line is of."""
    return Identity(
        instance.instance_id or "",
        instance.instance_name or "",
        instance.instance_type or "",
        instance.instance_availability_zone or "",
    )


def _add(row: list[float], place: int, more: float) -> None:
    row[place] = more if math.isnan(row[place]) else row[place] + more


def _once(keys: Sequence[object], field: str, what: str) -> None:
    """Refuse a list that names something twice."""
    if len(set(keys)) < len(keys):
        raise RefusedError(field, f"names a {what} twice")
