"""What one request may hold: it is counted on the wire, before objects are made of it."""

import re
import time
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from bench.bodies import Body, exports, field, label, sample, write_requests
from telemetry.ingest import limits, otlp
from telemetry.ingest.columns import MAX_EXPANDED_BYTES, MAX_NUMBERS, read_columns
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.neuron_monitor import decode_line
from telemetry.ingest.prometheus import KnownSeries, WrittenSamples, samples_of

NOW_MS = 1_750_000_000_000
# Of the CPU time of the largest body that is taken, on the same machine. Most refusals take
# hundredths of it; without limits, reading any of these took ten times as long.
MOST_CPU_RATIO = 3.0


def refusal_of(read: Callable[[], WrittenSamples]) -> tuple[str, int, float]:
    """Give the reason if it is refused, the number of samples, and the seconds of CPU time."""
    began_s = time.process_time()
    try:
        found = read()
        result = "", sum(map(len, found.by_node.values()))
    except RefusedError as error:
        result = str(error), 0
    return *result, time.process_time() - began_s


def check_time(reads: Mapping[str, Callable[[], WrittenSamples]], cpu_s: dict[str, float]) -> None:
    """Compare bodies, by what they are, with the largest one that is taken.

    What took long is read once more: a machine may be slow for a moment.
    """
    most_s = MOST_CPU_RATIO * max(took_s for what, took_s in cpu_s.items() if "taken" in what)
    again = {what: refusal_of(reads[what])[2] for what in reads if cpu_s[what] > most_s}
    assert {what: took_s for what, took_s in again.items() if took_s > most_s} == {}


# The field, its limit and what to do; or what it should have been.
SAID = re.compile(r"(more than|one of) [\d,]+.*Send fewer|is not an? (WriteRequest|ExportM)")


def test_no_write_request_takes_long() -> None:
    cpu_s = {}
    reads = {what: partial(samples_of, each) for what, each in write_requests(NOW_MS).items()}
    for what, read in reads.items():
        reason, n_samples, cpu_s[what] = refusal_of(read)
        expected = 18_000 if "taken" in what else 4 if "no time" in what else 0
        assert (what, n_samples) == (what, expected)
        assert not reason or SAID.search(reason), what
    check_time(reads, cpu_s)


def samples_of_export(body: Body) -> WrittenSamples:
    return otlp.samples_of(otlp.decode(body.content, is_json="json" in body.kind))


def test_no_export_takes_long() -> None:
    cpu_s = {}
    bodies = {what: body for what, body in exports(NOW_MS).items() if not body.encoding}
    reads = {what: partial(samples_of_export, body) for what, body in bodies.items()}
    for what, read in reads.items():
        reason, n_samples, cpu_s[what] = refusal_of(read)
        expected = 40_000 if "40,000" in what else 90_000 if "taken" in what else 0
        assert (what, n_samples) == (what, expected)
        assert not reason or SAID.search(reason), what
    check_time(reads, cpu_s)


def test_empty_messages_are_refused_by_name() -> None:
    with pytest.raises(RefusedError, match="resource_metrics: has more than 20,000"):
        otlp.decode(field(1, b"") * 20_001, is_json=False)
    with pytest.raises(RefusedError, match="timeseries: has more than 20,000"):
        samples_of(field(1, b"") * 20_001)
    assert samples_of(field(1, b"") * 20_000).n_ignored == 20_000


def test_packed_numbers_count_as_fields() -> None:
    # Histograms are not used, and their buckets take eight times the room once read.
    buckets = field(9, field(1, field(6, b"\x01" * (limits.MAX_FIELDS + 1))))
    with pytest.raises(RefusedError, match="2,000,000 fields"):
        otlp.decode(field(1, field(2, field(2, buckets))), is_json=False)


