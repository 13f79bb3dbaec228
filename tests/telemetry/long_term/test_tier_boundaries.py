"""A window across hot store, rollups and long-term store has no break."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.blocks import IntArray, Span
from telemetry.exporter.hardware import HARDWARE
from telemetry.long_term.history import Endpoint, LongTermHistory, PromQL, selector
from telemetry.series import Series, SeriesSource
from telemetry.steps import PHASES
from telemetry.store import durable
from telemetry.store.chunks import FIRST_PHASE, LOSS, STEP, TOKENS
from telemetry.store.history import node_series, run_history
from telemetry.store.hot import HotStore
from telemetry.store.models import HourRollup, MinuteRollup, RunChunk
from tests.helpers import just_now, steps
from tests.long_term_stores import LongTermStore, Past
from tests.telemetry.long_term.conftest import StoreOf

pytestmark = pytest.mark.django_db
MINUTE_S, HOUR_S = 60, 3600
# The metrics, their typical size, and their number of parts.
METRICS = {
    "core_utilization_ratio": (0.6, 8),
    "efa_latency_s": (2e-5, 4),
    "mem_ecc_corrected": (40.0, 2),
    "vcpu_usage_ratio": (0.2, 1),
}
# The window ends amid an hour and amid a minute, and the durable tier begins amid the window.
N_HOURS, KEPT_HOURS, FRESH_S = 36, 5, 400
# A window of less has a row for each minute.
PIECE_S = 24 * HOUR_S
MEAN_S = {"compute_s": 1.5, "transfer_s": 0.5}


def span_of(shard: str, nodes: tuple[str, ...], ticks: IntArray, start: int) -> Span:
    """Return a few metrics, with a gap of an hour and a node that is silent for another."""
    # Counted from the start: a gap by the clock would lie on the seam once a day.
    hour = (ticks - start) // HOUR_S % 24
    rng = np.random.default_rng(int(ticks[0]))
    values = {
        name: np.abs(mean * (1 + 0.1 * rng.standard_normal((len(ticks), len(nodes), n_parts))))
        for name, (mean, n_parts) in METRICS.items()
    }
    for array in values.values():
        array[hour == 3] = np.nan
        array[hour == 7, 1] = np.nan
    every_s = int(ticks[1] - ticks[0])
    return Span(shard, ticks, nodes, values, every_s)


class Fleet:
    """Two nodes and a run with a day and a half of data."""

    def __init__(self, hot: HotStore, name: str) -> None:
        self.hot, self.name = hot, name
        self.shard, self.node, self.run = f"{name}/0", f"{name}-limping", name
        # Not in the future, whenever this runs.
        self.now_s = int(just_now().timestamp()) // HOUR_S * HOUR_S - HOUR_S + 1237
        hot.now = lambda: self.now_s
        self.start = start = self.now_s // HOUR_S * HOUR_S - N_HOURS * HOUR_S
        self.past = past = (self.now_s - FRESH_S) // MINUTE_S * MINUTE_S
        nodes = (f"{name}-steady", self.node)
        durable.write_rollups(span_of(self.shard, nodes, np.arange(start, past, 30), start))
        hot.append(span_of(self.shard, nodes, np.arange(past, self.now_s), start).blocks())
        n_steps = (past - start) // 20
        ends = start + 20 * np.arange(n_steps) + 7
        made = steps(name, n_steps=n_steps, compute_s=1.5, transfer_s=0.5)
        durable.write_steps(replace(made, ended_at_s=ends.astype(float)))

    def window(self, metric: str, hours: int, past: LongTermHistory | None = None) -> Series:
        return self.series(metric, self.now_s - hours * HOUR_S, self.now_s, past)

    def series(
        self, metric: str, start: int, end: int, past: LongTermHistory | None = None
    ) -> Series:
        return node_series(
            self.hot,
            shard=self.shard,
            node=self.node,
            metric=metric,
            start=start,
            end=end,
            long_term=past,
        )

    def minutes(self) -> Past:
        """Return what releases before 0.10 wrote of all that the durable tier has."""
        past = Past()
        for metric in METRICS:
            spec = HARDWARE[metric]
            for begin in range(self.start, self.now_s - FRESH_S, PIECE_S):
                end = min(begin + PIECE_S, self.past) - 1
                found = self.series(metric, begin, end)
                for stat in ("low", "values", "high"):
                    of = {"low": "min_1m", "values": "avg_1m", "high": "max_1m"}[stat]
                    for part, values in enumerate(getattr(found, stat).T):
                        labels = dict(zip(spec.labels, (self.node, str(part)), strict=False))
                        past.add(selector(f"{spec.name}:{of}", **labels), found.t_s + 30, values)
        t_s = np.arange(self.start, self.past, MINUTE_S) + 30
        last_step = np.arange(len(t_s)) * 3.0 + 3
        past.add(selector("trnwatch_run_steps:max_1m", run=self.run), t_s, last_step)
        past.add(selector("trnwatch_run_step_tokens:avg_1m", run=self.run), t_s, t_s * 0 + 4096.0)
        for phase in PHASES:
            name, mean_s = phase.removesuffix("_s"), MEAN_S.get(phase, 0.0)
            series = selector("trnwatch_run_phase_seconds:avg_1m", run=self.run, phase=name)
            past.add(series, t_s, t_s * 0 + mean_s)
        return past

    def forget(self) -> None:
        """Let the durable tier lose all but the latest hours, as its retention does."""
        durable.delete_older_than(KEPT_HOURS / 24, now_s=self.now_s)


def history_of(store: LongTermStore) -> LongTermHistory:
    return LongTermHistory(PromQL(Endpoint(store.url)))


def same(found: Series, expected: Series) -> None:
    for mine, theirs in (
        (found.t_s, expected.t_s),
        (found.values, expected.values),
        (found.low, expected.low),
        (found.high, expected.high),
    ):
        assert mine is not None
        assert theirs is not None
        np.testing.assert_allclose(mine, theirs, rtol=5e-4, atol=5e-5, equal_nan=True)


def test_minutes_of_earlier_releases_read_as_they_did(store_of: StoreOf, hot: HotStore) -> None:
    fleet = Fleet(hot, "llama")
    past = history_of(store_of(fleet.minutes()))
    asked = [(metric, hours) for metric in METRICS for hours in (12, 35)]
    before = [fleet.window(metric, hours) for metric, hours in asked]

    fleet.forget()
    kept_from = HourRollup.objects.order_by("hour").values_list("hour", flat=True)[0]

    for (metric, hours), expected in zip(asked, before, strict=True):
        found = fleet.window(metric, hours, past)
        same(found, expected)
        every_s = 60 if hours == 12 else 300
        assert found.stretches == (
            SeriesSource(int(found.t_s[0]), every_s, "long term"),
            SeriesSource(kept_from, every_s, "durable"),
        )
    check_run(fleet, past, kept_from)
    for model in (HourRollup, MinuteRollup, RunChunk):
        model.objects.all().delete()
    hot.execute("FLUSHDB")
    found = fleet.window("efa_latency_s", 12, past)
    expected = before[asked.index(("efa_latency_s", 12))]
    kept = found.t_s < fleet.past
    assert [each.tier for each in found.stretches] == ["long term"]
    np.testing.assert_allclose(found.values[kept], expected.values[kept], rtol=5e-4)


def check_run(fleet: Fleet, past: LongTermHistory, kept_from: int) -> None:
    """A run reads on where the durable tier ends: each minute is there, and none twice."""
    start_s = fleet.now_s - 35 * HOUR_S
    found, stretches = run_history(
        fleet.hot, fleet.run, start_s=start_s, end_s=fleet.now_s, long_term=past
    )
    assert [each.tier for each in stretches] == ["long term", "durable"]
    assert stretches[1].since == kept_from
    older = found.ended_at_s < kept_from
    assert older.any()
    assert not older.all()
    assert np.isnan(found.n_merged[0])
    counted = np.diff(found.step)[: older.sum() - 1]
    np.testing.assert_array_equal(found.n_merged[1 : older.sum()], counted)
    for phase, mean_s in MEAN_S.items():
        np.testing.assert_allclose(found.phases[phase], mean_s, rtol=1e-4)
    assert (np.diff(found.ended_at_s) > 0).all()
    assert np.diff(found.ended_at_s).max() <= 300


SINCE, EVERY_S = 1_700_000_040, 20


def test_samples_are_read_as_the_lowest_mean_and_highest_of_each_minute(store_of: StoreOf) -> None:
    t_s = np.arange(SINCE, SINCE + HOUR_S, EVERY_S)
    rng = np.random.default_rng(0)
    cores = rng.random((2, len(t_s)))
    # Ten minutes without a scrape, and ten of minutes that an earlier release wrote.
    cores[:, 30:60] = np.nan
    scraped = Past()
    for core, values in enumerate(cores):
        # Two agents scrape the same.
        for job in ("one", "two"):
            labels = {"node": "steady", "core": str(core), "job": job}
            scraped.add(selector("trnwatch_core_utilization_ratio", **labels), t_s, values)
    middle = np.arange(SINCE, SINCE + 600, MINUTE_S) + 30
    for stat, value in (("min_1m", 0.1), ("avg_1m", 0.2), ("max_1m", 0.3)):
        series = selector(f"trnwatch_core_utilization_ratio:{stat}", node="steady", core="0")
        scraped.add(series, middle, middle * 0 + value)
    past = history_of(store_of(scraped))

    minutes, found = past.node_minutes(
        "steady", "core_utilization_ratio", start=SINCE, end=SINCE + HOUR_S, every_s=MINUTE_S
    )

    by_minute = cores.reshape(2, 60, 3)
    expected = np.stack([by_minute.min(2), by_minute.mean(2), by_minute.max(2)]).transpose(2, 0, 1)
    expected[:10, :, 0] = (0.1, 0.2, 0.3)
    np.testing.assert_array_equal(minutes, np.arange(SINCE, SINCE + HOUR_S, MINUTE_S))
    np.testing.assert_allclose(found.reshape(60, 3, 2), expected, rtol=1e-9)


def test_a_run_that_stands_still_has_no_steps_there(store_of: StoreOf) -> None:
    t_s = np.arange(SINCE, SINCE + HOUR_S, EVERY_S)
    minute = (t_s - SINCE) // MINUTE_S
    # The count of steps is scraped on, and what they take is not.
    stands = (minute >= 20) & (minute < 40)
    n_steps = np.where(minute < 20, minute, np.maximum(minute - 20, 19)) + 1.0
    scraped = Past()
    scraped.add(selector("trnwatch_run_steps_total", run="llama"), t_s, n_steps)
    figures = {
        selector("trnwatch_run_step_seconds", run="llama"): 60.0,
        selector("trnwatch_run_tokens_per_second", run="llama"): 4.0,
        selector("trnwatch_run_loss", run="llama"): 2.5,
        selector("trnwatch_run_phase_seconds", run="llama", phase="compute"): 45.0,
        selector("trnwatch_run_phase_seconds", run="llama", phase="wait"): 15.0,
    }
    for series, value in figures.items():
        scraped.add(series, t_s, np.where(stands, np.nan, value))
    past = history_of(store_of(scraped))

    rows = past.run_minutes("llama", start=SINCE, end=SINCE + HOUR_S, every_s=MINUTE_S)

    np.testing.assert_array_equal(rows[:, STEP], np.arange(40) + 1)
    compute, wait, transfer = range(FIRST_PHASE, FIRST_PHASE + 3)
    for column, value in ((TOKENS, 240.0), (LOSS, 2.5), (compute, 45.0), (wait, 15.0)):
        np.testing.assert_allclose(rows[:, column], value)
    assert np.isnan(rows[:, transfer]).all()


def test_a_name_cannot_break_out_of_its_question(store_of: StoreOf) -> None:
    past, evil = history_of(store_of(Past([("up", 1.0, SINCE)]))), 'x"} or {node=~".+'
    _, values = past.node_minutes(
        evil, "core_utilization_ratio", start=SINCE, end=SINCE + HOUR_S, every_s=MINUTE_S
    )

    assert values.shape == (60, 0)
    assert len(past.run_minutes(evil, start=SINCE, end=SINCE + HOUR_S, every_s=MINUTE_S)) == 0
