"""A fleet that reports every second, behind a real web server, for browser tests."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event, Thread

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page
from pytest_django import Settings

from fleet.models import Alert, Node, Run
from telemetry.detect.causes import explanations_json, symptoms_json
from telemetry.store.hot import HotStore
from tests.alerts import straggling
from tests.helpers import block, steps


@pytest.fixture(scope="module", autouse=True)
def _allow_django_in_browser_thread() -> Iterator[None]:
    """Let the thread of the browser's event loop use Django, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield


NODES = ("steady", "limping")
PAST_S = 120


@pytest.fixture
def alert(run: Run, limping: Node) -> Alert:
    """Fire one unacknowledged alert that names a node."""
    now = datetime.now(UTC)
    symptoms = {"step_s": 1, "wait_s": 1, "core_busier": 1, "transfer_s": 0, "efa_latency": 0}
    return straggling(
        run,
        limping,
        at=now,
        victims=["steady"],
        evidence={
            "share_ratio": 0.314,
            "limit_ratio": 0.25,
            "wait_ratio": 0.3,
            "symptoms": symptoms_json(symptoms),
            "causes": explanations_json(symptoms, scope="node", named="slow_core"),
        },
        cost={
            "lost_s": 60.0,
            "n_steps": 30.0,
            "usd": 1.43,
            "usual_s": 2.0,
            "n_before": 20,
            "n_done": 60,
            "span_s": 180.0,
            "paused_s": 0.0,
            "n_nodes": 4,
            "usd_per_hour": 86.0,
            "until_s": now.timestamp(),
        },
    )


def report(hot: HotStore, *ticks: int) -> None:
    """Store some seconds of two nodes whose cores change with time."""
    cores = np.linspace(0.2, 0.8, 64).reshape(2, 32)
    hot.append(
        block(tick=tick, nodes=NODES, core_utilization_ratio=cores + (tick % 5) / 25)
        for tick in ticks
    )
    trained = steps(
        workers=NODES,
        n_steps=len(ticks),
        first=ticks[0],
        compute_s=[0.6, 0.7],
        wait_s=[0.1, 0.0],
        transfer_s=0.2,
    )
    hot.append_steps(replace(trained, ended_at_s=np.array(ticks, dtype=float)))


@pytest.fixture
def fleet(
    address: str, page: Page, settings: Settings, hot: HotStore, steady: Node, alert: Alert
) -> Iterator[str]:
    """Let two nodes report every second since two minutes ago; gives the address."""
    settings.ANONYMOUS_READING = True
    now_s = int(time.time())
    report(hot, *range(now_s - PAST_S, now_s))
    ended = Event()

    def go_on() -> None:
        newest = now_s - 1
        while not ended.wait(1 - time.time() % 1):
            # An overloaded machine wakes late: no second may be missing all the same.
            if ticks := range(newest + 1, int(time.time()) + 1):
                report(hot, *ticks)
                hot.publish_tick(ticks[-1])
                newest = ticks[-1]

    thread = Thread(target=go_on)
    thread.start()
    yield address
    # The tab leaves before the server stops, so no broken stream is reported on its console.
    page.goto("about:blank")
    ended.set()
    thread.join()


@pytest.fixture
def admin(page: Page, fleet: str, client: Client) -> str:
    """Sign an admin in; gives the address of the fleet."""
    client.force_login(User.objects.create_superuser("admin"))
    session = client.cookies["trnwatch_session"].value
    page.context.add_cookies([{"name": "trnwatch_session", "value": session, "url": fleet}])
    return fleet
