"""Late workers of a run over days: who made the others wait, and what that cost."""

from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from fleet.costs.late_workers import late_workers, shares
from fleet.models import Node, Run
from telemetry.store.durable import write_steps
from telemetry.store.hot import HotStore
from tests.helpers import steps

Page = Callable[..., str]
WORKERS = ("steady", "limping", "c", "d", "e")
N_STEPS = 600


@pytest.fixture
def stored(run: Run, steady: Node) -> Run:
    """Store 20 minutes of steps; one worker computes for half a second longer in all of them."""
    ended_at_s = timezone.now().timestamp() - 3 * 3600
    write_steps(
        steps(
            workers=WORKERS,
            n_steps=N_STEPS,
            ended_at_s=ended_at_s,
            compute_s=[1.0, 1.5, 1.0, 1.0, 1.0],
            wait_s=[0.5, 0.0, 0.5, 0.5, 0.5],
            transfer_s=0.5,
        )
    )
    return run


def test_the_late_worker_has_the_time_that_the_others_waited(stored: Run) -> None:
    now = timezone.now()
    found = late_workers(stored, start=now - timedelta(days=1), end=now)

    worst, *others = found.workers
    assert (worst.name, worst.reason, others[0].late_s) == ("limping", "compute", 0)
    assert worst.late_s == pytest.approx(2 * N_STEPS, abs=60)
    assert worst.lost_s == pytest.approx(0.5 * N_STEPS, rel=0.01)
    assert sum(each.lost_s for each in others) == pytest.approx(0.0, abs=0.01 * worst.lost_s)
    assert found.lost_ratio == pytest.approx(0.25, rel=0.01)
    # Four nodes at $21.50 an hour.
    assert found.node_hours(worst.lost_s) == pytest.approx(4 * 300 / 3600, rel=0.01)
    assert worst.usd == pytest.approx(4 * 21.5 * 300 / 3600, rel=0.01)
    assert sum(worst.by_day.values()) == pytest.approx(worst.lost_s)


def test_the_page_lists_it_with_its_node(
    client: Client,
    page: Page,
    hot: HotStore,
    stored: Run,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_max_num_queries(12):
        text = page("/runs/llama/workers/?days=1").replace("\u202f", " ")

    assert "25.0 % of the training time lost" in text
    assert text.index("limping") < text.index('href="/nodes/steady/"')
    assert "<td>compute</td>" in text
    assert "$7.1" in text
    week = client.get("/runs/llama/workers/")
    assert [day.date() for day in week.context["shown_days"]]
    assert 'href="/runs/llama/workers/"' in page("/runs/llama/")
    assert client.get("/runs/none/workers/").status_code == 404


def test_inputs_without_waits_cannot_name_a_worker(page: Page, run: Run) -> None:
    assert "No step of this period is stored" in page("/runs/llama/workers/")
    trained = steps(n_steps=60, ended_at_s=timezone.now().timestamp() - 7200, compute_s=2.0)
    for phase in ("wait_s", "transfer_s"):
        trained.phases[phase][:] = np.nan
    write_steps(trained)
    assert "late workers are unknown" in page("/runs/llama/workers/")


def test_shares_add_up_to_what_steps_are_longer_by() -> None:
    rng = np.random.default_rng(3)
    waits = rng.random((50, 9))
    waits[rng.random((50, 9)) < 0.2] = np.nan
    waits[:, 0] = 0.0

    found = shares(waits)

    np.testing.assert_allclose(
        np.nansum(found, axis=1), np.nanmedian(waits, axis=1) - np.nanmin(waits, axis=1)
    )
    # The literal formula, worker by worker.
    for row, mine in zip(waits, found, strict=True):
        known = np.sort(row[np.isfinite(row)])
        median = np.median(known)
        for wait, share in zip(row, mine, strict=True):
            if np.isnan(wait):
                assert np.isnan(share)
                continue
            place = int(np.searchsorted(known, wait))
            literal = sum(
                (min(known[k + 1], median) - min(known[k], median)) / (k + 1)
                for k in range(place, len(known) - 1)
            )
            assert share == pytest.approx(literal)
