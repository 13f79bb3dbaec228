"""A run without collective times: its share is unknown on every page."""

import time
from dataclasses import replace

import numpy as np
import pytest
from django.test import Client

from fleet.models import Run
from telemetry.store.hot import HotStore
from tests.fleet.pages.conftest import Page
from tests.helpers import steps


@pytest.fixture
def untimed(hot: HotStore, alive: Run) -> Run:
    """Continue the run with steps without wait and transfer times."""
    batch = steps(
        n_steps=5,
        ended_at_s=int(time.time()) - 9,
        compute_s=[1.9, 2.0],
        wait_s=[0.1, 0.0],
        transfer_s=0.0,
    )
    unknown = np.full((5, 2), np.nan)
    phases = {**batch.phases, "wait_s": unknown, "transfer_s": unknown}
    hot.append_steps(replace(batch, step=batch.step + 500, phases=phases))
    return alive


def test_its_pages_and_its_api_say_so_and_do_not_break(
    page: Page, client: Client, untimed: Run
) -> None:
    for path in (untimed.get_absolute_url(), "/runs/", "/"):
        assert "nan" not in page(path).lower().split()
    reported = client.get(f"/api/v1/runs/{untimed.name}")
    assert reported.status_code == 200
    assert "NaN" not in reported.text


def test_other_communication_is_shown_where_it_is_known(
    page: Page, client: Client, hot: HotStore, alive: Run
) -> None:
    def panel() -> str:
        return page("/runs/llama/").partition('id="run-inputs"')[2].partition("</section>")[0]

    assert "Other communication" not in panel()
    batch = steps(n_steps=5, ended_at_s=int(time.time()) - 9, compute_s=[1.9, 2.0])
    other_s = np.array([0.25, np.nan, 0.75, np.nan, np.nan])
    hot.append_steps(replace(batch, step=batch.step + 500, reported_other_comm_s=other_s))

    assert "<dt>Other communication</dt><dd>500 ms per step</dd>" in panel()
    items = client.get("/api/v1/runs/llama/steps").json()["items"]
    assert [item["other_comm_s"] for item in items[:5]] == [None, None, 0.75, None, 0.25]


def test_the_page_names_the_inputs_and_what_they_leave_unknown(page: Page, untimed: Run) -> None:
    panel = page("/runs/llama/").partition('id="run-inputs"')[2].partition("</section>")[0]

    assert "agent_collectives" in panel
    assert "timed in 67 % of steps" in panel
    assert 'href="/runbooks/input-tiers/"' in panel
    assert "agent_hooks" in page("/runbooks/input-tiers/")
