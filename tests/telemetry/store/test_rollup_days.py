"""Minutes of more than two days ago become rows of ten, a day at a time."""

import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from telemetry.blocks import METRICS, Span
from telemetry.series import Series
from telemetry.store import durable
from telemetry.store.history import durable_from, merged_until, node_series
from telemetry.store.hot import HotStore
from telemetry.store.models import DayRollup, HourRollup, MinuteRollup
from telemetry.store.packing import codec, encode
from telemetry.store.rollups import as_stored, coarser, roll_up
from telemetry.units import DAY_S, HOUR_S
from tests.helpers import NOON_S, steps
from tests.telemetry.store.samples import training

pytestmark = pytest.mark.django_db
CORES, VCPU = "core_utilization_ratio", "vcpu_usage_ratio"
DAY = NOON_S // DAY_S * DAY_S
# The hour in which the day is two days old.
LATER_S = DAY + 3 * DAY_S


def of_day(first_h: int, end_h: int, **more: object) -> Span:
    """Return samples of some hours of the day."""
    n_ticks = (end_h - first_h) * HOUR_S // 10
    return training(start=DAY + first_h * HOUR_S, n_ticks=n_ticks, every_s=10, **more)  # type: ignore[arg-type]


def merge(now_s: float = LATER_S, *, n: int = 1000) -> bool:
    """Merge at most so many rows, as if each took a second."""
    clock = itertools.count()
    return durable.merge_old_hours(now_s=now_s, until_s=n, clock=lambda: next(clock))


def series(
    hot: HotStore, metric: str = CORES, node: str = "limping", *, start: int = DAY, end: int = 0
) -> Series:
    end = end or DAY + DAY_S - 1
    return node_series(hot, shard="llama/0", node=node, metric=metric, start=start, end=end)


def in_tens(found: Series) -> np.ndarray:
    """Return (n, 3, n_parts) of minutes by ten minutes."""
    assert found.every_s == 60
    assert found.low is not None
    assert found.high is not None
    return coarser(np.stack([found.low, found.values, found.high], axis=1), 10)


def stats_of(found: Series) -> np.ndarray:
    assert found.every_s == 600
    assert found.low is not None
    assert found.high is not None
    return np.stack([found.low, found.values, found.high], axis=1)


def test_a_day_reads_the_same_by_ten_minutes(hot: HotStore) -> None:
    span = of_day(0, 24)
    span.values[CORES][:, 1, 9] *= 0.8
    durable.write_rollups(span)
    durable.write_rollups(training(start=DAY + DAY_S, n_ticks=600))
    before = {metric: in_tens(series(hot, metric)) for metric in (CORES, VCPU)}

    assert merge()

    assert HourRollup.objects.filter(hour__lt=DAY + DAY_S).count() == 0
    after = {metric: stats_of(series(hot, metric)) for metric in before}
    np.testing.assert_allclose(after[VCPU], before[VCPU], atol=0.003)
    cores, kept = as_stored(CORES, before[CORES]), after[CORES]
    np.testing.assert_array_equal(kept[:, :, 9], cores[:, :, 9])
    np.testing.assert_array_equal(kept[:, 0].min(axis=1), cores[:, 0].min(axis=1))
    np.testing.assert_array_equal(kept[:, 2].max(axis=1), cores[:, 2].max(axis=1))
    np.testing.assert_allclose(
        kept[:, 1].mean(axis=1), before[CORES][:, 1].mean(axis=1), atol=0.003
    )
    assert durable_from() == DAY
    until = DAY + DAY_S
    for start, end, border in (
        (DAY - HOUR_S, DAY, until),
        (until - 1, until + DAY_S, until),
        (DAY - HOUR_S, DAY - 1, None),
        (until, until + DAY_S, None),
    ):
        assert merged_until(start, end) == border


def test_the_last_two_days_keep_their_minutes(hot: HotStore) -> None:
    durable.write_rollups(of_day(0, 24))
    before = series(hot)

    assert merge(LATER_S - 1)

    assert DayRollup.objects.count() == 0
    np.testing.assert_array_equal(series(hot).values, before.values)
    assert merge()
    durable.write_rollups(training(start=DAY + DAY_S, n_ticks=600))
    younger = series(hot, start=DAY + DAY_S, end=DAY + DAY_S + HOUR_S)
    assert younger.every_s == 60
    assert np.isfinite(younger.values[:10]).all()


