"""Series of existing exporters, by Prometheus remote write or OTLP: recognise and assemble.

A scrape arrives in pieces: Prometheus spreads its series over requests. ``samples_of`` reads one
request; ``NodeSeries`` collects a node's samples until a scrape is complete, and returns what it
says as a Reading.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import cramjam
import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from telemetry import catalog
from telemetry.blocks import METRICS, FloatArray
from telemetry.errors import whole_number
from telemetry.ingest import limits
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.neuron_monitor import NodeIdentity, Reading, Shape
from telemetry.ingest.schemas import MAX_CORES
from telemetry.write_request import EncodedSeries, Label

MS = 1000.0
MIB = 1024.0**2
# Series whose labels differ in these alone describe the same part of the same node.
NODE_LABELS = ("node", "instance")
IDENTITY_LABELS = {
    "instance_id": "instance_id",
    "instance_name": "instance_name",
    "instance_type": "instance_type",
    "availability_zone": "zone",
    "ultraserver_id": "ultraserver_id",
}
# Labels that tell what a node trains: the run itself, or the pod of a job.
RUN_LABEL, POD_LABELS = "run", ("pod_name", "exported_pod", "k8s_pod_name")
# Labels of nodes, by the labels of series that give them.
SURROUNDINGS = {
    "pod": POD_LABELS,
    "namespace": ("exported_namespace", "k8s_namespace_name"),
    "kubernetes_node": ("k8s_node_name",),
    "node_group": ("nodegroup", "eks_amazonaws_com_nodegroup"),
    "node_pool": ("nodepool", "karpenter_sh_nodepool"),
}
MAX_LABEL_CHARS = 128
# Of the values of a label that series give at the same time, the first stays so long.
LABEL_STAYS_S = 120.0
# Pods of one job differ in their role, index and random suffix: llama-worker-3, llama-3-x7k2p.
POD = re.compile(r"(.+?)(-(master|worker|launcher|chief))?-\d+(-[a-z0-9]{5})?")
RUN = re.compile(r"[A-Za-z0-9_-]{1,60}")
# A scrape is stored when all series of the one before have arrived, when the next one begins,
# or after this time.
COMPLETE_AFTER_S = 10.0
# A gap of more scrape intervals is an outage: the values say nothing about it. Until the
# interval is known, it is at most this long.
MAX_INTERVALS, MAX_COVER_S = 2.5, 300
# Between scrapes, until it is known.
USUAL_INTERVAL_S = 15.0
# A sample of the future would make all later ones repeats; older ones come from no outage.
AHEAD_S, OLDEST_S = 60, 24 * 3600
# Samples of one scrape are this close together, those of two scrapes are not.
SAME_SCRAPE_MS = 250
# No ratio of utilization is so large.
SURELY_PERCENT = 1.5
MAX_PART = 64
MAX_SERIES = 20_000
# Series whose labels a process does not read again; each takes some 700 bytes.
KNOWN_SERIES = 1 << 16
# Longer texts that tell series apart are kept as a digest.
MAX_OF_CHARS = 48


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
_FAILED = ("completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input")
_ECC = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
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
    **_observed("device", {kind: Row(kind, DEVICE) for kind in _ECC}),
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
            for kind in (
                "constants",
                "model_code",
                "model_shared_scratchpad",
                "runtime_memory",
                "tensors",
            )
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
            Row(kind, DEVICE, labels=_only("event_type", kind)) for kind in _ECC
        ),
        "system_memory_used_bytes": (Row("host_memory_used_bytes"),),
        "system_vcpu_usage_ratio": (Row("vcpu_usage_ratio"),),
        "neuron_hardware_info": (Row("hardware_info"),),
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
    "neuroncore_.+|neuron_hardware_info|execution_.+|hardware_ecc_events_total|"
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


class SampleKey(NamedTuple):
    """One series of a node: our metric, the part, and the labels that tell it from others.

    The values of a delta are added up.
    """

    metric: str
    part: str
    of: str
    is_counter: bool
    is_delta: bool = False


class Sample(NamedTuple):
    at_ms: int
    value: float
    exporter: str
    key: SampleKey


@dataclass(slots=True)
class WrittenSamples:
    """The samples of one request, by node, and what the labels say of each node.

    ``runs`` counts the series that name each run. ``reason`` is that of the first rejected sample.
    """

    by_node: dict[str, list[Sample]] = field(default_factory=dict)
    identities: dict[str, dict[str, str]] = field(default_factory=dict)
    runs: dict[str, dict[str, int]] = field(default_factory=dict)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    n_ignored: int = 0
    n_rejected: int = 0
    reason: str = ""

    def reject(self, n_samples: int, reason: str) -> None:
        self.n_rejected += n_samples
        self.reason = self.reason or reason

    def add(self, series: "Series", points: Iterable[tuple[int, float]]) -> None:
        """Add the samples of a series: their times (Unix ms) and values."""
        self.identities.setdefault(series.node, {}).update(series.identity)
        if series.labels:
            self.labels[series.node] = series.labels | self.labels.get(series.node, {})
        runs = self.runs.setdefault(series.node, {})
        if series.run:
            runs[series.run] = runs.get(series.run, 0) + 1
        rows = self.by_node.setdefault(series.node, [])
        for at_ms, value in points:
            if math.isfinite(value):
                rows.append(Sample(at_ms, value * series.scale, series.exporter, series.key))


def unpack(body: bytes, *, max_bytes: int) -> bytes:
    """Decompress a snappy block; raises RefusedError where it is not one or is too large."""
    size = shift = 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    most = limits.most_unpacked(len(body), max_bytes)
    if size > most:
        reason = f"has {size:,} bytes once unpacked; {most:,} at most. Send fewer series at a time"
        raise RefusedError("body", reason)
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise RefusedError("body", "is not a snappy block, as remote write 1.0 asks") from error


def samples_of(message: bytes) -> WrittenSamples:
    """Read the samples of a WriteRequest; raises RefusedError where it is not one.

    Series that no row describes are ignored, as are staleness markers and other NaN.
    """
    found = WrittenSamples()
    try:
        n_samples = 0
        for encoded in limits.split_messages(message, "timeseries", most=limits.MAX_SERIES):
            written = EncodedSeries.FromString(encoded)
            n_samples += len(written.samples)
            if n_samples > limits.MAX_SAMPLES:
                raise limits.too_many("samples", limits.MAX_SAMPLES)
            try:
                series = _recognise_encoded(written.labels)
            except RejectedError as error:
                found.reject(len(written.samples), str(error))
                continue
            if series is None:
                found.n_ignored += 1
            else:
                found.add(series, [(sample.timestamp, sample.value) for sample in written.samples])
    except DecodeError as error:
        raise RefusedError("body", "is not a WriteRequest of remote write 1.0") from error
    return found


class Series(NamedTuple):
    """What the labels of a series say."""

    node: str
    exporter: str
    key: SampleKey
    scale: float
    identity: dict[str, str]
    run: str
    labels: dict[str, str]


def recognise(labels: tuple[tuple[str, str], ...]) -> Series | None:
    """Read the labels of a series; None if it is not used, or names no node."""
    values = dict(labels)
    exporter, rows = ROWS.get(values.get("__name__", ""), ("", ()))
    row = next(
        (r for r in rows if all(values.get(label) in wanted for label, wanted in r.labels)), None
    )
    if exporter == INSPECTOR and values.get("instance") and "exported_node" not in values:
        # Its own label is what its host, or container, calls itself.
        values.pop("node", None)
    node = node_of(values)
    if row is None or not node or len(values.get(row.part, "")) > MAX_PART:
        return None
    # Only ECC counts may be those of the whole node.
    if row.part and not values.get(row.part) and row.metric not in _ECC:
        return None
    ours = {"job", row.part, *NODE_LABELS, *IDENTITY_LABELS}
    of = ",".join(f"{k}={v}" for k, v in labels if k not in ours)
    if row.metric == "hardware_info":
        of = f"{values.get('neuron_device_count')}x{values.get('neuroncore_per_device_count')}"
    if len(of) > MAX_OF_CHARS:
        of = blake2b(of.encode(), digest_size=12).hexdigest()
    key = SampleKey(row.metric, values.get(row.part, ""), of, row.is_counter)
    identity = {
        field: values[label] for label, field in IDENTITY_LABELS.items() if values.get(label)
    }
    return Series(node, exporter, key, row.scale, identity, run_of(values), labels_of(values))


class RejectedError(Exception):
    """One series or data point that cannot be used; the others are."""


def check_labels(n_labels: int, longest_bytes: int) -> None:
    """Raise RejectedError for labels that no sender uses; each would be copied for each sample."""
    if n_labels > limits.MAX_LABELS:
        raise RejectedError(f"has {n_labels:,} labels; at most {limits.MAX_LABELS}: drop some")
    if longest_bytes > limits.MAX_LABEL_BYTES:
        raise RejectedError(
            f"has a label of {longest_bytes:,} bytes; at most {limits.MAX_LABEL_BYTES:,}: drop it"
        )


class KnownSeries:
    """What labels say, by their digest; cleared when full.

    Labels themselves would take several times the memory of what they say.
    """

    def __init__(self, most: int = KNOWN_SERIES) -> None:
        self._most = most
        self._series: dict[bytes, Series | None] = {}

    def of(
        self, encoded: Sequence[bytes], decode: Callable[[], Iterable[tuple[str, str]]]
    ) -> Series | None:
        """Return the series of labels; ``decode`` gives their names and values if it is new."""
        check_labels(len(encoded), max(map(len, encoded), default=0))
        sizes = ",".join([str(len(each)) for each in encoded])
        digest = blake2b(b"".join([sizes.encode(), b";", *encoded]), digest_size=16).digest()
        try:
            return self._series[digest]
        except KeyError:
            pass
        series = recognise(tuple(decode()))
        if len(self._series) >= self._most:
            self._series.clear()
        self._series[digest] = series
        return series


_known = KnownSeries()


def _recognise_encoded(encoded: Sequence[bytes]) -> Series | None:
    """Read the labels of a series, each as a Label's bytes."""
    labels = (Label.FromString(each) for each in encoded)
    return _known.of(encoded, lambda: ((label.name, label.value) for label in labels))


