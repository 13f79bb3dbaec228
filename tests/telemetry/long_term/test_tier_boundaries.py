"""A window across hot store, rollups and long-term store has no break."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.blocks import IntArray, Span
from telemetry.long_term.history import LongTermHistory, PromQL
from telemetry.long_term.remote_write import Endpoint
from telemetry.long_term.writer import MINUTES, SECONDS, Position
from telemetry.series import Series, SeriesSource
from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.history import node_series, run_history
from telemetry.store.hot import HotStore
from telemetry.store.models import HourRollup, MinuteRollup, RunChunk
from tests.helpers import just_now, steps
from tests.long_term_stores import LongTermStore, eventually
from tests.telemetry.long_term.writers import write_all, writer_to

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
        start = self.now_s // HOUR_S * HOUR_S - N_HOURS * HOUR_S
        past = (self.now_s - FRESH_S) // MINUTE_S * MINUTE_S
        nodes = (f"{name}-steady", self.node)
        durable.write_rollups(span_of(self.shard, nodes, np.arange(start, past, 30), start))
        hot.append(span_of(self.shard, nodes, np.arange(past, self.now_s), start).blocks())
        n_steps = (past - start) // 20
        ends = start + 20 * np.arange(n_steps) + 7
        made = steps(name, n_steps=n_steps, compute_s=1.5, transfer_s=0.5)
        durable.write_steps(replace(made, ended_at_s=ends.astype(float)))

    def window(self, metric: str, hours: int, past: LongTermHistory | None = None) -> Series:
        return node_series(
            self.hot,
            shard=self.shard,
            node=self.node,
            metric=metric,
            start=self.now_s - hours * HOUR_S,
            end=self.now_s,
            long_term=past,
        )

    def steps(self) -> StepBatch:
        return run_history(self.hot, self.run, start_s=self.now_s - 35 * HOUR_S, end_s=self.now_s)[
            0
        ]

    def forget(self) -> None:
        """Let the durable tier lose all but the latest hours, as its retention does."""
        durable.delete_older_than(KEPT_HOURS / 24, now_s=self.now_s)


@pytest.fixture
def past(store: LongTermStore) -> LongTermHistory:
    return LongTermHistory(PromQL(Endpoint(store.url, most_bytes=32 << 20)))


def write_from_the_start(store: LongTermStore, fleet: Fleet) -> None:
    writer = writer_to(store.url + "/api/v1/write", fleet.hot, now_s=fleet.now_s)
    at = just_now()
    Position(MINUTES).rewind(fleet.now_s - (N_HOURS + 1) * HOUR_S, now=at)
    Position(SECONDS).rewind(fleet.now_s, now=at)
    write_all(writer)
    store.flush()
    last = f'last_over_time(trnwatch_run_steps:max_1m{{run="{fleet.run}"}}[1h])'
    eventually(lambda: store.ask("query", query=last, time=fleet.now_s - 400, nocache=1))


def same(found: Series, expected: Series) -> None:
    for mine, theirs in (
        (found.t_s, expected.t_s),
        (found.values, expected.values),
        (found.low, expected.low),
        (found.high, expected.high),
    ):
        assert mine is not None
        assert theirs is not None
        # Minutes are kept to 0.4 %, and sent with the four digits that they have.
        np.testing.assert_allclose(mine, theirs, rtol=5e-4, atol=5e-5, equal_nan=True)


def test_what_the_durable_tier_forgot_reads_as_it_did(
    store: LongTermStore, past: LongTermHistory, hot: HotStore
) -> None:
    fleet = Fleet(hot, f"llama-{store.port}")
    write_from_the_start(store, fleet)
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


def test_a_run_reads_on_where_the_durable_tier_ends(
    store: LongTermStore, past: LongTermHistory, hot: HotStore
) -> None:
    fleet = Fleet(hot, f"gpt-{store.port}")
    write_from_the_start(store, fleet)
    last = fleet.steps().step[-1]
    fleet.forget()
    kept_from = HourRollup.objects.order_by("hour").values_list("hour", flat=True)[0]

    steps_now, stretches = run_history(
        hot, fleet.run, start_s=fleet.now_s - 35 * HOUR_S, end_s=fleet.now_s, long_term=past
    )
    assert [each.tier for each in stretches] == ["long term", "durable"]
    assert stretches[1].since == kept_from
    older = steps_now.ended_at_s < kept_from
    assert older.any()
    assert not older.all()
    assert np.isnan(steps_now.n_merged[0])
    counted = np.diff(steps_now.step)[: older.sum() - 1]
    np.testing.assert_array_equal(steps_now.n_merged[1 : older.sum()], counted)
    np.testing.assert_allclose(steps_now.phases["compute_s"], 1.5, rtol=1e-4)
    np.testing.assert_allclose(steps_now.phases["transfer_s"], 0.5, rtol=1e-4)
    # Every minute before the seam is there, and none twice.
    assert steps_now.step[-1] == last
    assert (np.diff(steps_now.ended_at_s) > 0).all()
    assert np.diff(steps_now.ended_at_s).max() <= 300


def test_a_window_before_everything_kept_comes_from_the_store_alone(
    store: LongTermStore, past: LongTermHistory, hot: HotStore
) -> None:
    fleet = Fleet(hot, f"gone-{store.port}")
    write_from_the_start(store, fleet)
    expected = fleet.window("efa_latency_s", 12)
    for model in (HourRollup, MinuteRollup, RunChunk):
        model.objects.all().delete()
    hot.execute("FLUSHDB")

    found = fleet.window("efa_latency_s", 12, past)
    settled = (fleet.now_s - 6 * MINUTE_S) // MINUTE_S * MINUTE_S
    kept = found.t_s < min(settled, (fleet.now_s - FRESH_S) // MINUTE_S * MINUTE_S)

    assert [each.tier for each in found.stretches] == ["long term"]
    np.testing.assert_allclose(found.values[kept], expected.values[kept], rtol=5e-4)


def test_a_name_cannot_break_out_of_its_question(
    store: LongTermStore, past: LongTermHistory, hot: HotStore
) -> None:
    evil = 'x"} or {node=~".+'
    _, values = past.node_minutes(
        evil, "core_utilization_ratio", start=1_700_000_000, end=1_700_003_600, every_s=60
    )

    assert values.shape == (60, 0)
    assert len(past.run_minutes(evil, start=0, end=3600, every_s=60)) == 0
