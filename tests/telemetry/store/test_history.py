"""Hot store and rollups as one: seconds, then minutes, without a gap."""

import numpy as np
import pytest

from telemetry.blocks import Span
from telemetry.series import Series
from telemetry.store import durable
from telemetry.store.history import node_series, parts_at, run_steps, worker_minutes
from telemetry.store.hot import HotStore
from telemetry.store.models import DayRollup
from telemetry.store.rollups import as_stored, roll_up
from telemetry.units import DAY_S
from tests.helpers import NOON_S, block, steps
from tests.telemetry.store.samples import training

pytestmark = pytest.mark.django_db
CORES = "core_utilization_ratio"


def cores(hot: HotStore, start: int, end: int, *, node: str = "steady") -> Series:
    return node_series(hot, shard="llama/0", node=node, metric=CORES, start=start, end=end)


def part_of(span: Span, first: int, end: int) -> Span:
    """Keep some ticks of a span."""
    values = {name: array[first:end] for name, array in span.values.items()}
    return Span(span.shard, span.ticks[first:end], span.nodes, values, span.every_s)


def at(hot: HotStore, second: int) -> dict[str, np.ndarray]:
    found = parts_at(hot, CORES, ["llama/0", "other/0"], at=second)
    return {name: row for nodes, rows in found for name, row in zip(nodes, rows, strict=True)}


