"""Stored steps: every step, and every worker's minutes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from telemetry.blocks import FloatArray
from telemetry.steps import PHASES, StepBatch
from telemetry.store import durable
from telemetry.store.chunks import N_COLUMNS, average_groups, decode_steps, encode_steps
from telemetry.store.history import run_steps, stored_checkpoints, worker_minutes
from telemetry.store.hot import HotStore
from telemetry.store.models import RunChunk
from telemetry.store.packing import steps_where
from tests.helpers import NOON_S, steps

HOUR_S = 3600


def noisy(n_steps: int, *, step_s: float = 1.0, seed: int = 0) -> StepBatch:
    """Return steps of two workers that differ from step to step."""
    rng = np.random.default_rng(seed)
    phases = {phase: step_s * rng.uniform(0.1, 0.2, (n_steps, 2)) for phase in PHASES}
    ended_at_s = NOON_S + step_s * np.arange(n_steps)
    numbers, tokens = np.arange(1, n_steps + 1), np.full(n_steps, 4096.0)
    return StepBatch("llama", ("steady", "limping"), numbers, ended_at_s, phases, tokens)


def history(hot: HotStore, *, last_s: float = 3 * HOUR_S) -> StepBatch:
    return run_steps(hot, "llama", start_s=NOON_S, end_s=NOON_S + last_s)


@given(arrays("f8", st.tuples(st.integers(0, 20), st.just(N_COLUMNS)), elements=st.floats(0, 1e9)))
def test_packed_steps_are_off_by_almost_nothing(values: FloatArray) -> None:
    values[:, 0] = np.sort(np.rint(values[:, 0]))
    values[:, 1] = np.sort(values[:, 1] / 1e5) + NOON_S

    found = decode_steps(encode_steps(values))

    np.testing.assert_array_equal(found[:, 0], values[:, 0])
    np.testing.assert_allclose(found[:, 1], values[:, 1], rtol=0, atol=0.51e-4)
    np.testing.assert_allclose(found[:, 2:], values[:, 2:], rtol=2**-13, atol=1e-37)


@pytest.mark.django_db
def test_every_step_is_kept_as_the_mean_over_workers(hot: HotStore) -> None:
    batch = noisy(600)
    durable.write_steps(batch)

    found = history(hot)

    assert found.workers == ("mean",)
    np.testing.assert_array_equal(found.step, batch.step)
    np.testing.assert_allclose(found.ended_at_s, batch.ended_at_s, atol=1e-4)
    np.testing.assert_allclose(found.step_s, batch.step_s, rtol=2e-4)
    for phase in PHASES:
        mean = batch.phases[phase].mean(axis=1, keepdims=True)
        np.testing.assert_allclose(found.phases[phase], mean, rtol=2e-4)


@pytest.mark.django_db
@pytest.mark.parametrize("others", [np.nan, 0.0, 60.0], ids=["unknown", "zero", "the same"])
def test_stored_checkpoints_took_as_long_as_all_waited(others: float) -> None:
    batch = noisy(3 * HOUR_S)
    phases, ended_at_s = dict(batch.phases), batch.ended_at_s.copy()
    phases["checkpoint_s"] = np.full((len(batch), 2), np.nan)
    for number, took_s in ((900, 50.0), (4500, 60.0), (8100, 70.0)):
        phases["checkpoint_s"][number] = took_s, others and others / 60.0 * took_s
        ended_at_s[number:] += took_s
    durable.write_steps(replace(batch, phases=phases, ended_at_s=ended_at_s))
    found = stored_checkpoints("llama", before_s=ended_at_s[-1], most=2)
    np.testing.assert_allclose(found, [70.0, 60.0], rtol=0.01)
    before = stored_checkpoints("llama", before_s=ended_at_s[8100], most=3)
    np.testing.assert_allclose(before, [60.0, 50.0], rtol=0.01)
    assert stored_checkpoints("llama", before_s=ended_at_s[-1] + 48 * HOUR_S, most=3) == []
    assert stored_checkpoints("other", before_s=ended_at_s[-1], most=3) == []


@pytest.mark.django_db
def test_steps_written_twice_or_in_pieces_are_kept_once(hot: HotStore) -> None:
    batch = noisy(2 * HOUR_S)
    for first, end in [(0, 100), (50, 3000), (0, 3000), (3000, 7200), (7000, 7200)]:
        durable.write_steps(batch[first:end])
    workers = worker_minutes(hot, "llama", start_s=NOON_S, end_s=NOON_S + 2 * HOUR_S)

    assert sum(RunChunk.objects.values_list("n_steps", flat=True)) == 2 * HOUR_S
    assert len(workers) == 120
    for phase in PHASES:
        by_minute = batch.phases[phase].reshape(120, 60, 2).mean(axis=1)
        np.testing.assert_allclose(workers.phases[phase], by_minute, rtol=0.01)


@pytest.mark.django_db
def test_settled_hours_are_one_row(hot: HotStore) -> None:
    batch = noisy(75 * 60)
    for minute in range(75):
        durable.write_steps(batch[minute * 60 : minute * 60 + 60])

    lengths = list(RunChunk.objects.order_by("start").values_list("length_s", flat=True))
    assert lengths == [3600] + [60] * 15


@pytest.mark.django_db
def test_a_late_step_finds_its_place(hot: HotStore) -> None:
    batch = noisy(100)
    durable.write_steps(batch[:40])
    durable.write_steps(batch[41:])
    durable.write_steps(batch[40:41])

    assert history(hot).step.tolist() == list(range(1, 101))


@pytest.mark.django_db
@pytest.mark.parametrize("step_s", [0.1, 1.0])
def test_a_long_window_is_thinned_by_averaging(hot: HotStore, step_s: float) -> None:
    batch = noisy(int(3 * HOUR_S / step_s), step_s=step_s)
    durable.write_steps(batch)

    found = history(hot)

    assert 100 < len(found) <= 2000
    assert (np.diff(found.ended_at_s) > 0).all()
    assert found.step[-1] == batch.step[-1]
    assert found.step_s.mean() == pytest.approx(batch.step_s.mean(), rel=1e-3)
    assert found.tokens.mean() == pytest.approx(4096)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("step_s", "lost_ratio"), [(10.0, 0.0), (1.0, 0.0), (1.0, 0.2), (0.1, 0.0), (0.1, 0.2)]
)
def test_rows_of_several_steps_say_how_many_and_their_tokens_add_up(
    hot: HotStore, step_s: float, lost_ratio: float
) -> None:
    batch = noisy(int(3 * HOUR_S / step_s), step_s=step_s)
    rng = np.random.default_rng(1)
    batch.tokens[:] = 4096.0 if lost_ratio else rng.integers(1000, 4096, len(batch))
    batch = steps_where(batch, rng.random(len(batch)) >= lost_ratio)
    durable.write_steps(batch)

    found = history(hot)

    assert found.n_merged.sum() == len(batch)
    assert (found.n_merged >= 1).all()
    assert found.all_tokens.sum() == pytest.approx(batch.tokens.sum(), rel=2e-4)
    assert found.last(50).all_tokens.sum() == pytest.approx(found.all_tokens[-50:].sum())


@pytest.mark.django_db
def test_a_worker_that_did_not_report_is_absent_and_spoils_no_mean(hot: HotStore) -> None:
    batch = noisy(60)
    batch.phases["compute_s"][:, 1] = np.nan
    durable.write_steps(batch)

    workers = worker_minutes(hot, "llama", start_s=NOON_S, end_s=NOON_S + 60)

    assert np.isnan(workers.phases["compute_s"]).tolist() == [[False, True]]
    expected = batch.phases["compute_s"][:, :1]
    np.testing.assert_allclose(history(hot).phases["compute_s"], expected, rtol=2e-4)


def test_averages_keep_the_last_number_and_end() -> None:
    rows = np.arange(4.0)[:, None] * np.ones(N_COLUMNS)

    found = average_groups(rows, np.array([7, 7, 7, 8]))

    np.testing.assert_array_equal(found[:, :2], [[2, 2], [3, 3]])
    np.testing.assert_array_equal(found[:, 2:], np.array([[1.0], [3.0]]) * np.ones(N_COLUMNS - 2))


@pytest.mark.django_db
def test_a_run_without_steps_has_no_history(hot: HotStore) -> None:
    assert len(history(hot)) == 0
    assert len(worker_minutes(hot, "llama", start_s=0, end_s=NOON_S)) == 0


@pytest.mark.django_db
def test_workers_that_join_have_no_past(hot: HotStore) -> None:
    durable.write_steps(steps(workers=["a", "b"], n_steps=60, compute_s=1.0))
    later = steps(
        workers=["b", "c"], n_steps=60, first=61, ended_at_s=NOON_S + 60, compute_s=[1.0, 2.0]
    )
    durable.write_steps(later)

    found = worker_minutes(hot, "llama", start_s=NOON_S, end_s=NOON_S + 120)

    assert found.workers == ("a", "b", "c")
    assert np.isnan(found.phases["compute_s"]).tolist() == [
        [False, False, True],
        [True, False, False],
    ]
