"""A run's loss chart: drawn where the job reports a loss, absent otherwise."""

from dataclasses import replace

import numpy as np
import pytest
from django.test import Client
from pytest_django import Settings

from fleet.charts.figures import Chart, table_of
from fleet.charts.runs import (
    LossView,
    has_loss,
    loss,
    moving_average,
    run_points,
    viewed_loss,
    with_newest_steps,
)
from fleet.charts.windows import Window
from fleet.models import Run
from fleet.models.annotation import moment_of
from telemetry.steps import REPORTED_NAN
from telemetry.store import durable
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, steps

FALLING = np.linspace(3.0, 2.0, 10)


def test_steps_that_tell_no_loss_leave_no_hole(run: Run) -> None:
    each_third = np.where(np.arange(10) % 3 == 0, FALLING, np.nan)

    figure = loss(run, replace(steps(n_steps=10, compute_s=1.0), reported_loss=each_third))

    assert figure.lines[0].values.tolist() == FALLING[::3].tolist()
    assert len(figure.t_s) == 4


def test_a_pause_is_a_gap(run: Run) -> None:
    batch = steps(n_steps=10, compute_s=1.0)
    late = batch.ended_at_s + 60.0 * (np.arange(10) >= 5)

    figure = loss(run, replace(batch, ended_at_s=late, reported_loss=FALLING))

    assert np.flatnonzero(np.isnan(figure.lines[0].values)).tolist() == [5]


def test_a_job_that_reports_none_has_nothing_to_draw(run: Run) -> None:
    assert len(loss(run, steps(n_steps=10)).t_s) == 0


@pytest.mark.parametrize("reported", [True, False])
def test_whether_it_reports_one_is_seen_in_either_tier(
    run: Run, hot: HotStore, *, reported: bool
) -> None:
    batch = replace(steps(n_steps=10), reported_loss=FALLING if reported else None)

    hot.append_steps(batch)
    fresh = has_loss(hot, run)
    hot._redis.flushdb()
    durable.write_steps(batch)
    kept = has_loss(hot, with_newest_steps(Run.objects.all()).get())

    assert (fresh, kept) == (reported, reported)


def test_only_a_chart_that_is_there_is_fed(run: Run, hot: HotStore) -> None:
    hot.append_steps(steps(n_steps=5))
    silent = run_points(hot, run, since_s=NOON_S - 60)
    hot.append_steps(
        replace(steps(n_steps=5, first=6, ended_at_s=NOON_S + 20), reported_loss=FALLING[:5])
    )

    reported = run_points(hot, run, since_s=NOON_S - 60)

    assert set(reported) - set(silent) == {"loss"}
    assert [value for value in reported["loss"]["values"][0] if value] == pytest.approx(
        FALLING[:5], rel=1e-3
    )


@pytest.fixture
def falling(run: Run, hot: HotStore) -> Run:
    """Store ten steps with a loss, and half of the tokens before them."""
    Run.objects.update(n_tokens=20 * 4096, started_at=moment_of(NOON_S - 3600))
    batch = steps(n_steps=10, compute_s=6.0)
    hot.append_steps(replace(batch, reported_loss=FALLING))
    return Run.objects.get()


def drawn(hot: HotStore, run: Run, **query: str) -> Chart:
    return viewed_loss(hot, run, Window(NOON_S - 10, NOON_S + 100), LossView.of(query))


def test_it_is_drawn_over_steps_tokens_and_dollars(falling: Run, hot: HotStore) -> None:
    by_step = drawn(hot, falling, by="step")
    assert by_step.t_s.tolist() == list(range(1, 11))
    assert by_step.labels[-1] == "step 10"
    by_tokens = drawn(hot, falling, by="tokens")
    assert by_tokens.t_s.tolist() == [4096.0 * n for n in range(11, 21)]
    by_usd = drawn(hot, falling, by="usd")
    # Four nodes at $21.50 an hour, for an hour and nine steps of six seconds.
    assert by_usd.t_s[-1] == pytest.approx(4 * 21.5 * (3600 + 54) / 3600)
    for each in (by_step, by_tokens, by_usd):
        assert each.as_json()["x_unit"]
        np.testing.assert_allclose(each.lines[0].values, FALLING)
        assert len(table_of(each.as_json()).rows) == 10


def test_it_is_smoothed_by_the_average_that_is_stated(falling: Run, hot: HotStore) -> None:
    reported, smooth = drawn(hot, falling, ema="0.9").lines
    literal = [FALLING[0]]
    for value in FALLING[1:]:
        literal.append(0.9 * literal[-1] + 0.1 * value)

    assert (reported.label, smooth.label) == ("reported", "EMA 0.9")
    np.testing.assert_allclose(smooth.values, literal)
    # A row of several steps keeps less of what was before.
    assert moving_average(np.array([1.0, 0.0]), np.array([0.5, 0.5**3]))[1] == 0.125


def test_the_page_states_the_view_and_keeps_it_in_its_links(
    client: Client, falling: Run, settings: Settings
) -> None:
    settings.ANONYMOUS_READING = True
    text = client.get("/runs/llama/?window=1h&by=tokens&ema=0.99").text.replace("&amp;", "&")

    assert (
        'data-chart="course" data-src="/runs/llama/charts/loss?window=1h&by=tokens&ema=0.99"'
        in (text)
    )
    assert "weight 0.99 per step" in text
    assert 'href="?window=1h&by=step&ema=0.99#loss-long"' in text
    # What is unknown is the plain loss over time.
    plain = client.get("/runs/llama/?by=moon&ema=2").text
    assert 'data-src="/runs/llama/charts/loss?window=15m"' in plain
    body = client.get("/runs/llama/charts/loss?by=step&ema=0.6").json()
    assert [line["label"] for line in body["series"]] == ["reported", "EMA 0.6"]


@pytest.mark.parametrize("value", [REPORTED_NAN, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_is_the_newest_and_no_point(
    run: Run, hot: HotStore, value: float
) -> None:
    diverged = np.where(np.arange(10) < 7, FALLING, value)
    batch = replace(steps(n_steps=10, compute_s=1.0), reported_loss=diverged)

    found = loss(run, batch).as_json()

    assert np.isnan(found["series"][0]["values"][-3:]).all()
    assert found["missing"] == "not finite"
    hot.append_steps(replace(batch, reported_loss=np.full(10, value)))
    assert has_loss(hot, run)


def test_smoothing_leaves_out_what_is_not_finite() -> None:
    smooth = moving_average(np.array([np.nan, 4.0, np.nan, 2.0]), np.full(4, 0.5))

    np.testing.assert_array_equal(smooth, [np.nan, 4.0, np.nan, 3.0])
