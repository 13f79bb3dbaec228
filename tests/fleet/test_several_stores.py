"""A fleet over three real Redis, of which one fails in several ways and returns."""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from typing import Any

import msgspec
import pytest
from django.test import Client
from pytest_django import Settings
from redis import Redis as RedisClient

from fleet.alerts.evaluate import WATCHES, watch
from fleet.models import Alert, Node, Run, Token
from fleet.simulation.runs import create_run, publish_plan
from telemetry import tasks
from telemetry.store.hot import HotStore, hot_store
from telemetry.store.placement import store_name
from tests.alerts import straggling
from tests.fleet.api.conftest import URL
from tests.helpers import LLAMA, watch_since
from tests.telemetry.ingest.reports import lines
from tests.telemetry.store.samples import Redis, several_redis

WITHIN_S = 30.0
N_NODES = 24
SPEC = msgspec.structs.replace(LLAMA, nodes=N_NODES, global_batch=384)


@pytest.fixture
def servers(tmp_path: Path, settings: Settings) -> Iterator[list[Redis]]:
    WATCHES.clear()
    settings.ANONYMOUS_READING = True
    with several_redis(tmp_path) as servers:
        settings.REDIS_URL, *settings.REDIS_OTHERS = [server.url for server in servers]
        yield servers


@dataclass
class Fleet:
    """One simulated run whose nodes are a shard each, and the store that fails."""

    run: Run
    hot: HotStore
    servers: list[Redis]
    now_s: int

    def __post_init__(self) -> None:
        self.nodes = dict(self.run.nodes.order_by("rank").values_list("name", "shard"))
        places = [self.hot.parts.index(self.hot.of(shard)) for shard in self.nodes.values()]
        self.place = next(place for place in (1, 2) if place in places)
        self.server, self.name = self.servers[self.place], store_name(self.servers[self.place].url)
        self.gone = {n for n, p in zip(self.nodes, places, strict=True) if p == self.place}
        self.others = self.nodes.keys() - self.gone

    def play(self, until: int) -> None:
        tasks.simulate_shards([(self.run.name, list(self.nodes.values()))], self.now_s + until)

    def elapsed_s(self) -> int:
        return int(time.time()) - self.now_s

    def newest(self) -> dict[str, int]:
        """Return the newest second of each node."""
        newest = self.hot.newest()
        return {n: newest[s] - self.now_s for n, s in self.nodes.items() if s in newest}

    def watch(self, at: int) -> set[str]:
        """Evaluate; return the open alerts."""
        watch(self.hot, now=datetime.fromtimestamp(self.now_s + at, UTC))
        return set(Alert.objects.open().values_list("subject", flat=True))

    def is_back(self) -> bool:
        return all(gap.back_s is not None for gap in self.hot.missing().values())


@pytest.fixture
def fleet(servers: list[Redis], db: None) -> Fleet:
    now_s = int(time.time())
    began = datetime.fromtimestamp(now_s - 100, UTC)
    run = create_run(SPEC, started_at=began)
    Run.objects.update(shard_nodes=1)
    run.refresh_from_db()
    for node in Node.objects.all():
        Node.objects.filter(pk=node.pk).update(shard=f"{run.name}/{node.rank}")
    hot = hot_store()
    publish_plan(hot, run, now=began)
    watch_since(hot, now_s - 100)
    fleet = Fleet(run, hot, servers, now_s)
    fleet.play(0)
    return fleet


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def start_empty(server: Redis) -> None:
    # A file, or from version 7 on a folder.
    for path in server.folder.glob("appendonly*"):
        rmtree(path) if path.is_dir() else path.unlink()
    server.start()


def command(*command: object) -> Callable[[Redis], None]:
    """Execute a command, as another client; it does not need a password."""

    def execute(server: Redis) -> None:
        with RedisClient.from_url(server.url) as client:
            client.execute_command(*command)

    return execute


def change_password(server: Redis) -> None:
    with RedisClient.from_url(server.url) as client:
        client.config_set("requirepass", "other")
        client.client_kill_filter(_type="normal", skipme=True)


def change_back(server: Redis) -> None:
    with RedisClient.from_url(server.url, password="other") as client:
        client.config_set("requirepass", "")


