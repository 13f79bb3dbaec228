"""Rollups in the database: minutes become hours, once, in little space."""

import numpy as np
import pytest

from telemetry.blocks import Span
from telemetry.store import durable
from telemetry.store.history import node_series
from telemetry.store.hot import HotStore
from telemetry.store.models import HourRollup, MinuteRollup, RunChunk
from telemetry.store.rollups import as_stored, roll_up
from tests.helpers import NOON_S, steps
from tests.telemetry.store.samples import training

pytestmark = pytest.mark.django_db
CORES = "core_utilization_ratio"
HOUR_S = 3600


def minutes_kept() -> list[int]:
    rows = MinuteRollup.objects.order_by("minute")
    return [(minute - NOON_S) // 60 for minute in rows.values_list("minute", flat=True)]


def hours_kept() -> list[int]:
    rows = HourRollup.objects.order_by("hour").values_list("hour", flat=True).distinct()
    return [(hour - NOON_S) // HOUR_S for hour in rows]


def means(hot: HotStore, node: str = "steady", *, last_s: int = 3 * HOUR_S) -> np.ndarray:
    """Return the mean utilization of a node's cores, minute by minute."""
    series = node_series(
        hot, shard="llama/0", node=node, metric=CORES, start=NOON_S, end=NOON_S + last_s - 1
    )
    return series.values


def stretch(span: Span, first: int, end: int) -> Span:
    """Cut minutes [first, end) out of a span of seconds."""
    rows = slice(first * 60, end * 60)
    values = {name: array[rows] for name, array in span.values.items()}
    return Span(span.shard, span.ticks[rows], span.nodes, values)


def test_a_minute_written_twice_is_one_minute(hot: HotStore) -> None:
    durable.write_rollups(training(n_ticks=180))
    before = means(hot)
    durable.write_rollups(training(n_ticks=180))

    assert minutes_kept() == [0, 1, 2]
    np.testing.assert_array_equal(means(hot), before)


def test_a_minute_written_again_is_replaced(hot: HotStore) -> None:
    durable.write_rollups(training(n_ticks=60))
    repeated = training(n_ticks=60, seed=1)
    durable.write_rollups(repeated)

    expected = as_stored(CORES, roll_up(repeated).values[CORES])[0, 0].reshape(3, -1)[1]
    np.testing.assert_array_equal(means(hot)[0], expected)


def test_a_settled_hour_is_written_at_once() -> None:
    durable.write_rollups(training(n_ticks=90 * 60))

    assert hours_kept() == [0]
    assert minutes_kept() == list(range(60, 90))


def test_minutes_become_an_hour_when_it_is_settled(hot: HotStore) -> None:
    span = training(n_ticks=75 * 60)
    for minute in range(69):
        durable.write_rollups(stretch(span, minute, minute + 1))
    assert hours_kept() == []
    before = means(hot)

    durable.write_rollups(stretch(span, 69, 75))

    assert hours_kept() == [0]
    assert minutes_kept() == list(range(60, 75))
    np.testing.assert_array_equal(means(hot)[:69], before[:69])


def test_a_late_minute_finds_its_place_in_its_hour(hot: HotStore) -> None:
    span = training(n_ticks=130 * 60)
    durable.write_rollups(stretch(span, 0, 20))
    durable.write_rollups(stretch(span, 21, 130))
    assert np.isnan(means(hot)[20]).all()
    durable.write_rollups(stretch(span, 20, 21))
    durable.write_rollups(stretch(span, 125, 130))

    expected = as_stored(CORES, roll_up(span).values[CORES])[:, 0, 64:128]
    np.testing.assert_array_equal(means(hot)[:130], expected)
    assert hours_kept() == [0, 1]


def test_however_it_is_cut_the_same_is_kept(hot: HotStore) -> None:
    span = training(n_ticks=150 * 60, every_s=1)
    for first, end in [(0, 7), (7, 61), (61, 119), (119, 150)]:
        durable.write_rollups(stretch(span, first, end))
    pieces = means(hot)
    HourRollup.objects.all().delete()
    MinuteRollup.objects.all().delete()
    durable.write_rollups(span)

    np.testing.assert_array_equal(means(hot), pieces)


def test_a_node_that_joins_in_mid_hour_has_no_past(hot: HotStore) -> None:
    durable.write_rollups(training(nodes=("steady",), n_ticks=30 * 60))
    both = training(nodes=("limping", "steady"), start=NOON_S + 1800, n_ticks=3000)
    durable.write_rollups(both)

    known = np.isfinite(means(hot, "limping")).all(axis=1)
    assert np.flatnonzero(known).tolist() == list(range(30, 80))
    assert np.isfinite(means(hot)[:80]).all()


def test_a_day_takes_half_a_byte_per_core_sample_at_most() -> None:
    nodes = ("steady", "limping")
    durable.write_rollups(training(nodes=nodes, n_ticks=6 * HOUR_S))
    batch = steps(workers=nodes, n_steps=10_000, compute_s=1.2, wait_s=[0.0, 0.4], transfer_s=0.3)
    durable.write_steps(batch)

    n_bytes = sum(
        len(row)
        for rows in (
            HourRollup.objects.values_list("data"),
            MinuteRollup.objects.values_list("data", "layout"),
            RunChunk.objects.values_list("steps", "minutes", "workers"),
        )
        for fields in rows
        for row in fields
    )
    assert n_bytes / (len(nodes) * 64 * 6 * HOUR_S) <= 0.5


def test_what_is_old_is_forgotten() -> None:
    durable.write_rollups(training(n_ticks=130 * 60))
    durable.write_steps(steps(n_steps=130 * 60, compute_s=1.0))

    durable.delete_older_than(1 / 24, now_s=NOON_S + 2 * HOUR_S + 5 * 60)

    assert hours_kept() == [1]
    assert minutes_kept() == list(range(120, 130))
    assert RunChunk.objects.filter(start__lt=NOON_S + HOUR_S).count() == 0
    assert RunChunk.objects.count() > 0


def test_nothing_is_written_of_nothing() -> None:
    durable.write_rollups(training(n_ticks=0))
    durable.write_rollups(training(n_ticks=30))
    durable.write_steps(steps(n_steps=0))

    assert (MinuteRollup.objects.count(), RunChunk.objects.count()) == (0, 0)
