"""Series of existing exporters, by Prometheus remote write or OTLP: read and recognised.

A scrape arrives in pieces: Prometheus spreads its series over requests. ``samples_of`` reads one
request; `node_series` puts the samples of a node together.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import cramjam
from google.protobuf.message import DecodeError

from telemetry.ingest import exporters, limits
from telemetry.ingest.exporters import (
    IDENTITY_LABELS,
    INSPECTOR,
    NODE_LABELS,
    PROCESS,
    REPLICA_LABELS,
    ROWS,
    NamedBy,
    NodeName,
    Row,
)
from telemetry.ingest.lines import RefusedError
from telemetry.units import DAY_S
from telemetry.write_request import EncodedSeries, Label
from trnwatch.identity import run_name

MS = 1000.0
NO_NODE = (
    "names no node: each machine calls itself localhost. Give a label node, such as the external "
    "label of a Prometheus that scrapes its own machine, or the resource attribute host.name, "
    "k8s.node.name, host.id or service.instance.id"
)
# Labels that tell what a node trains: the run itself, or the pod of a job.
RUN_LABEL, POD_LABELS = "run", ("pod_name", "exported_pod", "k8s_pod_name")
# Labels of nodes, by the labels of series that give them.
SURROUNDINGS = {
    "pod": POD_LABELS,
    "namespace": ("exported_namespace", "k8s_namespace_name"),
    "kubernetes_node": ("k8s_node_name", "kubernetes_node"),
    "node_group": ("nodegroup", "eks_amazonaws_com_nodegroup"),
    "node_pool": ("nodepool", "karpenter_sh_nodepool"),
}
MAX_LABEL_CHARS = 128
# Pods of one job differ in their role, index and random suffix: llama-worker-3, llama-3-x7k2p.
POD = re.compile(r"(.+?)(-(master|worker|launcher|chief))?-\d+(-[a-z0-9]{5})?")
# A sample of the future would make all later ones repeats; older ones come from no outage.
AHEAD_S, OLDEST_S = 60, DAY_S
UNHEALTHY, UTILIZATION = "device_unhealthy", "core_utilization_ratio"
# How the bytes of the label begin that names a series.
ENCODED_NAME = Label(name="__name__").SerializeToString()
MAX_PART = 64
MAX_SERIES = 20_000
# Of series that a process has read before, it keeps what their labels say: so many bytes in all,
# and so many of a series, and of a label beside its text, as CPython takes them.
MAX_KNOWN_BYTES, SERIES_BYTES, LABEL_BYTES = 12_000_000, 1_100, 150
# Longer texts that tell series apart are kept as a digest.
MAX_OF_CHARS = 48


class SampleKey(NamedTuple):
    """One series of a node: our metric, the part, and the labels that tell it from others.

    The values of a delta are added up.
    """

    metric: str
    part: str
    of: str
    is_counter: bool
    is_delta: bool = False
    process: str = ""

    @property
    def text(self) -> str:
        kind = "d" if self.is_delta else "c" if self.is_counter else ""
        return "|".join((self.metric, self.part, kind, self.process, self.of))


class Sample(NamedTuple):
    at_ms: int
    value: float
    exporter: str
    key: SampleKey
    sender: str = ""


@dataclass(slots=True)
class WrittenSamples:
    """The samples of one request, by node, and what the labels say of each node.

    ``runs`` counts the series that name each run. ``reason`` is that of the first rejected sample.
    """

    by_node: dict[str, list[Sample]] = field(default_factory=dict)
    identities: dict[str, dict[str, str]] = field(default_factory=dict)
    runs: dict[str, dict[str, int]] = field(default_factory=dict)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    names: dict[str, NodeName] = field(default_factory=dict)
    n_ignored: int = 0
    n_rejected: int = 0
    reason: str = ""

    def rename(self, node: str, name: str) -> None:
        """Move the samples of a node to another name, to those that are there."""
        if node == name or node not in self.by_node:
            return
        self.by_node.setdefault(name, []).extend(self.by_node.pop(node))
        self.identities.setdefault(name, {}).update(self.identities.pop(node))
        runs = self.runs.setdefault(name, {})
        for run, n in self.runs.pop(node).items():
            runs[run] = runs.get(run, 0) + n
        if labels := self.labels.pop(node, None):
            self.labels[name] = labels | self.labels.get(name, {})

    def reject(self, n_samples: int, reason: str) -> None:
        self.n_rejected += n_samples
        self.reason = self.reason or reason

    def reject_times(self, *, now_s: float) -> list[tuple[str, int, str]]:
        """Reject samples ahead of our clock, and those of long ago.

        Returns of which nodes, how many, and why. A node without other samples is left out.
        """
        rejected = []
        for node, samples in list(self.by_node.items()):
            usable = [each for each in samples if -AHEAD_S <= now_s - each.at_ms / MS <= OLDEST_S]
            if n := len(samples) - len(usable):
                # Of those that are rejected: others of the node may be in time.
                times = {each.at_ms for each in samples} - {each.at_ms for each in usable}
                late_s = now_s - max(times) / MS
                reason = (
                    f"its samples are {-late_s:,.0f} s ahead of trnwatch's clock, at most "
                    f"{AHEAD_S} s are accepted: set the clock of the machine that scrapes"
                    if late_s < 0
                    else f"its samples are {late_s / DAY_S:,.1f} days old, at most one is accepted"
                )
                rejected.append((node, n, reason))
                self.reject(n, f"{node}: {reason}")
                self.by_node[node] = usable
                if not usable:
                    del self.by_node[node]
        return rejected

    def add(
        self, series: "Series", points: Iterable[tuple[int, float]], *, protocol: str = ""
    ) -> None:
        """Add the samples of a series: their times (Unix ms) and values.

        What comes by another protocol is another source.
        """
        source = f"{series.exporter} by {protocol}" if protocol else series.exporter
        if series.named.instance_id or series.node not in self.names:
            self.names[series.node] = series.named
        self.identities.setdefault(series.node, {}).update(series.identity)
        if series.labels:
            self.labels[series.node] = series.labels | self.labels.get(series.node, {})
        runs = self.runs.setdefault(series.node, {})
        if series.run:
            runs[series.run] = runs.get(series.run, 0) + 1
        rows = self.by_node.setdefault(series.node, [])
        blank = exporters.BLANK.get(series.exporter, ())
        for at_ms, value in points:
            if math.isfinite(value) and not any(bounds.has(value) for bounds in blank):
                sample = value * series.scale
                rows.append(Sample(at_ms, sample, source, series.key, series.sender))


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
    samples = WrittenSamples()
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
                if (name := _name_of(written.labels)) in ROWS:
                    samples.reject(len(written.samples), f"{name} {error}")
                else:
                    samples.n_ignored += 1
                continue
            if series is None:
                samples.n_ignored += 1
            else:
                samples.add(
                    series, [(sample.timestamp, sample.value) for sample in written.samples]
                )
    except DecodeError as error:
        raise RefusedError("body", "is not a WriteRequest of remote write 1.0") from error
    return samples


class Series(NamedTuple):
    """What the labels of a series say. ``sender`` is one of several that send the same."""

    node: str
    exporter: str
    key: SampleKey
    scale: float
    identity: dict[str, str]
    run: str
    labels: dict[str, str]
    sender: str = ""
    named: NodeName = NodeName("", "", "", NamedBy.LABEL)


def recognise(labels: tuple[tuple[str, str], ...]) -> Series | None:
    """Read the labels of a series; None if it is not used, or names no node."""
    values = exporters.common_labels(labels)
    name, unit = values.get("__name__", ""), values.pop(exporters.UNIT, "")
    exporter, _ = ROWS.get(name, ("", ()))
    row = row_of(name, values)
    scraped = exporters.host_of(values.get(exporters.ADDRESS, ""))
    is_named = bool(scraped) and not exporters.is_of_every_machine(scraped)
    if exporter == INSPECTOR and is_named and "exported_node" not in values:
        # Its own labels are what its host, or container, calls itself.
        values.pop("node", None)
        values.pop("hostname", None)
    named = exporters.name_of(values)
    if row is None or len(values.get(row.part, "")) > MAX_PART:
        return None
    # Only ECC counts may be those of the whole node.
    if row.part and not values.get(row.part) and row.metric not in exporters.ECC:
        return None
    if not named.name:
        raise RejectedError(NO_NODE)
    part = exporters.part_of(row, values)
    if part is None:
        raise RejectedError(
            f"has {row.part}={values[row.part]!r}, which names no number: give the number that "
            f'the driver counts, such as {row.part}="3" or "neuron3"'
        )
    ours = {
        "job",
        row.part,
        PROCESS,
        exporters.TYPE,
        *NODE_LABELS,
        *IDENTITY_LABELS,
        *REPLICA_LABELS,
    }
    if row.metric == UNHEALTHY:
        # Several checks of one device: each keeps its own verdict.
        ours -= {"job", "instance"}
    of = ",".join(f"{k}={v}" for k, v in values.items() if k not in ours)
    if row.metric == "hardware_info":
        of = f"{values.get('neuron_device_count')}x{values.get('neuroncore_per_device_count')}"
    if len(of) > MAX_OF_CHARS:
        of = blake2b(of.encode(), digest_size=12).hexdigest()
    process = values.get(PROCESS, "")[:MAX_PART].replace("|", "/")
    key = SampleKey(row.metric, part, of, row.is_counter, is_delta=False, process=process)
    identity = {
        field: values[label] for label, field in IDENTITY_LABELS.items() if values.get(label)
    }
    sender = ",".join(values[label] for label in REPLICA_LABELS if values.get(label))
    return Series(
        named.name,
        exporter,
        key,
        exporters.scale_of(row, unit),
        identity,
        run_of(values),
        labels_of(values),
        sender[: limits.MAX_LABEL_BYTES],
        named,
    )


def row_of(name: str, values: Mapping[str, str]) -> Row | None:
    """Return the row of a series: of several with its name, the one whose labels it has."""
    _, rows = ROWS.get(name, ("", ()))
    return next(
        (r for r in rows if all(values.get(label) in wanted for label, wanted in r.labels)), None
    )


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
    """What labels say, by the labels; forgotten when they take too much memory.

    Most labels are those of many series, and are kept once.
    """

    def __init__(self, most_bytes: int = MAX_KNOWN_BYTES) -> None:
        self._most_bytes = most_bytes
        self._n_bytes = 0
        self._labels: dict[bytes, bytes] = {}
        self._series: dict[tuple[bytes, ...], Series | None] = {}

    def of(
        self, labels: tuple[bytes, ...], decode: Callable[[], Iterable[tuple[str, str]]]
    ) -> Series | None:
        """Return the series of labels; ``decode`` gives their names and values if it is new."""
        try:
            return self._series[labels]
        except KeyError:
            pass
        check_labels(len(labels), max(map(len, labels), default=0))
        series = recognise(tuple(decode()))
        new = sum(len(label) + LABEL_BYTES for label in labels if label not in self._labels)
        self._n_bytes += new + SERIES_BYTES
        if self._n_bytes > self._most_bytes:
            self._labels, self._series, self._n_bytes = {}, {}, new + SERIES_BYTES
        self._series[tuple(self._labels.setdefault(label, label) for label in labels)] = series
        return series


# Of all protocols: their labels are encoded differently.
known_series = KnownSeries()


def _recognise_encoded(encoded: Sequence[bytes]) -> Series | None:
    """Read the labels of a series, each as a Label's bytes."""
    labels = (Label.FromString(each) for each in encoded)
    return known_series.of(tuple(encoded), lambda: ((label.name, label.value) for label in labels))


def _name_of(encoded: Sequence[bytes]) -> str:
    """Return the name of a series by its labels, each as a Label's bytes."""
    named = next((each for each in encoded if each.startswith(ENCODED_NAME)), b"")
    return str(Label.FromString(named).value)


def labels_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a node by those of a series.

    A plain ``pod`` or ``namespace`` is that of the exporter, unless the exporter names a pod.
    """
    surroundings = {
        name: next((labels[each] for each in given if labels.get(each)), "")
        for name, given in SURROUNDINGS.items()
    }
    if labels.get("pod_name"):
        surroundings["namespace"] = surroundings["namespace"] or labels.get("namespace", "")
    return {
        name: value[:MAX_LABEL_CHARS]
        for name, value in surroundings.items()
        if value and value.isprintable()
    }


def run_of(labels: Mapping[str, str]) -> str:
    """Name the run of a series: its label ``run``, else the job of its pod; empty: unknown."""
    run = labels.get(RUN_LABEL, "")
    if not run:
        pod = next((labels[label] for label in POD_LABELS if labels.get(label)), "")
        run = match[1] if (match := POD.fullmatch(pod)) else pod
    return run_name(run)
