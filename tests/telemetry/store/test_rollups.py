"""Minutes: minimum, mean and maximum equal a simple loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.blocks import Span
from telemetry.store.rollups import decode_hour, encode_hour, merge_minutes, roll_up
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
    for name, data in encode_hour(minutes):
        whole, alone = decode_hour(name, NOON_S, data), decode_hour(name, NOON_S, data, "limping")
        assert whole is not None
        assert alone is not None
        assert alone.nodes == ("limping",)
        np.testing.assert_array_equal(alone.values[name][:, 0], whole.values[name][:, 1])
        np.testing.assert_allclose(
            whole.values[name], minutes.values[name], rtol=0.004, atol=0.003
        )
        assert decode_hour(name, NOON_S, data, "missing") is None


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
