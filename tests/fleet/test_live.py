"""Live streams on a real web server: access, content, delay."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any

import numpy as np
import pytest
from django.test import Client
from pytest_django import Settings
from redis import Redis

from fleet.models import Node
from fleet.pages import live
from telemetry.store.hot import HotStore, open_store
from tests.fleet.test_anonymous_access import member
from tests.helpers import block, free_port, redis_server, steps
from tests.streams import Event, Refused, first, stream, watch

N_TABS = 100
WATCHED_S = 6.0
SAMPLE_TO_SCREEN_S = 1.5


@pytest.fixture(autouse=True)
def _open_to_all(settings: Settings) -> None:
    settings.ANONYMOUS_READING = True


def report(hot: HotStore) -> int:
    """Store one second of two nodes, publish it, and return it."""
    tick = int(time.time())
    cores = np.full((2, 32), (tick % 100) / 127)
    hot.append([block(tick=tick, core_utilization_ratio=cores)])
    hot.append_steps(steps(n_steps=1, first=tick, ended_at_s=tick, compute_s=0.8, transfer_s=0.2))
    hot.publish_tick(tick)
    return tick


@pytest.fixture
def reports(hot: HotStore, steady: Node, limping: Node) -> Iterator[dict[int, float]]:
    """Let two nodes report at every full second; gives when each tick was sampled."""
    over, sampled = Flag(), {}

    def tick() -> None:
        while not over.wait(1 - time.time() % 1):
            now_s = time.time()
            sampled[report(hot)] = now_s

    sampled[report(hot)] = time.time()
    thread = Thread(target=tick)
    thread.start()
    yield sampled
    over.set()
    thread.join()


def first_core(event: Event) -> int:
    """Return the byte of the first core of the first node in a heat event."""
    return base64.b64decode(json.loads(event.data)["steady"])[0]


def test_a_tab_gets_everything_once_and_then_what_changes(
    address: str, reports: dict[int, float]
) -> None:
    async def scenario() -> list[str]:
        async with stream(address, "overview") as events:
            names = []
            async for event in events:
                names.append(event.name)
                if names.count("heat") == 4:
                    return names
        return []

    names = watch(scenario())

    assert names[0] == "parts"
    assert {"strip", "heat-map", "runs", "alerts", "tick"} <= set(names)
    assert names.count("heat-map") == names.count("alerts") == 1


def test_the_value_of_a_core_arrives_in_time(address: str, reports: dict[int, float]) -> None:
    async def scenario() -> tuple[int, int]:
        async with stream(address, "overview") as events:
            before = first_core(await first(events, "heat"))
            return before, first_core(await first(events, "heat"))

    before, after = watch(scenario())

    assert before != after


def test_a_hundred_tabs_see_a_sample_in_time(address: str, reports: dict[int, float]) -> None:
    async def tab() -> list[float]:
        late = []
        async with stream(address, "overview") as events:
            await first(events, "heat")
            until_s = time.time() + WATCHED_S
            while time.time() < until_s:
                event = await first(events, "heat")
                shown = {round((tick % 100) / 127 * 254): at for tick, at in reports.items()}
                late.append(event.at_s - shown[first_core(event)])
        return late

    async def scenario() -> list[list[float]]:
        return await asyncio.gather(*(tab() for _ in range(N_TABS)))

    late = watch(scenario(), timeout_s=40)

    assert all(len(tab) >= WATCHED_S - 2 for tab in late)
    assert float(np.percentile(np.concatenate(late), 99)) <= SAMPLE_TO_SCREEN_S


def test_open_tabs_are_counted(address: str, reports: dict[int, float], hot: HotStore) -> None:
    async def scenario() -> list[float]:
        counts = []
        async with stream(address, "overview") as one, stream(address, "overview") as other:
            for events in (one, other, one, other):
                await first(events, "tick")
            counts.append(hot.gauges()["stream_clients"])
        return counts

    assert watch(scenario()) == [2.0]


def test_a_tab_that_closes_is_forgotten(
    address: str, reports: dict[int, float], hot: HotStore
) -> None:
    async def scenario() -> float:
        async with stream(address, "overview") as stays:
            async with stream(address, "overview") as leaving:
                await first(leaving, "heat")
            while True:
                await first(stays, "tick")
                if hot.gauges()["stream_clients"] == 1:
                    return 1

    assert watch(scenario()) == 1


def test_an_open_tab_ends_when_it_may_no_longer_read(
    address: str,
    reports: dict[int, float],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "ACCESS_EVERY_S", 0.0)

    async def scenario() -> None:
        async with stream(address, "overview") as events:
            await first(events, "heat")
            settings.ANONYMOUS_READING = False
            with pytest.raises(asyncio.IncompleteReadError):
                await first(events, "never")

    watch(scenario())


def test_a_tab_that_does_not_read_harms_no_one(address: str, reports: dict[int, float]) -> None:
    async def scenario() -> int:
        async with stream(address, "overview"), stream(address, "overview") as reads:
            return len([await first(reads, "heat") for _ in range(3)])

    assert watch(scenario()) == 3


def test_pages_say_it_when_redis_is_emptied_and_continue_when_it_fills(
    address: str, reports: dict[int, float], redis: Redis
) -> None:
    async def scenario() -> list[int]:
        async with stream(address, "overview") as events:
            await first(events, "heat")
            redis.flushdb()
            return [first_core(await first(events, "heat")) for _ in range(2)]

    assert len(watch(scenario())) == 2


def test_an_open_tab_outlives_redis(
    address: str, settings: Settings, tmp_path: Path, steady: Node, limping: Node
) -> None:
    port = free_port()
    settings.REDIS_URL = f"redis://127.0.0.1:{port}/0"

    async def reason_of(events: AsyncGenerator[Event], why: str) -> None:
        while json.loads((await first(events, "tick")).data)["why"] != why:
            pass

    async def scenario() -> None:
        async with AsyncExitStack() as tabs:
            with redis_server(tmp_path, port=port):
                report(open_store(settings.REDIS_URL))
                events = await tabs.enter_async_context(stream(address, "overview"))
                await reason_of(events, "")
            await reason_of(events, "Redis is not responding")
            with redis_server(tmp_path, port=port):
                report(open_store(settings.REDIS_URL))
                await reason_of(events, "")

    watch(scenario(), timeout_s=40)


def test_stale_data_are_reported(address: str, hot: HotStore, steady: Node, limping: Node) -> None:
    hot.append([block(tick=int(time.time()) - 60)])

    async def scenario() -> dict[str, Any]:
        async with stream(address, "overview") as events:
            state: dict[str, Any] = json.loads((await first(events, "tick")).data)
            return state

    assert watch(scenario())["why"] == "no nodes are reporting"


def test_a_pause_of_our_own_workers_is_not_reported_as_silence_of_the_nodes(
    address: str, hot: HotStore, steady: Node, limping: Node
) -> None:
    hot.append([block(tick=int(time.time()) - 60)])
    hot.gauge("watched_at_s", time.time() - 60)

    async def scenario() -> dict[str, Any]:
        async with stream(address, "overview") as events:
            state: dict[str, Any] = json.loads((await first(events, "tick")).data)
            return state

    assert watch(scenario())["why"].startswith("trnwatch's own workers have been stopped for ")


@pytest.mark.parametrize("nodes", [("steady", "limping"), ("steady",)])
def test_data_that_are_late_are_not_called_silence(
    address: str, hot: HotStore, steady: Node, limping: Node, nodes: tuple[str, ...]
) -> None:
    hot.append([block(tick=int(time.time()) - 7, nodes=nodes)])

    async def scenario() -> dict[str, Any]:
        async with stream(address, "overview") as events:
            state: dict[str, Any] = json.loads((await first(events, "tick")).data)
            return state

    state = watch(scenario())
    assert state["why"] == ""
    assert state["reporting"] == [len(nodes), 2]


@pytest.mark.parametrize(
    ("topic", "status"), [("weather", 400), ("", 400), ("overview:x", 400), ("node:missing", 404)]
)
def test_a_topic_that_is_not_there_is_refused(address: str, topic: str, status: int) -> None:
    async def scenario() -> int:
        try:
            async with stream(address, topic):
                return 200
        except Refused as refused:
            return refused.status

    assert watch(scenario()) == status


def test_anonymous_users_get_no_stream(client: Client, db: None, settings: Settings) -> None:
    settings.ANONYMOUS_READING = False

    assert client.get("/live", {"topic": "overview"}).status_code == 302


@pytest.mark.parametrize(("role", "is_refused"), [("operator", True), ("lead", False)])
def test_a_page_of_leads_is_streamed_to_leads_alone(
    client: Client, db: None, role: str, *, is_refused: bool
) -> None:
    client.force_login(member(role))
    answer = client.get("/live", {"topic": "budgets"})

    assert (answer.status_code == 403) == is_refused


def test_it_is_for_reading_only(client: Client, db: None) -> None:
    client.force_login(member("admin"))
    assert client.post("/live").status_code == 405


def test_of_several_topics_the_refused_one_takes_nothing_from_the_others(
    address: str, reports: dict[int, float]
) -> None:
    async def scenario() -> dict[str, set[str]]:
        asked, names = ("overview", "alert:404", "alerts?state=open"), dict[str, set[str]]()
        async with stream(address, *asked) as events:
            topic = ""
            async for event in events:
                if event.name == "topic":
                    topic = asked[int(event.data)]
                else:
                    names.setdefault(topic, set()).add(event.name)
                if event.name == "heat" and len(names) == len(asked) and "open" in names[asked[2]]:
                    return names
        return {}

    names = watch(scenario())

    assert names["alert:404"] == {"refused"}
    assert {"parts", "tick", "heat", "strip"} <= names["overview"]
    assert {"parts", "tick", "open"} <= names["alerts?state=open"]
    assert "heat" not in names["alerts?state=open"]