def test_a_window_across_the_border_has_no_gap(hot: HotStore) -> None:
    durable.write_rollups(of_day(0, 30))
    assert merge()

    found = series(hot, end=DAY + 30 * HOUR_S - 1)

    assert found.every_s == 600
    assert np.isfinite(found.values).all()
    assert len(found.t_s) == 30 * 6
    assert [(each.since, each.has_all_parts) for each in found.stretches] == [
        (DAY, False),
        (DAY + DAY_S, True),
    ]
    of_node = series(hot, VCPU, end=DAY + 30 * HOUR_S - 1)
    assert [(each.since, each.has_all_parts) for each in of_node.stretches] == [(DAY, True)]


def test_however_often_it_is_interrupted_nothing_is_missing(hot: HotStore) -> None:
    # So many nodes that each metric is a row.
    nodes = tuple(f"node-{i}" for i in range(12))
    durable.write_rollups(of_day(0, 3, nodes=nodes))
    before = in_tens(series(hot, VCPU, "node-7"))
    n_rows = HourRollup.objects.values("metric").distinct().count()
    assert n_rows == len(METRICS)

    for n_left in range(n_rows - 1, -1, -1):
        assert merge(n=1) is (n_left == 0)
        assert HourRollup.objects.values("metric").distinct().count() == n_left
        found = stats_of(series(hot, VCPU, "node-7"))
        np.testing.assert_allclose(found, before, atol=0.003)
    assert merge(n=1)
    assert DayRollup.objects.count() == n_rows


def test_what_comes_after_its_day_is_merged_fills_what_is_open(hot: HotStore) -> None:
    durable.write_rollups(of_day(0, 5))
    assert merge()
    before = stats_of(series(hot))
    late = of_day(4, 7, nodes=("limping", "joined"), seed=1)
    durable.write_rollups(late)
    # Until it is merged, too.
    assert np.isfinite(series(hot).values[: 7 * 6]).all()

    assert merge()

    after = stats_of(series(hot))
    earlier, kept = before[: 5 * 6], after[: 5 * 6]
    np.testing.assert_array_equal(kept[:, 0].min(axis=1), earlier[:, 0].min(axis=1))
    np.testing.assert_array_equal(kept[:, 2].max(axis=1), earlier[:, 2].max(axis=1))
    np.testing.assert_allclose(kept[:, 1].mean(axis=1), earlier[:, 1].mean(axis=1), atol=0.003)
    assert np.isfinite(after[5 * 6 : 7 * 6]).all()
    joined = stats_of(series(hot, node="joined"))
    assert np.isfinite(joined[4 * 6 : 7 * 6]).all()
    assert np.isnan(joined[: 4 * 6]).all()
    assert np.isfinite(stats_of(series(hot, node="steady"))[: 5 * 6]).all()


@pytest.mark.django_db(transaction=True)
def test_two_workers_merge_while_a_third_writes_and_nothing_is_lost(hot: HotStore) -> None:
    durable.write_rollups(of_day(0, 3, nodes=tuple(f"node-{i}" for i in range(12))))
    durable.write_rollups(training(start=DAY + 3 * HOUR_S, n_ticks=600))
    today = training(start=LATER_S, n_ticks=20 * 60)
    minutes = [today.between(t, t + 59) for t in range(LATER_S, LATER_S + 20 * 60, 60)]

    def write() -> bool:
        for minute in minutes:
            durable.write_rollups(minute)
        return True

    def alone(work: Callable[[], bool]) -> bool:
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(alone, (merge, write, merge)))

    # The writer has made an hour of the minutes that were left of the old day.
    assert merge()
    assert HourRollup.objects.count() == 0
    assert DayRollup.objects.count() == len(METRICS) + 1
    assert np.isfinite(stats_of(series(hot, node="node-3"))[: 3 * 6]).all()
    assert np.isfinite(stats_of(series(hot, node="steady"))[3 * 6]).all()
    fresh = series(hot, "vcpu_usage_ratio", "steady", start=LATER_S, end=LATER_S + 20 * 60 - 1)
    assert np.isfinite(fresh.values).all()