FAILURES: dict[str, tuple[Callable[[Redis], Any], Callable[[Redis], Any]]] = {
    "killed": (Redis.kill, Redis.start),
    "killed, and back empty": (Redis.kill, start_empty),
    "hangs": (lambda s: s.send(signal.SIGSTOP), lambda s: s.send(signal.SIGCONT)),
    "full": (command("CONFIG", "SET", "maxmemory", 1), command("CONFIG", "SET", "maxmemory", 0)),
    "another password": (change_password, change_back),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_the_others_stay_live_the_page_says_what_is_missing_and_it_heals(
    fleet: Fleet, failure: str, client: Client
) -> None:
    fails, heals = FAILURES[failure]
    assert fleet.newest() == dict.fromkeys(fleet.nodes, 0)
    old = Node.objects.get(name=min(fleet.gone))
    straggling(fleet.run, old, at=fleet.run.started_at, subject=f"node:{old}", rule="efa_degraded")

    fails(fleet.server)
    at = fleet.elapsed_s()
    for second in (at + 1, at + 2, at + 30):
        fleet.play(second)

    # Nodes of the others, and the steps of the run, go on. No silence is reported, and what was
    # open stays open.
    newest = fleet.newest()
    assert {name: newest[name] for name in fleet.others} == dict.fromkeys(fleet.others, at + 30)
    assert (fleet.hot.newest_step_at(fleet.run.name) or 0) > fleet.now_s
    assert fleet.hot.last_seen().keys() == fleet.others
    for second in (at + 30, at + 31, at + 32):
        assert fleet.watch(second) == {f"node:{old}"}

    page = client.get("/").text
    assert f"Readings of {len(fleet.gone)} node" in page
    assert fleet.name in page
    strip = page.partition("Nodes reporting")[2].partition("Runs training")[0]
    assert f"{len(fleet.gone)} unknown" in strip, strip
    of_node = client.get(f"/nodes/{old}/").text
    assert "the store of its readings has not answered" in of_node
    checks = client.get("/readyz").json()["checks"]
    assert list(checks["stores"]["away_s"]) == [fleet.name]
    assert fleet.name not in checks["redis"]

    heals(fleet.server)
    wait_for(fleet.is_back)
    at = max(at + 33, fleet.elapsed_s() + 1)
    fleet.play(at)

    assert fleet.newest() == dict.fromkeys(fleet.nodes, at)
    assert fleet.hot.last_seen().keys() == fleet.nodes.keys()
    assert fleet.watch(at) <= {f"node:{old}"}
    page = client.get("/").text
    assert "Readings of" not in page
    assert "unknown" not in page


def test_nodes_that_do_not_report_again_are_silent_only_after_a_while(fleet: Fleet) -> None:
    fleet.server.kill()
    at = fleet.elapsed_s()
    fleet.play(at + 60)
    fleet.server.start()
    wait_for(fleet.is_back)

    assert fleet.hot.last_seen().keys() == fleet.others
    assert fleet.watch(at + 60) & {f"node:{name}" for name in fleet.gone} == set()


def test_series_of_unknown_nodes_are_left_out(fleet: Fleet, client: Client) -> None:
    fleet.server.kill()
    fleet.play(fleet.elapsed_s() + 1)
    _, secret = Token.issue("scraper", Token.Scope.SCRAPE, now=datetime.now(UTC))

    page = b"".join(client.get("/metrics", headers={"Authorization": f"Bearer {secret}"}))
    up = [line for line in page.decode().split("\n") if line.startswith("trnwatch_node_up{")]

    assert {line.split('"')[1] for line in up} == fleet.others


def test_an_agent_of_the_missing_store_sends_again_and_nothing_counts_twice(
    servers: list[Redis], db: None, client: Client
) -> None:
    hot = hot_store()
    _, secret = Token.issue("nodes", Token.Scope.INGEST, now=datetime.now(UTC))
    names = [f"i-{i}" for i in range(N_NODES)]
    of_name = {name: hot.parts.index(hot.of(f"node:{name}")) for name in names}
    place = next(place for place in (1, 2) if place in of_name.values())
    gone = [name for name in names if of_name[name] == place]
    report = msgspec.json.decode(lines("trn2.48xlarge")[0])

    def send(name: str, seq: int) -> Any:
        at = {"trnwatch": {"stream": "1", "seq": seq}}
        body = msgspec.json.encode(report | at)
        headers = {"Authorization": f"Bearer {secret}"}
        return client.post(
            f"{URL}?node={name}", body, content_type="application/x-ndjson", headers=headers
        )

    servers[place].kill()
    first = {name: send(name, 1) for name in names}
    servers[place].start()
    wait_for(lambda: all(gap.back_s is not None for gap in hot.missing().values()))
    again = {name: send(name, 1) for name in gone}

    assert {name for name, answer in first.items() if answer.status_code == 503} == set(gone)
    assert all(int(answer["Retry-After"]) > 0 for answer in map(first.get, gone) if answer)
    assert {answer.status_code for answer in again.values()} == {200}
    assert sorted(hot.last_seen()) == sorted(names)
    assert hot.counters()["ingest_reports"] == len(names)
    counted = hot.totals().nodes
    assert counted
    assert all(len({of_node[name] for name in names}) == 1 for of_node in counted.values())
