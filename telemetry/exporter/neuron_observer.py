"""The series of AWS's exporters once more, under the names of AWS's Neuron Observer."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from telemetry.exporter import neuron_exporter_names as names
from telemetry.exporter.exposition import ArrayFamily, SeriesArray, Spec, format_values

PERCENT = 100.0
# EFA counters whose names of Observer are known.
OF_EFA = (
    *("tx_bytes", "rx_bytes", "tx_pkts", "retrans_pkts", "rx_drops"),
    *("impaired_remote_conn_events", "unresponsive_remote_events"),
)
# Classes of errors that Observer names otherwise.
ERRORS = {"runtime": "rt", "hardware": "hw"}
DEVICE, EFA_DEVICE = "device", "efa_device"


@dataclass(frozen=True, slots=True)
class Observed:
    """Where a series comes from: the name there, and how its arrays are converted.

    ``dropped`` are the labels that the series has no more.
    """

    source: str
    convert: Callable[[SeriesArray], SeriesArray]
    about: str
    dropped: tuple[str, ...] = ()


def same(array: SeriesArray) -> SeriesArray:
    return array


def of_kind(array: SeriesArray, *, kind: str) -> SeriesArray:
    """Select the parts whose first label has this value, without that label."""
    at = [i for i, part in enumerate(array.parts) if part[0] == kind]
    present = None if array.present is None else array.present[:, at]
    parts = [array.parts[i][1:] for i in at]
    return SeriesArray(array.rows, array.labels[1:], parts, array.values[:, at], present)


def of_efa_device(array: SeriesArray) -> SeriesArray:
    labels = tuple(EFA_DEVICE if label == DEVICE else label for label in array.labels)
    return replace(array, labels=labels)


def counted(array: SeriesArray, *, cores: bool) -> SeriesArray:
    """Count devices or cores by the labels of neuron_hardware_info, which has one part."""
    [(devices, per_device)] = array.parts
    count = float(devices) * (float(per_device or "nan") if cores else 1.0)
    values = np.full((len(array.rows), 1), count)
    return SeriesArray(array.rows, (), [()], format_values(values), np.isfinite(values))


def idle(array: SeriesArray) -> SeriesArray:
    """Return what the kinds of usage leave of all vCPU time, in percent."""
    used = np.where(True if array.present is None else array.present, array.values, np.nan)
    values = np.round(PERCENT * (1.0 - used.astype(float).sum(axis=1, keepdims=True)), 4)
    return SeriesArray(array.rows, (), [()], format_values(values), np.isfinite(values))


_ERROR, _STATUS, _ECC, _HARDWARE = (
    names.own_labels(spec)
    for spec in (names.EXECUTION_ERRORS, names.EXECUTION_STATUS, names.ECC_EVENTS, names.HARDWARE)
)
OBSERVED: Mapping[str, Observed] = {
    "neuron_core_utilization_avg": Observed(
        names.UTILIZATION.name, same, "NeuronCore utilization ratio."
    ),
    **{
        f"neuron_core_infer_{kind}_sum_total": Observed(
            names.EXECUTION_STATUS.name,
            partial(of_kind, kind=kind),
            f"Executions that ended: {kind}.",
            _STATUS,
        )
        for kind in names.ENDINGS
    },
    **{
        f"neuron_core_err_{ERRORS.get(kind, kind)}_sum_total": Observed(
            names.EXECUTION_ERRORS.name, partial(of_kind, kind=kind), f"{kind} errors.", _ERROR
        )
        for kind in names.ERRORS
    },
    **{
        f"neuron_device_{kind}_sum": Observed(
            names.ECC_EVENTS.name, partial(of_kind, kind=kind), f"{kind} events.", _ECC[:1]
        )
        for kind in names.ECC
    },
    **{
        f"neuron_efa_{counter}": Observed(
            names.COUNTERS[counter].name, of_efa_device, names.OF_PORTS[counter]
        )
        for counter in OF_EFA
    },
    "neuron_system_memory_used_bytes": Observed(
        names.MEMORY_USED.name, same, "Host memory in use."
    ),
    "neuron_system_neuron_device_count": Observed(
        names.HARDWARE.name, partial(counted, cores=False), "Devices.", _HARDWARE
    ),
    "neuron_system_logical_neuroncore_count": Observed(
        names.HARDWARE.name, partial(counted, cores=True), "Cores.", _HARDWARE
    ),
    "neuron_vcpu_vcpu_idle_percent_avg": Observed(
        names.VCPU_USAGE.name, idle, "vCPU time not in use.", names.own_labels(names.VCPU_USAGE)
    ),
}


def observer_families(families: Iterable[ArrayFamily]) -> list[ArrayFamily]:
    """Return families under Observer's names, from those of the other exporters."""
    by_name = {family.spec.name: family for family in families}
    observed = []
    for name, series in OBSERVED.items():
        if source := by_name.get(series.source):
            labels = tuple(
                EFA_DEVICE if label == DEVICE else label
                for label in source.spec.labels
                if label not in series.dropped
            )
            kind = "gauge" if source.spec.kind == "info" else source.spec.kind
            spec = Spec(name, kind, series.about, labels)
            observed.append(ArrayFamily(spec, partial(_arrays, source, series.convert)))
    return observed


def _arrays(
    source: ArrayFamily, convert: Callable[[SeriesArray], SeriesArray]
) -> Iterator[SeriesArray]:
    yield from map(convert, source.arrays())
