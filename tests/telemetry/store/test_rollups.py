"""Minutes: minimum, mean and maximum equal a simple loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.blocks import Span, highest, lowest, mean
from telemetry.store.rollups import (
    TEN_MINUTES_S,
    TOGETHER,
    Minutes,
    as_stored,
    decode_day,
    decode_hour,
    encode_day,
    encode_hour,
    merge_minutes,
    roll_up,
    ten_minutes,
)
from telemetry.units import DAY_S
from tests.helpers import NOON_S
from tests.telemetry.store.samples import training

CORES = "core_utilization_ratio"
HBM = "hbm_bandwidth_bytes_per_s"


def by_the_book(span: Span, name: str) -> dict[tuple[int, int, int], tuple[float, ...]]:
    """Roll up sample by sample: (minute, node, part) to lowest, mean, highest."""
    samples: dict[tuple[int, int, int], list[float]] = {}
    for tick, per_node in zip(span.ticks.tolist(), span.values[name], strict=True):
        for node, per_part in enumerate(per_node):
            for part, value in enumerate(per_part.tolist()):
                if value == value:  # noqa: PLR0124 (NaN differs from itself)
                    samples.setdefault((tick // 60 * 60, node, part), []).append(value)
    return {key: (min(s), sum(s) / len(s), max(s)) for key, s in samples.items()}


def with_gaps(span: Span, ratio: float) -> Span:
    """Make readings vanish at random, and one node's for good."""
    rng = np.random.default_rng(1)
    values = {n: np.where(rng.random(a.shape) < ratio, np.nan, a) for n, a in span.values.items()}
    for array in values.values():
        array[:, 1] = np.nan
    return Span(span.shard, span.ticks, span.nodes, values, span.every_s)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.99])
