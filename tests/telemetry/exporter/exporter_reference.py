"""Expected output of neuron-monitor-prometheus.py as a table, and a comparison."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from telemetry.exporter.exposition import write_page

BASE = {
    "instance_name",
    "instance_id",
    "instance_type",
    "availability_zone",
    "region",
    "subnet_id",
}
ERRORS = {"generic", "numerical", "transient", "model", "runtime", "hardware"}
ENDINGS = {
    "completed",
    "completed_with_err",
    "completed_with_num_err",
    "timed_out",
    "incorrect_input",
    "failed_to_queue",
}
PERCENTILES = {"p0", "p1", "p25", "p50", "p75", "p99", "p100"}
ECC = {"mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected"}
USER_SYSTEM = {"user", "system"}
ANY = None

# Name: type, additional labels with their values (ANY: as many as there are parts).
OF_RUNTIME: Mapping[str, tuple[str, Mapping[str, Collection[str] | None]]] = {
    "neuroncore_utilization_ratio": ("gauge", {"neuroncore": ANY}),
    **{
        f"neuroncore_memory_usage_{purpose}": (
            "gauge",
            {"neuroncore": ANY, "memory_location": {"None"}},
        )
        for purpose in (
            "constants",
            "model_code",
            "model_shared_scratchpad",
            "runtime_memory",
            "tensors",
        )
    },
    "neuron_runtime_memory_used_bytes": ("gauge", {"memory_location": {"host", "neuron_device"}}),
    "neuron_runtime_vcpu_usage_ratio": ("gauge", {"usage_type": USER_SYSTEM}),
    "execution_errors_total": ("counter", {"error_type": ERRORS}),
    "execution_status_total": ("counter", {"status_type": ENDINGS}),
    "execution_latency_seconds": ("gauge", {"percentile": PERCENTILES}),
}
OF_NODE: Mapping[str, tuple[str, Mapping[str, Collection[str] | None]]] = {
    "hardware_ecc_events_total": ("counter", {"event_type": ECC, "neuron_device_index": ANY}),
    "system_memory_total_bytes": ("gauge", {}),
    "system_memory_used_bytes": ("gauge", {}),
    "system_swap_total_bytes": ("gauge", {}),
    "system_swap_used_bytes": ("gauge", {}),
    "system_vcpu_count": ("gauge", {}),
    "system_vcpu_usage_ratio": ("gauge", {"usage_type": USER_SYSTEM}),
    "instance_info": ("gauge", {}),
    "neuron_hardware_info": (
        "gauge",
        {"neuron_device_count": ANY, "neuroncore_per_device_count": ANY},
    ),
}


@dataclass(frozen=True)
class Series:
    """One series of a page."""

    name: str
    kind: str
    labels: Mapping[str, str]
    value: float


def shown(families: Iterable[Metric]) -> list[Series]:
    """Return every series of a page, each of which is there but once."""
    page = write_page(families).decode()
    found = [
        Series(_as_written(sample.name, page), family.type, sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]
    keys = [(each.name, *sorted(each.labels.items())) for each in found]
    assert len(set(keys)) == len(keys)
    return found


def _as_written(name: str, page: str) -> str:
    """Return a name as it is on the page: the parser gives counters a suffix they may lack."""
    return name if f"\n{name}{{" in page else name.removesuffix("_total")


def named(found: Iterable[Series], name: str, **labels: str) -> dict[tuple[str, ...], float]:
    """Return the values of a name, by the values of its labels that are neither base nor given."""
    known = BASE | set(labels) | {"runtime_tag"}
    return {
        tuple(value for label, value in each.labels.items() if label not in known): each.value
        for each in found
        if each.name == name and labels.items() <= each.labels.items()
    }


def holds_against_the_facts(
    found: Collection[Series],
    *,
    tags: Mapping[str, Collection[int]],
    n_devices: int,
    without: Collection[str] = (),
) -> None:
    """Hold a node's series against the table, name by name.

    ``tags`` are its processes and the cores of each; ``without`` what it cannot tell.
    """
    table = {**OF_NODE, **(OF_RUNTIME if tags else {})}
    assert {each.name for each in found} == set(table) - set(without)
    for name in sorted(set(table) - set(without)):
        kind, extra = table[name]
        series = [each for each in found if each.name == name]
        of_runtime = name in OF_RUNTIME
        wanted = BASE | set(extra) | ({"runtime_tag"} if of_runtime else set())
        assert {each.kind for each in series} == {kind}, name
        assert all(set(each.labels) == wanted for each in series), name
        for label, values in extra.items():
            if values is not ANY:
                assert {each.labels[label] for each in series} == set(values), (name, label)
        if "neuroncore" in extra:
            cores = {(tag, str(core)) for tag, held in tags.items() for core in held}
            assert {(s.labels["runtime_tag"], s.labels["neuroncore"]) for s in series} == cores
        elif of_runtime:
            assert {each.labels["runtime_tag"] for each in series} == set(tags)
        if "neuron_device_index" in extra:
            devices = {each.labels["neuron_device_index"] for each in series}
            assert devices == set(map(str, range(n_devices)))
        assert len(series) == expected_count(name, extra, tags, n_devices), name


def expected_count(
    name: str,
    extra: Mapping[str, Collection[str] | None],
    tags: Mapping[str, Collection[int]],
    n_devices: int,
) -> int:
    """Return how many series a family has."""
    if "neuroncore" in extra:
        return sum(map(len, tags.values()))
    if "neuron_device_index" in extra:
        return len(ECC) * n_devices
    n_kinds = 1
    for values in extra.values():
        n_kinds *= len(values) if values is not ANY else 1
    return n_kinds * (len(tags) if name in OF_RUNTIME else 1)