def node_of(labels: Mapping[str, str]) -> str:
    """Name the node of a series: its label ``node``, else the scraped host without its port."""
    host = labels.get("node") or labels.get("instance", "")
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def labels_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a node by those of a series.

    A plain ``pod`` or ``namespace`` is that of the exporter, unless the exporter names a pod.
    """
    found = {
        name: next((labels[each] for each in given if labels.get(each)), "")
        for name, given in SURROUNDINGS.items()
    }
    if labels.get("pod_name"):
        found["namespace"] = found["namespace"] or labels.get("namespace", "")
    return {
        name: value[:MAX_LABEL_CHARS]
        for name, value in found.items()
        if value and value.isprintable()
    }


def run_of(labels: Mapping[str, str]) -> str:
    """Name the run of a series: its label ``run``, else the job of its pod; empty: unknown."""
    run = labels.get(RUN_LABEL, "")
    if not run:
        pod = next((labels[label] for label in POD_LABELS if labels.get(label)), "")
        run = match[1] if (match := POD.fullmatch(pod)) else pod
    return run if RUN.fullmatch(run) else ""


class Scrape(msgspec.Struct):
    """One scrape of an exporter: the values of its series by key."""

    at_ms: int
    arrived_s: float
    values: dict[str, float]


class ExporterState(msgspec.Struct):
    """What is known of one exporter of a node between requests."""

    at_ms: int = 0
    interval_s: float = 0.0
    n_series: int = 0
    counters: dict[str, tuple[int, float]] = {}
    waiting: dict[int, Scrape] = {}


class NodeSeries(msgspec.Struct):
    """The samples of a node, exporter by exporter, until their scrapes are complete."""

    identity: dict[str, str] = {}
    runs: dict[str, int] = {}
    parts: dict[str, list[str]] = {}
    cores_per_device: int = 0
    n_devices: int = 0
    is_percent: bool = False
    exporters: dict[str, ExporterState] = {}
    # By name: the value, and when it was last given.
    labels: dict[str, tuple[str, float]] = {}

    @property
    def n_waiting(self) -> int:
        """Count the scrapes that are not taken yet."""
        return sum(len(exporter.waiting) for exporter in self.exporters.values())

    def scraped(self) -> tuple[int, list[int]]:
        """Return the seconds between scrapes, and the last second of each exporter still there."""
        known = [each for each in self.exporters.values() if each.at_ms]
        newest_ms = max((each.at_ms for each in known), default=0)
        there = [
            each
            for each in known
            if newest_ms - each.at_ms <= MS * MAX_INTERVALS * (each.interval_s or USUAL_INTERVAL_S)
        ]
        every_s = min((each.interval_s for each in there if each.interval_s), default=0.0)
        ticks = {math.floor(each.at_ms / MS) for each in there}
        return math.ceil(every_s or USUAL_INTERVAL_S), sorted(ticks)

    def label(self, labels: Mapping[str, str], *, arrived_s: float) -> None:
        """Learn labels; of several pods of a node, the first stays while it is given."""
        for name, value in labels.items():
            held, at_s = self.labels.get(name, (value, arrived_s))
            if held == value or arrived_s - at_s > LABEL_STAYS_S:
                self.labels[name] = value, arrived_s

    def add(self, samples: Iterable[Sample], *, arrived_s: float) -> tuple[int, int]:
        """Collect samples; return how many are new, and how many are not: repeated or too old."""
        n_new = n_repeated = 0
        for at_ms, value, exporter, key in samples:
            state = self.exporters.setdefault(exporter, ExporterState())
            is_usable = -AHEAD_S <= arrived_s - at_ms / MS <= OLDEST_S
            if at_ms <= state.at_ms + SAME_SCRAPE_MS or not is_usable:
                n_repeated += 1
                continue
            kind = "d" if key.is_delta else "c" if key.is_counter else ""
            text = "|".join((key.metric, key.part, kind, key.of))
            scrape = state.waiting.get(at_ms)
            for other in () if scrape else state.waiting.values():
                # Senders of OTLP may give each series of a collection its own time.
                if abs(other.at_ms - at_ms) <= SAME_SCRAPE_MS:
                    scrape = other
                    break
            if scrape is None:
                scrape = state.waiting[at_ms] = Scrape(at_ms, arrived_s, {})
            if len(scrape.values) < MAX_SERIES:
                n_repeated += text in scrape.values
                n_new += text not in scrape.values
                scrape.values[text] = value
        return n_new, n_repeated

    def readings(self, *, now_s: float) -> Iterator[tuple[Reading, float]]:
        """Take the complete scrapes, oldest first, as readings with the end of each."""
        for exporter in self.exporters.values():
            for at_ms in sorted(exporter.waiting):
                scrape = exporter.waiting[at_ms]
                is_newest = at_ms == max(exporter.waiting)
                is_complete = 0 < exporter.n_series <= len(scrape.values)
                if is_newest and not is_complete and now_s - scrape.arrived_s < COMPLETE_AFTER_S:
                    break
                del exporter.waiting[at_ms]
                reading = self._reading(exporter, scrape)
                if reading is not None:
                    yield reading, at_ms / MS

    def _reading(self, exporter: ExporterState, scrape: Scrape) -> Reading | None:
        since_s = (scrape.at_ms - exporter.at_ms) / MS
        usual_s = exporter.interval_s or MAX_COVER_S
        is_gap = since_s > min(MAX_INTERVALS * usual_s, MAX_COVER_S)
        if not is_gap:
            exporter.interval_s = since_s
        # The first scrape, and one after an outage, show only their own time.
        period_s = since_s if not is_gap else exporter.interval_s or 1.0
        by_metric: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for text, value in scrape.values.items():
            metric, part, kind, of = text.split("|", 3)
            if metric == "hardware_info":
                self._learn(of)
            elif kind == "d":
                total = exporter.counters.get(text, (0, 0.0))[1] + value
                exporter.counters[text] = (scrape.at_ms, total)
                by_metric[metric][part].append(total)
            elif kind:
                before = exporter.counters.get(text)
                exporter.counters[text] = (scrape.at_ms, value)
                if before is not None and not is_gap:
                    # A counter that fell was reset: it counts from zero.
                    more = value - before[1] if value >= before[1] else value
                    by_metric[metric][part].append(more / ((scrape.at_ms - before[0]) / MS))
            else:
                by_metric[metric][part].append(value)
        exporter.at_ms, exporter.n_series = scrape.at_ms, len(scrape.values)
        exporter.counters = {t: c for t, c in exporter.counters.items() if t in scrape.values}
        arrays = self._arrays(by_metric)
        if not arrays:
            return None
        n_efa = len(self.parts.get("efa", ()))
        identity = NodeIdentity(**self.identity)
        return Reading(identity, self.shape, period_s, arrays, at_s=scrape.at_ms / MS, n_efa=n_efa)

    def _learn(self, of: str) -> None:
        devices, _, cores = of.partition("x")
        self._take_shape(*(whole_number(text, most=MAX_CORES) or 0 for text in (devices, cores)))

    def _take_shape(self, n_devices: int, cores_per_device: int) -> None:
        """Take a node's shape from its exporter, unless no node has it."""
        if 0 < n_devices * cores_per_device <= MAX_CORES:
            self.n_devices, self.cores_per_device = n_devices, cores_per_device

    @property
    def shape(self) -> Shape:
        """The node's devices and cores: as its exporter says, else its type, else as seen."""
        kind = catalog.instances().get(self.identity.get("instance_type", ""))
        cores, devices = len(self.parts.get("core", ())), len(self.parts.get("device", ()))
        n_devices = self.n_devices or (kind.n_devices if kind else 0) or devices
        per_device = self.cores_per_device or (
            kind.n_cores // kind.n_devices if kind and kind.n_devices else 1
        )
        return Shape(n_devices, max(n_devices * per_device, cores))

    def _arrays(self, found: Mapping[str, Mapping[str, list[float]]]) -> dict[str, FloatArray]:
        values = {
            metric: {
                part: max(some) if metric in METRICS_BY_MAX else math.fsum(some)
                for part, some in of.items()
            }
            for metric, of in found.items()
        }
        self._derive(values)
        arrays = {}
        for metric, by_part in values.items():
            if metric not in METRICS:
                continue
            kind = METRICS[metric].part
            if kind == "node":
                arrays[metric] = np.array([[by_part.get("", math.nan)]])
                continue
            # A count of a whole node is stored as its first device.
            named = {part or "0": value for part, value in by_part.items()}
            row = np.full(self._n_parts(kind, named), np.nan)
            places = {name: i for i, name in enumerate(self.parts[kind])}
            for part, value in named.items():
                at = (
                    int(part) if part.isdecimal() and kind != "efa" else places.get(part, len(row))
                )
                if at < len(row):
                    row[at] = value
            arrays[metric] = row[None]
        return arrays

    def _n_parts(self, kind: str, by_part: Mapping[str, float]) -> int:
        """Count the parts of a kind; new names are remembered, in natural order."""
        names = self.parts.setdefault(kind, [])
        new = [part for part in by_part if part not in names]
        if new:
            names.extend(new)
            # rdmap9 before rdmap16.
            names.sort(key=lambda name: (len(name), name))
            del names[MAX_CORES:]
        shape = self.shape
        known = {"core": shape.n_cores, "device": shape.n_devices}.get(kind, 0)
        return known or len(names)

    def _derive(self, values: dict[str, dict[str, float]]) -> None:
        """Replace what exporters give in other terms by our metrics."""
        n_devices, n_cores = (
            values.pop(f"{of}_count", {}).get("", 0.0) for of in ("device", "core")
        )
        if 1 <= n_devices <= n_cores < math.inf:
            self._take_shape(int(n_devices), int(n_cores // n_devices))
        shape = self.shape
        if busy_cores := values.pop("core_utilization_of_any_unit", None):
            # A busy core tells percent from a ratio; that it is percent stays known.
            self.is_percent |= max(busy_cores.values()) > SURELY_PERCENT
            scale = 0.01 if self.is_percent else 1.0
            values["core_utilization_ratio"] = {p: v * scale for p, v in busy_cores.items()}
        if idle_percent := values.pop("idle_percent", None):
            busy = 1.0 - math.fsum(idle_percent.values()) / len(idle_percent) / 100
            values["vcpu_usage_ratio"] = {"": min(1.0, max(0.0, busy))}
        if memory := values.pop("core_memory_bytes", None):
            per_device = max(1, shape.n_cores // max(1, shape.n_devices))
            used: dict[str, float] = defaultdict(float)
            for core, n_bytes in memory.items():
                if core.isdecimal():
                    used[str(int(core) // per_device)] += n_bytes
            values["device_memory_used_bytes"] = used
        if idle := values.pop("idle_cpus", None):
            busy = 1.0 - math.fsum(idle.values()) / len(idle)
            values["vcpu_usage_ratio"] = {"": min(1.0, max(0.0, busy))}
        total, free = (values.pop(f"memory_{of}_bytes", None) for of in ("total", "available"))
        if total and free:
            values["host_memory_used_bytes"] = {"": total[""] - free[""]}
        if xids := values.pop("last_xid", None):
            values["device_unhealthy"] = {
                gpu: float(xid > 0 and xid not in XIDS_OF_APPLICATIONS)
                for gpu, xid in xids.items()
            }
        if coarse := values.pop("gpu_utilization_ratio", None):
            values.setdefault("core_utilization_ratio", coarse)
        kind = catalog.instances().get(self.identity.get("instance_type", ""))
        if (active := values.pop("hbm_active_ratio", None)) and kind:
            peak = kind.chip.hbm_bytes_per_s
            values["hbm_bandwidth_bytes_per_s"] = {p: v * peak for p, v in active.items()}
        if ratio := values.get("core_utilization_ratio"):
            values["core_utilization_ratio"] = {
                part: min(1.0, max(0.0, value)) for part, value in ratio.items()
            }
