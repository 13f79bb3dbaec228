"""Metrics by OTLP, as the series that Prometheus' exporters give: decode and translate.

Names and labels are translated as OpenTelemetry specifies for Prometheus. What is read, and how
it is assembled, is the same as for remote write.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    DataPointFlags,
    Metric,
    NumberDataPoint,
)

from telemetry.ingest import exporters, limits
from telemetry.ingest.exporters import ROWS
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.prometheus import (
    RejectedError,
    Series,
    WrittenSamples,
    check_labels,
    known_series,
    row_of,
)

NS_PER_MS, NS_PER_S = 1_000_000, 1e9
# Resource attributes as labels. A pod among them is that of the exporter, not of the training job.
NAMES = {
    "node": "node",
    "k8s.node.name": "k8s_node_name",
    "host.name": "host_name",
    "host.id": "instance_id",
}
RESOURCE_LABELS = NAMES | {
    "host.type": "instance_type",
    "cloud.availability_zone": "availability_zone",
    "run": "run",
}
# Names the node where no other attribute does: it may be a number of the collector's process.
SERVICE = "service.instance.id"
# By unit, what exporters append to names; and what they do after they have converted it.
UNITS = {
    "s": ("seconds",),
    "ms": ("milliseconds", "seconds"),
    "us": ("microseconds", "seconds"),
    "ns": ("nanoseconds", "seconds"),
    "By": ("bytes",),
    **dict.fromkeys(("KiBy", "MiBy", "GiBy", "kBy", "MBy", "GBy"), ("bytes",)),
    "%": ("percent", "ratio"),
    "percent": ("percent", "ratio"),
    "1": ("ratio",),
}
NAMED = "docs/real-nodes.md has the names that are"
NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]+")


# An export in JSON, as far as it is read: a general reader of protobuf's JSON takes ten times the
# memory and time. Numbers of 64 bits may be texts, and null is what is missing.
Number = int | float | str | None


class _Value(msgspec.Struct, rename="camel", gc=False):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Number = None
    double_value: Number = None


class _Attribute(msgspec.Struct, gc=False):
    key: str | None = None
    value: _Value | None = None


class _Point(msgspec.Struct, rename="camel", gc=False):
    attributes: list[_Attribute] | None = None
    time_unix_nano: Number = None
    start_time_unix_nano: Number = None
    as_double: Number = None
    as_int: Number = None
    flags: Number = None


class _Data(msgspec.Struct, rename="camel", gc=False):
    data_points: list[_Point] | None = None
    aggregation_temporality: Number = None
    is_monotonic: bool | None = None


class _Other(msgspec.Struct, gc=False):
    """Data of a kind that is not used."""


class _Metric(msgspec.Struct, rename="camel", gc=False):
    name: str | None = None
    description: str | None = None
    unit: str | None = None
    gauge: _Data | None = None
    sum: _Data | None = None
    histogram: _Other | None = None
    exponential_histogram: _Other | None = None
    summary: _Other | None = None


class _Scope(msgspec.Struct, gc=False):
    metrics: list[_Metric] | None = None


class _Attributed(msgspec.Struct, gc=False):
    attributes: list[_Attribute] | None = None


class _Resource(msgspec.Struct, rename="camel", gc=False):
    resource: _Attributed | None = None
    scope_metrics: list[_Scope] | None = None


class _Export(msgspec.Struct, rename="camel", gc=False):
    resource_metrics: list[_Resource] | None = None


_EXPORT = msgspec.json.Decoder(_Export)


def _fill(request: ExportMetricsServiceRequest, export: _Export) -> None:
    """Fill a message with what its JSON says; raises ValueError for a number that is none."""
    n_points = sum(
        len(data.data_points or ())
        for resource in export.resource_metrics or ()
        for scope in resource.scope_metrics or ()
        for metric in scope.metrics or ()
        for data in (metric.gauge, metric.sum)
        if data is not None
    )
    if n_points > limits.MAX_SAMPLES:
        raise limits.too_many("data_points", limits.MAX_SAMPLES)
    for resource in export.resource_metrics or ():
        of_resource = request.resource_metrics.add()
        if resource.resource:
            of_resource.resource.SetInParent()
            _fill_attributes(of_resource.resource.attributes, resource.resource.attributes)
        for scope in resource.scope_metrics or ():
            of_scope = of_resource.scope_metrics.add()
            for metric in scope.metrics or ():
                _fill_metric(of_scope.metrics.add(), metric)


def _fill_metric(message: Metric, metric: _Metric) -> None:
    message.name, message.unit = metric.name or "", metric.unit or ""
    message.description = metric.description or ""
    for kind in ("histogram", "exponential_histogram", "summary"):
        if getattr(metric, kind) is not None:
            getattr(message, kind).SetInParent()
    for data, filled in ((metric.gauge, message.gauge), (metric.sum, message.sum)):
        if data is None:
            continue
        filled.SetInParent()
        for point in data.data_points or ():
            _fill_point(filled.data_points.add(), point)
    if metric.sum is not None:
        temporality = metric.sum.aggregation_temporality
        if isinstance(temporality, str) and not temporality.isdecimal():
            message.sum.aggregation_temporality = AggregationTemporality.Value(temporality)
        else:
            message.sum.aggregation_temporality = AggregationTemporality.ValueType(
                _whole(temporality)
            )
        message.sum.is_monotonic = bool(metric.sum.is_monotonic)


def _fill_point(message: NumberDataPoint, point: _Point) -> None:
    _fill_attributes(message.attributes, point.attributes)
    message.time_unix_nano = _whole(point.time_unix_nano)
    message.start_time_unix_nano = _whole(point.start_time_unix_nano)
    message.flags = _whole(point.flags)
    if point.as_double is not None:
        message.as_double = float(point.as_double)
    elif point.as_int is not None:
        message.as_int = _whole(point.as_int)


def _fill_attributes(messages: Any, attributes: Iterable[_Attribute] | None) -> None:
    for attribute in attributes or ():
        message, value = messages.add(key=attribute.key or ""), attribute.value
        if value is None:
            continue
        if value.string_value is not None:
            message.value.string_value = value.string_value
        elif value.bool_value is not None:
            message.value.bool_value = value.bool_value
        elif value.int_value is not None:
            message.value.int_value = _whole(value.int_value)
        elif value.double_value is not None:
            message.value.double_value = float(value.double_value)


def _whole(number: Number) -> int:
    """Read a whole number, which may be a text; none is 0."""
    if isinstance(number, float) and not number.is_integer():
        raise ValueError(f"{number:g} is not a whole number")
    # 64 bits have at most 20 digits and a sign.
    if isinstance(number, str) and len(number) > 21:
        raise ValueError(f"{number[:40]!r} is not a number of 64 bits")
    return int(number or 0)


def decode(body: bytes, *, is_json: bool) -> ExportMetricsServiceRequest:
    """Decode a request; raises RefusedError where it is none."""
    request = ExportMetricsServiceRequest()
    try:
        if is_json:
            if limits.count_values(body) > limits.MAX_JSON_VALUES:
                raise limits.too_many("body", limits.MAX_JSON_VALUES, " values")
            if body.count(b"{") > limits.MAX_JSON_OBJECTS:
                raise limits.too_many("body", limits.MAX_JSON_OBJECTS, " objects")
            _fill(request, _EXPORT.decode(body))
        else:
            limits.check_fields(body, ExportMetricsServiceRequest, limits.OTLP_FIELDS)
            request.ParseFromString(body)
    except RefusedError:
        raise
    except (DecodeError, ValueError, OverflowError, RecursionError) as error:
        reason = f"is not an ExportMetricsServiceRequest: {str(error)[:200]}"
        raise RefusedError("body", reason) from error
    return request


def samples_of(request: ExportMetricsServiceRequest) -> WrittenSamples:
    """Read gauges and sums. Metrics that no row describes are ignored, as is missing data."""
    samples = WrittenSamples()
    for of_resource in request.resource_metrics:
        attributes = _labels(of_resource.resource.attributes)
        of_node = {
            label: attributes[attribute]
            for attribute, label in RESOURCE_LABELS.items()
            if attributes.get(attribute)
        }
        if attributes.get(SERVICE) and not any(map(attributes.get, NAMES)):
            of_node["instance"] = attributes[SERVICE]
        unusable = _unusable(of_node)
        n_before, left_out = len(samples.by_node), list[Metric]()
        for scope in of_resource.scope_metrics:
            for metric in scope.metrics:
                name = next((name for name in _names(metric) if name in ROWS), None)
                kind = metric.WhichOneof("data")
                if name is None:
                    left_out.append(metric)
                    continue
                if kind not in {"gauge", "sum"}:
                    samples.reject(1, f"{metric.name[:100]} is a {kind}; send a gauge or a sum")
                    continue
                data = metric.gauge if kind == "gauge" else metric.sum
                if unusable:
                    samples.reject(len(data.data_points), unusable)
                    continue
                for point in data.data_points:
                    try:
                        _add(samples, name, metric, point, of_node)
                    except RejectedError as error:
                        samples.reject(1, f"{metric.name[:100]} {error}")
        _leave_out(samples, left_out, is_read=len(samples.by_node) > n_before)
    return samples


def _leave_out(found: WrittenSamples, metrics: Iterable[Metric], *, is_read: bool) -> None:
    """Ignore metrics without a row; where nothing else is read, say which an exporter gave."""
    for metric in metrics:
        name = NOT_IN_NAMES.sub("_", metric.name)
        if is_read or not exporters.is_of_known_exporter(name):
            found.n_ignored += 1
            continue
        kind = metric.WhichOneof("data")
        points = getattr(metric, kind).data_points if kind else ()
        reason = f"{metric.name[:100]} is not read, nor is anything else of its resource; {NAMED}"
        found.reject(max(1, len(points)), reason)


def _add(
    found: WrittenSamples,
    name: str,
    metric: Metric,
    point: NumberDataPoint,
    of_node: Mapping[str, str],
) -> None:
    """Add one data point. A delta becomes a rate, or is added up where a count is needed."""
    if point.flags & DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK:
        return
    kind = point.WhichOneof("value")
    if kind is None or not point.time_unix_nano:
        raise RejectedError("has a point without a value or without time_unix_nano")
    series = _series_of(name, metric, point, of_node)
    if series is None:
        found.n_ignored += 1
        return
    value = point.as_double if kind == "as_double" else float(point.as_int)
    if metric.HasField("sum"):
        temporality = metric.sum.aggregation_temporality
        if temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_UNSPECIFIED:
            raise RejectedError("is a sum without aggregation_temporality")
        if temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA:
            key = series.key
            if key.is_counter:
                period_s = (point.time_unix_nano - point.start_time_unix_nano) / NS_PER_S
                if not point.start_time_unix_nano or period_s <= 0 or value < 0:
                    raise RejectedError(
                        "has a delta below zero, or without a start_time_unix_nano before its time"
                    )
                # What happened in the rest of the second is not known.
                value /= max(period_s, 1.0)
                key = key._replace(is_counter=False)
            else:
                key = key._replace(is_delta=True)
            series = series._replace(key=key)
    found.add(series, [(point.time_unix_nano // NS_PER_MS, value)], protocol="OTLP")


def _series_of(
    name: str, metric: Metric, point: NumberDataPoint, of_node: Mapping[str, str]
) -> Series | None:
    """Read the labels of a data point; None if it is not used. Raises RejectedError."""
    attributes = _labels(point.attributes)
    if reason := _unusable(attributes):
        raise RejectedError(reason)
    own = {NOT_IN_NAMES.sub("_", key): text for key, text in attributes.items()}
    labels = {"__name__": name, **of_node, **own}
    if metric.unit:
        labels[exporters.UNIT] = metric.unit
    pairs = sorted(labels.items())
    encoded = tuple(f"{len(key)}:{key}{text}".encode() for key, text in pairs)
    series = known_series.of(encoded, lambda: pairs)
    if series is None:
        values = exporters.common_labels(pairs)
        row = row_of(name, values)
        if row is not None and row.part and not values.get(row.part):
            raise RejectedError(f"has a point without the attribute {row.part}")
    return series


def _unusable(labels: Mapping[str, str]) -> str:
    """Say why labels cannot be used: there are too many, or one is too long; else nothing."""
    try:
        longest = max((max(len(key), len(text)) for key, text in labels.items()), default=0)
        check_labels(len(labels), longest)
    except RejectedError as error:
        return str(error)
    return ""


def _names(metric: Metric) -> Iterator[str]:
    """Names that exporters of Prometheus may give a metric, with and without suffixes."""
    name = NOT_IN_NAMES.sub("_", metric.name)
    for stem in [*(f"{name}_{unit}" for unit in UNITS.get(metric.unit, ())), name]:
        yield f"{stem}_total"
        yield stem


def _labels(attributes: Iterable[KeyValue]) -> dict[str, str]:
    """Attributes that are texts, numbers or truth values, as texts."""
    labels: dict[str, str] = {}
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        value: Any = getattr(attribute.value, kind) if kind else None
        if isinstance(value, bool):
            labels[attribute.key] = str(value).lower()
        elif isinstance(value, str | int | float):
            labels[attribute.key] = str(value)
    return labels