def in_metric(*path: int) -> tuple[int, ...]:
    """Return the way to a field of a metric, by the numbers of its messages."""
    return 1, 2, 2, *path


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("exemplars", in_metric(5, 1, 5)),
        ("quantile_values", in_metric(11, 1, 6)),
        ("metadata", in_metric(12)),
        ("entity_refs", (1, 1, 3)),
        ("id_keys", (1, 1, 3, 3)),
        # Of a list, and of a list of pairs, in an attribute.
        ("values", (1, 1, 1, 2, 5, 1)),
        ("values", (1, 1, 1, 2, 6, 1)),
    ],
)
def test_lists_that_are_not_used_have_a_limit_each(name: str, path: tuple[int, ...]) -> None:
    body = field(path[-1], b"") * (limits.MAX_OTHERS + 1)
    for number in reversed(path[:-1]):
        body = field(number, body)
    with pytest.raises(RefusedError, match=f"{name}: has more than 100,000"):
        otlp.decode(body, is_json=False)


def test_a_series_too_large_is_refused_and_one_with_long_labels_rejected() -> None:
    core = label("__name__", "neuroncore_utilization_ratio") + label("node", "n")
    one = sample(0.5, NOW_MS)
    good = field(1, core + label("neuroncore", "0") + one)
    long = field(1, core + label("neuroncore", "1") + label("x", "y" * 3_000) + one)
    many = field(1, core + b"".join(label(f"l{i}", "") for i in range(70)) + one + one)
    found = samples_of(good + long + many)
    assert (len(found.by_node["n"]), found.n_rejected) == (1, 3)
    assert "at most 2,048: drop it" in found.reason
    with pytest.raises(RefusedError, match="has one of 300,") as refused:
        samples_of(good + field(1, core + label("x", "y" * 300_000) + one))
    assert refused.value.field == "timeseries"


# A group: proto3 has none, so senders write none, and none is looked into. protobuf skips it.
@example(body=b"\x73\x74")
@given(body=st.binary(max_size=200))
def test_what_is_no_message_is_no_message_for_the_count_either(body: bytes) -> None:
    try:
        limits.check_fields(body, ExportMetricsServiceRequest, limits.OTLP_FIELDS)
    except DecodeError as error:
        if "wire type 3" in str(error):
            return
        with pytest.raises(DecodeError):
            ExportMetricsServiceRequest.FromString(body)


def test_a_line_of_too_many_values_is_refused() -> None:
    line = b'{"neuron_runtime_data":[' + b"{}," * limits.MAX_LINE_VALUES + b"{}]}"
    with pytest.raises(RefusedError, match="more than 200,000 values"):
        decode_line(line)


@pytest.mark.parametrize(
    ("holes", "text"), [(MAX_NUMBERS // 1_000 + 1, 0), (0, MAX_EXPANDED_BYTES // 1_000)]
)
def test_columns_cannot_multiply_without_end(holes: int, text: int) -> None:
    numbers = ",".join(map(str, range(1, 1_001)))
    template = "{" + r"\u007f" * holes + " " * text + "}"
    line = (
        f'{{"columns":{{"stream":"abcdefgh","seq":[{numbers}],"at":[{numbers}],'
        f'"template":"{template}","once":"","varies":[],"more":""}}}}'
    )
    with pytest.raises(RefusedError, match="Send fewer reports") as refused:
        read_columns(line.encode())
    assert refused.value.field == "columns.template"


def test_little_may_be_packed_in_any_ratio_and_nothing_above_the_limit() -> None:
    assert limits.most_unpacked(10, 16_000_000) == 65_536
    assert limits.most_unpacked(10_000, 16_000_000) == 500_000
    assert limits.most_unpacked(10_000_000, 16_000_000) == 16_000_000


def test_known_series_take_little_memory_and_are_told_apart() -> None:
    known = KnownSeries(most_bytes=1_000_000)
    tracemalloc.start()
    try:
        for i in [*range(10_000), 0]:
            pairs = (
                ("__name__", "neuroncore_utilization_ratio"),
                ("node", "n"),
                ("neuroncore", str(i)),
                ("x", "y" * 200),
            )
            labels = tuple(f"{key}={text}".encode() for key, text in pairs)
            series = known.of(labels, pairs.__iter__)
            assert series is not None
            assert series.key.part == str(i)
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()
    # The same bytes, divided in another way.
    assert known.of((b"0", b"1"), lambda: ()) is known.of((b"01",), lambda: ()) is None
