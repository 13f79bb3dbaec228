"""Encoded requests are read by protobuf and snappy."""

import cramjam
import numpy as np
import pytest

from telemetry.long_term import remote_write
from telemetry.write_request import TimeSeries, WriteRequest

NOON_MS = 1_795_262_400_000
TIMES = [NOON_MS, NOON_MS + 1_000, NOON_MS + 2_000]


def read(body: bytes) -> list[tuple[dict[str, str], list[tuple[int, float]]]]:
    message = WriteRequest.FromString(bytes(cramjam.snappy.decompress_raw(body)))
    return [
        (
            {label.name: label.value for label in series.labels},
            [(sample.timestamp, sample.value) for sample in series.samples],
        )
        for series in message.timeseries
    ]


def test_protobuf_reads_what_was_written() -> None:
    heads = [
        remote_write.series("up", (("node", "a"),)),
        remote_write.series("up", (("node", "b"),)),
    ]
    values = np.array([[1.0, 2.5, -1e300], [0.0, np.inf, 5e-324]])

    assert read(remote_write.request(heads, values, np.array(TIMES))) == [
        ({"__name__": "up", "node": "a"}, list(zip(TIMES, values[0].tolist(), strict=True))),
        ({"__name__": "up", "node": "b"}, list(zip(TIMES, values[1].tolist(), strict=True))),
    ]


def test_what_is_absent_is_not_sent() -> None:
    heads = [remote_write.series("x", (("node", name),)) for name in "abc"]
    values = np.array([[np.nan, 2.0, np.nan], [np.nan] * 3, [0.0, np.nan, 3.0]])

    found = read(remote_write.request(heads, values, np.array(TIMES)))

    assert [(labels["node"], samples) for labels, samples in found] == [
        ("a", [(TIMES[1], 2.0)]),
        ("c", [(TIMES[0], 0.0), (TIMES[2], 3.0)]),
    ]


def test_each_series_may_have_times_of_its_own() -> None:
    heads = [remote_write.series("x", (("node", name),)) for name in "ab"]

    found = read(
        remote_write.request(heads, np.ones((2, 1)), np.array([[NOON_MS], [NOON_MS + 999]]))
    )

    assert [samples[0][0] for _, samples in found] == [NOON_MS, NOON_MS + 999]


def test_labels_stand_in_order_and_empty_ones_are_left_out() -> None:
    head = remote_write.series(
        "m", (("zone", "z"), ("Upper", "u"), ("node", 'a"\\\n'), ("none", ""))
    )
    labels = [(label.name, label.value) for label in TimeSeries.FromString(head).labels]

    assert labels == [("Upper", "u"), ("__name__", "m"), ("node", 'a"\\\n'), ("zone", "z")]


def test_a_sample_is_what_protobuf_would_write() -> None:
    values, times = np.random.default_rng(0).standard_normal(64), TIMES[0] + np.arange(64)
    by_the_book = TimeSeries(
        samples=[
            {"value": value, "timestamp": time}
            for value, time in zip(values.tolist(), times.tolist(), strict=True)
        ]
    )

    assert remote_write.samples(values, times).tobytes() == by_the_book.SerializeToString()


def test_a_zero_is_read_as_one() -> None:
    assert read(
        remote_write.request([remote_write.series("x", ())], np.zeros((1, 1)), np.array(TIMES[:1]))
    ) == [({"__name__": "x"}, [(TIMES[0], 0.0)])]


@pytest.mark.parametrize("moment", [1_795_262_400, NOON_MS * 1000])
def test_a_time_in_other_units_is_refused(moment: int) -> None:
    with pytest.raises(ValueError, match=r"times_ms: .*expected milliseconds"):
        remote_write.samples(np.ones(1), np.array([moment]))


def test_nothing_is_an_empty_request() -> None:
    assert read(remote_write.request([], np.zeros((0, 3)), np.array(TIMES))) == []


def test_many_samples_need_longer_lengths() -> None:
    times = NOON_MS + 1_000 * np.arange(5_000)
    found = read(remote_write.request([remote_write.series("x", ())], np.ones((1, 5_000)), times))

    assert len(found[0][1]) == 5_000
