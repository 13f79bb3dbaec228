"""Series of nodes and runs match docs/metrics.md."""

import time
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from fleet.metrics.collectors import (
    COST,
    FIRING,
    INFO,
    LASTING,
    PACE,
    STEPS,
    TOKENS,
    UNACKNOWLEDGED,
)
from fleet.metrics.node_collectors import NODE_INFO
from fleet.models import Node, Run
from telemetry.store.hot import HotStore
from tests.helpers import steps

DOCUMENT = Path(__file__).parents[3] / "docs/metrics.md"
REPORTED = (
    *LASTING,
    TOKENS,
    STEPS,
    COST,
    INFO,
    NODE_INFO,
    FIRING,
    UNACKNOWLEDGED,
)


@pytest.fixture(autouse=True)
def reading(settings: Settings) -> None:
    """Let anyone on this machine read."""
    settings.ANONYMOUS_READING = True


def test_it_shows_what_a_node_trains(client: Client, steady: Node, hot: HotStore) -> None:
    Node.objects.create(
        name="spare",
        instance_type="trn1.32xlarge",
        source=Node.Source.NEURON_MONITOR,
        shard="spare/0",
        n_cores=32,
        n_devices=16,
        first_seen_at=timezone.now(),
        ultraserver_id="c0ffee04",
    )

    page = client.get("/metrics").getvalue().decode()

    assert (
        'trnwatch_node_info{instance_type="trn1.32xlarge",node="steady",run="llama",'
        'source="simulated",ultraserver_id=""} 1.0\n' in page
    )
    assert (
        'trnwatch_node_info{instance_type="trn1.32xlarge",node="spare",run="",'
        'source="neuron-monitor",ultraserver_id="c0ffee04"} 1.0\n' in page
    )


def test_it_reports_when_the_latest_step_ended(client: Client, run: Run, hot: HotStore) -> None:
    now = int(time.time())
    hot.append_steps(steps(n_steps=20, ended_at_s=now - 20, compute_s=0.9))

    reported = dict(
        line.split(" ")
        for line in client.get("/metrics").getvalue().decode().splitlines()
        if line.startswith("trnwatch_run_")
    )

    ended_s = float(reported['trnwatch_run_last_step_timestamp_seconds{run="llama"}'])
    assert ended_s == pytest.approx(now - 20 + 19 * 0.9, abs=0.5)
    assert reported['trnwatch_run_allreduce_resolve_ratio{run="llama"}'] == "0.22"


@pytest.mark.parametrize("name", [spec.name for spec in (*PACE, *REPORTED)])
def test_a_series_is_documented(name: str) -> None:
    assert f"\n## {name}\n" in DOCUMENT.read_text()
