"""A living fleet behind a real web server, for tests that look at it through a browser."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event, Thread

import numpy as np
import pytest
from playwright.sync_api import Page
from pytest_django import Settings

from fleet.models import Alert, Node, Run
from telemetry.store.hot import HotStore
from tests.alerts import straggling
from tests.parts import block, steps


@pytest.fixture(scope="module", autouse=True)
def _django_beside_the_browser() -> Iterator[None]:
    """Let Django be asked from the thread in which the browser's event loop runs, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield


NODES = ("steady", "limping")
PAST_S = 120


@pytest.fixture
def alert(run: Run, limping: Node) -> Alert:
    """Fire one alert that blames a node and that nobody has."""
    now = datetime.now(UTC)
    return straggling(
        run,
        limping,
        at=now,
        victims=["steady"],
        evidence={"share_ratio": 0.314, "limit_ratio": 0.25, "wait_ratio": 0.3},
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


def report(hot: HotStore, tick: int) -> None:
    """Store one second of two nodes whose cores change with time."""
    cores = np.linspace(0.2, 0.8, 64).reshape(2, 32) + (tick % 5) / 25
    hot.append([block(tick=tick, nodes=NODES, core_utilization_ratio=cores)])
    hot.append_steps(
        steps(
            workers=NODES,
            n_steps=1,
            first=tick,
            ended_at_s=tick,
            compute_s=[0.6, 0.7],
            wait_s=[0.1, 0.0],
            transfer_s=0.2,
        )
    )


@pytest.fixture
def fleet(
    address: str, page: Page, settings: Settings, hot: HotStore, steady: Node, alert: Alert
) -> Iterator[str]:
    """Let two nodes report every second, from two minutes ago on; gives the address."""
    settings.ANONYMOUS_READING = True
    now_s = int(time.time())
    for tick in range(now_s - PAST_S, now_s):
        report(hot, tick)
    over = Event()

    def go_on() -> None:
        while not over.wait(1 - time.time() % 1):
            report(hot, int(time.time()))
            hot.publish_tick(int(time.time()))

    thread = Thread(target=go_on)
    thread.start()
    yield address
    # The tab leaves before the server does: no complaint about a stream that broke off.
    page.goto("about:blank")
    over.set()
    thread.join()