def test_all_nodes_at_a_second_are_those_of_their_series_in_each_tier(hot: HotStore) -> None:
    day = NOON_S // DAY_S * DAY_S
    span = training(start=day, n_ticks=DAY_S // 10, every_s=10)
    durable.write_rollups(span)
    early, late = day + 7_230, day + DAY_S - 70

    def of_series(second: int) -> np.ndarray:
        series = cores(hot, second - 600, second + 600)
        return np.asarray(series.values[np.searchsorted(series.t_s, second, "right") - 1])

    assert set(at(hot, early)) == set(span.nodes)
    np.testing.assert_array_equal(at(hot, early)["steady"], of_series(early))
    np.testing.assert_array_equal(at(hot, late)["steady"], of_series(late))
    durable.merge_old_hours(now_s=day + 3 * DAY_S, until_s=1, clock=lambda: 0.0)
    assert DayRollup.objects.exists()
    np.testing.assert_array_equal(at(hot, early)["steady"], of_series(early // 600 * 600))

    hot.append(training(start=day + DAY_S, n_ticks=30).blocks())
    now = day + DAY_S + 20
    np.testing.assert_array_equal(at(hot, now)["steady"], cores(hot, now, now).values[0])
    # A window across both has all of its rows, wherever it ends.
    assert len(cores(hot, day + DAY_S - 650, day + DAY_S + 650).t_s) == 4
    assert at(hot, day - 3600) == {}


def test_within_the_hot_tier_it_gives_seconds(hot: HotStore) -> None:
    span = training(n_ticks=300)
    hot.append(span.blocks())

    series = cores(hot, NOON_S - 10, NOON_S + 299)

    assert series.every_s == 1
    assert series.values.shape == (310, 64)
    assert np.isnan(series.values[:10]).all()
    np.testing.assert_allclose(series.values[10:], span.values[CORES][:, 0], atol=0.003)


def test_beyond_it_gives_minutes_with_their_extremes(hot: HotStore) -> None:
    span = training(n_ticks=3 * 3600, every_s=1)
    durable.write_rollups(span)

    series = cores(hot, NOON_S, NOON_S + 3 * 3600 - 1)

    assert series.every_s == 60
    assert series.t_s[0] == NOON_S
    assert series.low is not None
    assert series.high is not None
    by_minute = span.values[CORES][:, 0].reshape(180, 60, 64)
    np.testing.assert_allclose(series.values, by_minute.mean(axis=1), atol=0.003)
    np.testing.assert_allclose(series.low, by_minute.min(axis=1), atol=0.003)
    np.testing.assert_allclose(series.high, by_minute.max(axis=1), atol=0.003)


def test_there_is_no_seam_between_the_tiers(hot: HotStore) -> None:
    hot.append(training(n_ticks=1200).blocks())
    newest = NOON_S + 1199
    kept = hot.window("llama/0", start=newest - 899, end=newest)
    durable.write_rollups(hot.window("llama/0", start=NOON_S + 300, end=NOON_S + 899))

    series = cores(hot, NOON_S - 3600, newest)

    expected = as_stored(CORES, roll_up(kept).values[CORES])[:, 0].reshape(15, 3, 64)
    found = np.isfinite(series.values).all(axis=1)
    assert np.flatnonzero(found).tolist() == list(range(65, 80))
    np.testing.assert_array_equal(series.values[65:80], expected[:, 1])
    durable.write_rollups(kept)
    again = cores(hot, NOON_S - 3600, newest)
    np.testing.assert_array_equal(again.values, series.values)
    np.testing.assert_array_equal(again.low, series.low)


def test_the_running_minute_is_informed_far(hot: HotStore) -> None:
    hot.append(training(n_ticks=90).blocks())

    series = cores(hot, NOON_S - 3600, NOON_S + 89)

    assert np.isfinite(series.values[-2:]).all()
    assert series.t_s[-1] == NOON_S + 60


def test_a_silent_node_is_a_gap_in_either_tier(hot: HotStore) -> None:
    span = training(n_ticks=600)
    for array in span.values.values():
        array[200:330, 1] = np.nan
    hot.append(span.blocks())
    durable.write_rollups(span)

    seconds = cores(hot, NOON_S, NOON_S + 599, node="limping")
    minutes = cores(hot, NOON_S - 3600, NOON_S + 599, node="limping")

    assert np.flatnonzero(np.isnan(seconds.values[:, 0])).tolist() == list(range(200, 330))
    assert np.flatnonzero(np.isnan(minutes.values[60:, 0])).tolist() == [4]


def test_an_unknown_node_or_metric_is_all_gap(hot: HotStore) -> None:
    hot.append([block()])

    assert np.isnan(cores(hot, NOON_S, NOON_S + 9, node="missing").values).all()
    assert cores(hot, 0, 3600).values.shape == (61, 0)


def test_steps_are_of_all_workers_while_hot(hot: HotStore) -> None:
    hot.append_steps(steps(n_steps=100, compute_s=[1.0, 2.0]))

    found = run_steps(hot, "llama", start_s=NOON_S + 9, end_s=NOON_S + 60)

    assert found.workers == ("steady", "limping")
    assert found.ended_at_s.min() >= NOON_S + 9
    assert found.ended_at_s.max() < NOON_S + 60


def test_steps_of_both_tiers_meet_without_a_seam(hot: HotStore) -> None:
    batch = steps(n_steps=1800, compute_s=[1.0, 1.0], wait_s=0.0)
    durable.write_steps(batch[:1200])
    hot.append_steps(batch[600:])

    found = run_steps(hot, "llama", start_s=NOON_S, end_s=NOON_S + 3600)

    assert found.step.tolist() == list(range(1, 1801))
    minutes = worker_minutes(hot, "llama", start_s=NOON_S, end_s=NOON_S + 3600)
    assert minutes.step.tolist() == list(range(60, 1801, 60))
    np.testing.assert_allclose(minutes.phases["compute_s"], 1.0)


def test_before_the_hot_tier_was_emptied_seconds_read_as_their_minutes(hot: HotStore) -> None:
    span = training(n_ticks=900)
    durable.write_rollups(part_of(span, 0, 600))
    hot.append(part_of(span, 620, 900).blocks())

    series = cores(hot, NOON_S, NOON_S + 899)

    assert series.every_s == 1
    means = span.values[CORES][:600, 0].reshape(10, 60, 64).mean(axis=1)
    np.testing.assert_allclose(series.values[:600], np.repeat(means, 60, axis=0), atol=0.003)
    assert np.isnan(series.values[600:620]).all()
    np.testing.assert_allclose(series.values[620:], span.values[CORES][620:, 0], atol=0.003)
    assert series.low is not None
    assert (series.low[:600] <= series.values[:600]).all()
    np.testing.assert_array_equal(series.low[620:], series.values[620:])


def test_where_nothing_is_hot_any_more_the_minutes_are_shown(hot: HotStore) -> None:
    span = training(n_ticks=300)
    durable.write_rollups(span)

    series = cores(hot, NOON_S, NOON_S + 899)

    assert np.isfinite(series.values[:300]).all()
    assert np.isnan(series.values[300:]).all()


def test_a_silent_node_stays_a_gap_while_its_shard_reports(hot: HotStore) -> None:
    span = training(n_ticks=600)
    durable.write_rollups(span)
    for array in span.values.values():
        array[:300, 1] = np.nan
    hot.append(span.blocks())

    assert np.isnan(cores(hot, NOON_S, NOON_S + 599, node="limping").values[:300]).all()


def test_steps_from_before_the_hot_tier_was_emptied_come_from_the_durable_one(
    hot: HotStore,
) -> None:
    batch = steps(n_steps=600, compute_s=[1.0, 1.0])
    durable.write_steps(batch[:400])
    hot.append_steps(batch[450:])

    found = run_steps(hot, "llama", start_s=NOON_S, end_s=NOON_S + 900)

    assert found.step.tolist() == [*range(1, 401), *range(451, 601)]


def test_a_young_run_is_read_from_the_hot_tier_alone(hot: HotStore) -> None:
    hot.append_steps(steps(n_steps=100, compute_s=[1.0, 1.0]))

    found = run_steps(hot, "llama", start_s=NOON_S - 600, end_s=NOON_S + 300)

    assert found.workers == ("steady", "limping")
