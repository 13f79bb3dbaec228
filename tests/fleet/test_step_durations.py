"""Steps by duration: each counted once across restarts and losses."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser
from pytest_django import DjangoAssertNumQueries

from fleet.metrics.collectors import StepDurationCollector
from fleet.models import Run, StepDurations
from fleet.runs.step_durations import (
    EDGES_S,
    LATE_S,
    count_by_edge,
    duration_rows,
    update_step_durations,
)
from telemetry.exporter.exposition import write_page
from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.hot import HotStore
from tests.helpers import NOON, NOON_S, steps

MINUTE = timedelta(minutes=1)


def made(n_steps: int, *, first: int = 1, start_s: float = 0.0, seed: int = 0) -> StepBatch:
    """Return steps of about two seconds that follow one another."""
    lasting = np.random.default_rng(seed).lognormal(np.log(2), 0.2, n_steps)
    batch = steps(n_steps=n_steps, first=first)
    batch.phases["compute_s"][:] = lasting[:, None]
    ended_at_s = NOON_S + start_s + np.cumsum(lasting)
    return StepBatch(batch.run, batch.workers, batch.step, ended_at_s, batch.phases, batch.tokens)


def kept() -> StepDurations:
    return StepDurations.objects.get()


@given(st.lists(st.one_of(st.floats(0, 2_000), st.sampled_from(EDGES_S)), max_size=50))
def test_a_value_is_counted_at_its_edge_and_at_all_above(values: list[float]) -> None:
    at_most = [sum(value <= edge for value in values) for edge in (*EDGES_S, np.inf)]

    assert np.cumsum(count_by_edge(np.array(values))).tolist() == at_most


def test_unknown_values_are_not_counted() -> None:
    assert count_by_edge(np.array([np.nan, 1.0])).sum() == 1


def test_edges_rise_by_a_quarter_at_most() -> None:
    ratios = np.array(EDGES_S[1:]) / np.array(EDGES_S[:-1])

    assert (EDGES_S[0], EDGES_S[-1], len(EDGES_S)) == (0.01, 1000.0, 61)
    assert 1 < ratios.min() < ratios.max() <= 1.2501


def test_strict_readers_of_open_metrics_read_the_histogram(hot: HotStore, run: Run) -> None:
    hot.append_steps(made(100))
    update_step_durations(hot, now=NOON + 10 * MINUTE)

    families = StepDurationCollector(now=NOON).collect()
    page = write_page(families, is_open_metrics=True).decode()
    (read,) = parser.text_string_to_metric_families(page)  # type: ignore[no-untyped-call]

    assert (read.type, len(read.samples)) == ("histogram", len(EDGES_S) + 3)
    assert [s.value for s in read.samples if s.name.endswith("_count")] == [100]


def test_every_step_is_counted_once_minute_by_minute(hot: HotStore, run: Run) -> None:
    batch = made(400)
    hot.append_steps(batch)
    seen = [0]

    for minute in range(1, 18):
        update_step_durations(hot, now=NOON + minute * MINUTE)
        update_step_durations(hot, now=NOON + minute * MINUTE)
        seen.append(sum(kept().counts) if StepDurations.objects.exists() else 0)

    assert seen == sorted(seen)
    assert kept().counts == count_by_edge(batch.step_s).tolist()
    assert kept().total_s == pytest.approx(batch.step_s.sum())
    assert kept().last_step == 400


def test_a_step_is_counted_only_when_no_worker_can_add_to_it(hot: HotStore, run: Run) -> None:
    batch = made(100)
    hot.append_steps(batch)
    now = NOON + timedelta(seconds=LATE_S + 61)

    update_step_durations(hot, now=now)

    assert sum(kept().counts) == (batch.ended_at_s < NOON_S + 61).sum()


def test_no_bucket_falls_when_the_hot_tier_is_lost(hot: HotStore, run: Run) -> None:
    batch = made(200)
    hot.append_steps(batch)
    durable.write_steps(batch)
    update_step_durations(hot, now=NOON + 5 * MINUTE)
    before = kept().counts

    hot.execute("FLUSHDB")
    update_step_durations(hot, now=NOON + 6 * MINUTE)
    update_step_durations(hot, now=NOON + 12 * MINUTE)

    assert (np.array(kept().counts) >= before).all()
    assert kept().counts == count_by_edge(batch.step_s).tolist()


def test_an_outage_is_made_up_for(hot: HotStore, run: Run) -> None:
    batch = made(9_000)
    durable.write_steps(batch)
    StepDurations.objects.create(
        run=run, until_s=NOON_S, last_step=0, counts=[0] * (len(EDGES_S) + 1), total_s=0.0
    )
    now = NOON + timedelta(hours=6)

    first = update_step_durations(hot, now=now)
    for _ in range(3):
        update_step_durations(hot, now=now)

    # Four hours at a time.
    assert 0 < first < 9_000
    assert sum(kept().counts) == 9_000
    # The database keeps durations to a few digits: at an edge some step may change sides.
    apart = np.array(kept().counts) - count_by_edge(batch.step_s)
    assert np.abs(apart).max() <= 3


def test_a_run_that_was_under_way_is_counted_from_now_on(hot: HotStore, run: Run) -> None:
    hot.append_steps(made(600))

    update_step_durations(hot, now=NOON + timedelta(hours=10))

    assert sum(kept().counts) == 0


def test_steps_of_a_run_that_ends_are_all_counted_and_then_left(
    hot: HotStore, run: Run, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    batch = made(60)
    hot.append_steps(batch)
    Run.objects.update(finished_at=NOON + 2 * MINUTE)
    for minute in (1, 2, 3, 4, 5):
        update_step_durations(hot, now=NOON + minute * MINUTE)

    ended = batch.ended_at_s < NOON_S + 240
    assert sum(kept().counts) == ended.sum() == 60
    with django_assert_num_queries(1):
        assert update_step_durations(hot, now=NOON + 20 * MINUTE) == 0


def test_of_two_who_count_at_once_one_is_kept(hot: HotStore, run: Run) -> None:
    batch = made(100)
    hot.append_steps(batch)
    update_step_durations(hot, now=NOON + 2 * MINUTE)
    stale = kept()
    update_step_durations(hot, now=NOON + 3 * MINUTE)

    changed = StepDurations.objects.filter(pk=run.pk, until_s=stale.until_s).update(total_s=0)

    assert changed == 0
    assert kept().total_s > stale.total_s


def test_rows_are_reported_for_a_day_after_the_end(hot: HotStore, run: Run) -> None:
    hot.append_steps(made(60))
    update_step_durations(hot, now=NOON + 5 * MINUTE)

    assert [(name, sum(counts)) for name, counts, _ in duration_rows(now=NOON)] == [("llama", 60)]
    Run.objects.update(finished_at=NOON)
    assert list(duration_rows(now=NOON + timedelta(hours=25))) == []