def test_a_damaged_row_stops_no_other(hot: HotStore) -> None:
    durable.write_rollups(of_day(0, 2, nodes=tuple(f"node-{i}" for i in range(12))))
    durable.write_rollups(training(start=DAY + DAY_S, n_ticks=HOUR_S, every_s=10))
    damaged = HourRollup.objects.filter(metric=CORES, hour=DAY)
    damaged.update(data=damaged.get().data[:40])

    with pytest.raises(ExceptionGroup) as raised:
        merge(LATER_S + DAY_S)

    [error] = raised.value.exceptions
    assert f"{CORES} of llama/0, day {DAY}" in error.__notes__[0]
    kept = HourRollup.objects.values_list("metric", "hour")
    assert set(kept) == {(CORES, DAY), (CORES, DAY + HOUR_S)}
    assert np.isfinite(stats_of(series(hot, VCPU, "node-7"))[: 2 * 6]).all()


def earlier_rows(span: Span) -> Iterator[HourRollup]:
    """Yield an hour as releases before this format wrote it: a row per metric."""
    minutes = roll_up(span)
    for name, values in minutes.values.items():
        packing = METRICS[name].packing
        header = [minutes.nodes, list(range(60)), values.shape[2], packing]
        packed = codec.compress(json.dumps(header).encode())
        frames = []
        for codes in encode(values, packing).transpose(1, 2, 0):
            flat = np.ascontiguousarray(codes).reshape(-1)
            frames.append(codec.compress(flat.view("u1").reshape(len(flat), -1).T.tobytes()))
        lengths = np.array([len(packed), *map(len, frames)], "<u4").tobytes()
        data = lengths[:4] + packed + lengths[4:] + b"".join(frames)
        hour = int(minutes.minutes[0])
        yield HourRollup(shard=span.shard, metric=name, hour=hour, data=data)


def test_rows_of_earlier_releases_are_read_rewritten_and_merged(hot: HotStore) -> None:
    durable.write_rollups(of_day(0, 2))
    before = series(hot).values
    HourRollup.objects.all().delete()
    MinuteRollup.objects.all().delete()
    for hour in (0, 1):
        HourRollup.objects.bulk_create(earlier_rows(of_day_part(hour)))
    np.testing.assert_array_equal(series(hot).values, before)

    # A late minute rewrites its hour.
    durable.write_rollups(minute_of_day(30))
    durable.write_rollups(of_day(2, 3))
    assert HourRollup.objects.filter(hour=DAY).count() == 1
    assert HourRollup.objects.filter(hour=DAY + HOUR_S).count() == len(METRICS)
    assert np.isfinite(series(hot).values[:120]).all()

    assert merge()
    assert HourRollup.objects.count() == 0
    assert np.isfinite(series(hot).values[: 2 * 6]).all()


def of_day_part(hour: int) -> Span:
    span = of_day(0, 2)
    return span.between(DAY + hour * HOUR_S, DAY + (hour + 1) * HOUR_S - 1)


def minute_of_day(minute: int) -> Span:
    return of_day(0, 2).between(DAY + minute * 60, DAY + minute * 60 + 59)


def test_old_rows_are_deleted_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "DELETE_AT_ONCE", 2)
    durable.write_rollups(of_day(0, 24))
    assert merge()
    durable.write_rollups(training(start=DAY + DAY_S, n_ticks=70 * 60))
    durable.write_steps(steps(ended_at_s=DAY, n_steps=70 * 60, compute_s=1.0))

    with CaptureQueriesContext(
        connection,
    ) as queries:
        durable.delete_older_than(1, now_s=DAY + 10 * DAY_S)

    for model in (DayRollup, HourRollup, MinuteRollup):
        assert model.objects.count() == 0
    deleted = [q["sql"] for q in queries if q["sql"].startswith("DELETE")]
    assert max(sql.partition(" IN (")[2].count(",") for sql in deleted) == 1
    assert len(deleted) > 6


def test_a_thousand_nodes_take_three_gigabytes_in_a_month() -> None:
    """Of trn2.48xlarge nodes that report for themselves; the noise of the samples is high."""
    durable.write_rollups(of_day(0, 24, nodes=("limping",)))
    hours = sum(len(data) for data in HourRollup.objects.values_list("data", flat=True))
    assert merge()
    days = sum(len(data) for data in DayRollup.objects.values_list("data", flat=True))

    # Up to three days of minutes; PostgreSQL adds 440 bytes to a row.
    of_node = 3 * (hours + 24 * 440) + 27 * (days + 440)
    assert of_node * 1000 <= 3e9