def test_it_agrees_with_the_loop(ratio: float) -> None:
    span = with_gaps(training(n_ticks=180), ratio)

    minutes = roll_up(span)

    for name in (CORES, HBM):
        found = {
            (int(minute), node, part): tuple(minutes.values[name][i, node].reshape(3, -1)[:, part])
            for i, minute in enumerate(minutes.minutes)
            for node in range(2)
            for part in range(minutes.values[name].shape[2] // 3)
        }
        expected = by_the_book(span, name)
        assert {key for key, stats in found.items() if stats[1] == stats[1]} == expected.keys()
        for key, stats in expected.items():
            assert found[key] == pytest.approx(stats)


@given(first=st.integers(-59, 59), n_ticks=st.integers(0, 300))
def test_only_minutes_that_are_covered_are_rolled_up(first: int, n_ticks: int) -> None:
    ticks = np.arange(NOON_S + first, NOON_S + first + n_ticks)
    span = Span("s", ticks, ("a",), {CORES: np.ones((n_ticks, 1, 1))})

    held = set(ticks.tolist())
    whole = [m for m in range(NOON_S - 60, NOON_S + 360, 60) if {*range(m, m + 60)} <= held]
    assert roll_up(span).minutes.tolist() == whole


@pytest.mark.parametrize("offset", [0, 3, 9])
def test_a_thinned_span_covers_a_minute_wherever_its_samples_lie(offset: int) -> None:
    span = training(start=NOON_S + offset, n_ticks=18, every_s=10)

    assert roll_up(span).minutes.tolist() == [NOON_S, NOON_S + 60, NOON_S + 120]


def test_a_minute_without_a_report_is_left_out() -> None:
    span = training(n_ticks=180)
    for array in span.values.values():
        array[60:120] = np.nan

    assert roll_up(span).minutes.tolist() == [NOON_S, NOON_S + 120]


def test_an_empty_span_has_no_minutes() -> None:
    assert roll_up(training(n_ticks=0)).minutes.tolist() == []


def test_thinning_must_divide_a_minute() -> None:
    with pytest.raises(ValueError, match="every_s: 7 s does not divide a minute"):
        roll_up(training(n_ticks=20, every_s=7))


def test_a_node_of_an_hour_is_read_alone() -> None:
    minutes = roll_up(training(n_ticks=3600, every_s=1))
    [(key, data)] = encode_hour(minutes)
    for name, values in minutes.values.items():
        whole = decode_hour(key, NOON_S, data, metric=name)
        alone = decode_hour(key, NOON_S, data, "limping", name)
        assert whole is not None
        assert alone is not None
        assert alone.nodes == ("limping",)
        np.testing.assert_array_equal(alone.values[name][:, 0], whole.values[name][:, 1])
        np.testing.assert_allclose(whole.values[name], values, rtol=0.004, atol=0.003)
        assert decode_hour(key, NOON_S, data, "missing") is None
        assert decode_hour(key, NOON_S, data, metric="missing") is None


def test_an_hour_of_many_nodes_is_a_row_per_metric() -> None:
    few = roll_up(training(n_ticks=3600, every_s=1))
    nodes = tuple(f"node-{i}" for i in range(12))
    many = roll_up(training(nodes=nodes, n_ticks=3600, every_s=1))

    assert [key for key, _ in encode_hour(few)] == [TOGETHER]
    rows = dict(encode_hour(many))
    assert rows.keys() == many.values.keys()
    alone = decode_hour(CORES, NOON_S, rows[CORES], "node-7")
    assert alone is not None
    np.testing.assert_allclose(alone.values[CORES][:, 0], many.values[CORES][:, 7], atol=0.003)


def test_ten_minutes_agree_with_the_loop() -> None:
    minutes = roll_up(with_gaps(training(n_ticks=7200), 0.9))
    kept = minutes.where(np.delete(np.arange(len(minutes.minutes)), [3, *range(40, 50)]))

    rows = ten_minutes(kept)

    assert ((rows.minutes - NOON_S) // 60).tolist() == [m for m in range(0, 120, 10) if m != 40]
    for name in (CORES, HBM):
        for start, stats in zip(rows.minutes, rows.values[name], strict=True):
            of_row = (kept.minutes >= start) & (kept.minutes < start + TEN_MINUTES_S)
            known = kept.values[name][of_row, 0].reshape(of_row.sum(), 3, -1)
            low, mean, high = stats[0].reshape(3, -1)
            np.testing.assert_array_equal(low, np.nanmin(known[:, 0], axis=0))
            np.testing.assert_allclose(mean, np.nanmean(known[:, 1], axis=0))
            np.testing.assert_array_equal(high, np.nanmax(known[:, 2], axis=0))
            assert np.isnan(stats[1]).all()


def day_of(rows: Minutes) -> Minutes:
    """Write and read a day."""
    read = decode_day(NOON_S // DAY_S * DAY_S, encode_day(rows))
    assert read is not None
    assert read.minutes.tolist() == rows.minutes.tolist()
    return read


def test_of_a_day_the_parts_that_stand_out_are_kept_and_the_others_as_one() -> None:
    span = training(nodes=("a", "b"), n_ticks=7200)
    cores = span.values[CORES]
    cores[:, 1, 5] *= 0.9
    # For 20 s, in the second ten minutes.
    cores[610:630, 0, 63] = 0.0
    cores[:, 0, 7] = np.nan
    span.values[HBM][:, 0, 8:] = 0.0
    rows = ten_minutes(roll_up(span))

    read = day_of(rows)

    for name, packed in rows.values.items():
        stats, kept = (a.reshape(len(a), 2, 3, -1) for a in (packed, read.values[name]))
        # Extremes are exact, and sums but for rounding.
        rounded = as_stored(name, stats)
        np.testing.assert_array_equal(lowest(kept[:, :, 0], 2), lowest(rounded[:, :, 0], 2))
        np.testing.assert_array_equal(highest(kept[:, :, 2], 2), highest(rounded[:, :, 2], 2))
        np.testing.assert_allclose(
            mean(kept[:, :, 1], 2), mean(stats[:, :, 1], 2), rtol=0.004, atol=0.003
        )
    cores_kept = read.values[CORES].reshape(len(rows.minutes), 2, 3, 64)
    exact = as_stored(CORES, rows.values[CORES]).reshape(cores_kept.shape)
    np.testing.assert_array_equal(cores_kept[:, 1, :, 5], exact[:, 1, :, 5])
    np.testing.assert_array_equal(cores_kept[1, 0, :, 63], exact[1, 0, :, 63])
    assert np.isnan(cores_kept[:, 0, :, 7]).all()
    # Half of the devices are idle: each half stands out from what is between them.
    hbm = read.values[HBM].reshape(len(rows.minutes), 2, 3, 16)
    assert (hbm[:, 0, :, 8:] == 0).all()
    assert (hbm[:, 0, 1, :8] > 1e12).all()
    # Most of all others are stored as one.
    others = np.delete(cores_kept[:, 1, 1], 5, axis=1)
    assert np.mean([len(np.unique(row)) for row in others]) < 63 / 2


@pytest.mark.parametrize("n_parts", [1, 2, 3])
def test_of_few_parts_a_day_keeps_each(n_parts: int) -> None:
    values = training(nodes=("a", "b"), n_ticks=3600).values[CORES][:, :, :n_parts]
    ticks = np.arange(NOON_S, NOON_S + 3600)
    rows = ten_minutes(roll_up(Span("s", ticks, ("a", "b"), {CORES: values})))

    np.testing.assert_array_equal(day_of(rows).values[CORES], as_stored(CORES, rows.values[CORES]))


def test_of_two_pieces_the_later_holds_and_parts_may_be_added() -> None:
    old = roll_up(training(nodes=("a", "b"), n_ticks=120))
    new = roll_up(training(nodes=("b", "c"), start=NOON_S + 60, n_ticks=120, seed=1))
    narrow = {CORES: np.concatenate([old.values[CORES][:, :, i : i + 2] for i in (0, 64, 128)], 2)}
    few = type(old)(old.shard, old.minutes, old.nodes, narrow)

    joined = merge_minutes("s", [few, new])

    assert joined.nodes == ("a", "b", "c")
    assert joined.minutes.tolist() == [NOON_S, NOON_S + 60, NOON_S + 120]
    np.testing.assert_array_equal(joined.values[CORES][1, 1], new.values[CORES][0, 0])
    first = joined.values[CORES][0, 0].reshape(3, 64)
    np.testing.assert_array_equal(first[:, :2], old.values[CORES][0, 0].reshape(3, 64)[:, :2])
    assert np.isnan(first[:, 2:]).all()
