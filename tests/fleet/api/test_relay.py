"""Agents that report through a relay: programs, with servers that stop and start."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telemetry.agent.clock import Clock, Moment
from telemetry.agent.relay import MAX_BODY_BYTES, Relay, RelayServer
from telemetry.agent.reports import MONITOR, Health, encode_tail
from telemetry.agent.sender import AgentSender
from telemetry.agent.spool import Spool, gzip_member
from telemetry.store.hot import HotStore
from tests import warm
from tests.fleet.api.test_ingest_asgi import until_open
from tests.fleet.api.test_steps_restarts import Place
from tests.helpers import free_port, redis_server
from tests.telemetry.ingest.reports import lines
from tests.trnwatch.servers import until
from trnwatch.wire import ServerConnection

NODES = ("rack-1", "rack-2", "rack-3")
PATH = "/api/v1/ingest/neuron-monitor"
REPORTS = lines("trn2.48xlarge")
COMPLETED = "executions_completed_per_s"


class Agent:
    """A spool and a sender, as an agent has them; it reports past seconds, one after the other."""

    def __init__(self, folder: Path, node: str, address: str, token: str) -> None:
        self.node, self.health, self.clock = node, Health(), Clock()
        now = self.clock.now()
        self.spool = Spool(folder / node, max_bytes=10**7, boot=self.clock.boot, now=now)
        earlier_s = 120.5 + now.wall_s % 1
        self.made = Moment(now.wall_s - earlier_s, now.up_s - earlier_s)
        self.wire = ServerConnection(address, token=lambda: token, option="--server")
        self.sender = AgentSender(
            self.spool, self.wire, self.health, self.clock, every_s=0.05, node=node
        )
        self.sender.start()

    def report(self, n: int) -> None:
        for _ in range(n):
            self.made = Moment(self.made.wall_s + 1, self.made.up_s + 1)
            text = REPORTS[self.spool.n_waiting % len(REPORTS)]
            self.spool.append(MONITOR, self.made, gzip_member(encode_tail(text, {})))

    @property
    def problem(self) -> str:
        return str(self.health.summary(n_waiting=0).get("problem", ""))

    def close(self) -> None:
        self.sender.stop(5.0)
        self.wire.close()
        self.spool.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with redis_server(tmp_path) as redis_url:
        yield Place(tmp_path, redis_url)


@contextmanager
def relayed(place: Place, *options: str) -> Iterator[int]:
    """Run a relay as a program; gives its port."""
    port = free_port()
    command = ["-m", "telemetry.agent", "relay", "--listen", f"127.0.0.1:{port}"]
    command += ["--server", f"http://127.0.0.1:{place.port}", *options]
    with (place.folder / "relay.log").open("ab") as log:
        env = place.environment | {"TRNWATCH_TOKEN": place.token}
        relay = warm.start(command, env=env, stdout=log, stderr=log)
    try:
        until_open(port, relay)
        yield port
        relay.terminate()
        assert relay.wait(20) == 0
    finally:
        relay.kill()


def ask(
    port: int, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, str, Mapping[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        with connection.getresponse() as response:
            return response.status, response.read().decode(), dict(response.headers.items())
    finally:
        connection.close()


def metrics(port: int) -> dict[str, float]:
    _, text, _ = ask(port, "GET", "/metrics")
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def stored(hot: HotStore, node: str) -> tuple[list[int], float]:
    """Return the seconds of a node that are there, and its executions in them."""
    now = int(time.time())
    values = hot.window(f"node:{node}", (COMPLETED,), start=now - 300, end=now).values[COMPLETED]
    seen = np.isfinite(values).any(axis=(1, 2)) if values.size else np.zeros(0, bool)
    return np.flatnonzero(seen).tolist(), float(np.nansum(values))


def test_a_server_that_is_restarted_loses_nothing_and_stores_nothing_twice(place: Place) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(relayed(place))
        agents = [Agent(place.folder, n, f"http://127.0.0.1:{port}", place.token) for n in NODES]
        for agent in agents:
            stack.callback(agent.close)
        with place.served():
            for agent in agents:
                agent.report(3)
            until(lambda: all(agent.spool.n_waiting == 0 for agent in agents))
        for agent in agents:
            agent.report(20)
        until(lambda: all("The relay has no answer" in agent.problem for agent in agents))
        assert [agent.spool.n_waiting for agent in agents] == [20] * 3
        with place.served():
            until(lambda: all(agent.spool.n_waiting == 0 for agent in agents))
            for agent in agents:
                agent.report(4)
            until(lambda: all(agent.spool.n_waiting == 0 for agent in agents))
            assert [agent.problem for agent in agents] == [""] * 3
        counts = metrics(port)

    assert place.hot.counters()["ingest_reports"] == 3 * 27
    for node in NODES:
        seconds, completed = stored(place.hot, node)
        assert seconds == list(range(seconds[0], seconds[0] + 27))
        assert place.hot.totals().nodes[COMPLETED][node] == pytest.approx(completed, rel=0.01)
    assert counts['trnwatch_relay_requests_total{result="answered"}'] >= 9
    assert counts['trnwatch_relay_requests_total{result="failed"}'] >= 3
    assert counts["trnwatch_relay_held_bytes"] == 0


def test_each_node_is_checked_by_its_own_token_and_many_share_a_request(place: Place) -> None:
    tokens = [place.token, "trnw_unknown", place.token, place.token]
    answers: dict[int, tuple[int, dict[str, Any]]] = {}

    def send(i: int, body: bytes) -> None:
        status, text, _ = ask(
            port, "POST", f"{PATH}?node=n{i}", body, Authorization=f"Bearer {tokens[i]}",
            Prefer="wait=1",
        )  # fmt: skip
        answers[i] = status, json.loads(text)

    with place.served(), relayed(place) as port:
        bodies = [REPORTS[0], REPORTS[0], b"no JSON", REPORTS[1]]
        threads = [threading.Thread(target=send, args=each) for each in enumerate(bodies)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        n_sent = metrics(port)["trnwatch_relay_sent_total"]

    assert n_sent == 1
    assert [answers[i][0] for i in range(4)] == [200, 401, 400, 200]
    assert answers[0][1]["accepted"] == 1
    assert answers[0][1]["takes"] == ["columns", "zstd"]
    assert answers[1][1]["detail"] == "The token is not known."
    assert answers[2][1]["field"] == ""
    assert sorted(place.hot.newest()) == ["node:n0", "node:n3"]


def test_a_server_refuses_what_is_not_of_a_relay(place: Place) -> None:
    head = {"target": f"{PATH}?node=a", "headers": {}, "n": 3}
    with place.served():
        for body in (
            b"no line",
            b'{"target": "/", "headers": {}, "n": 0}\n',
            json.dumps(head).encode() + b"\nab",
            json.dumps(head | {"n": -1}).encode() + b"\nabc",
            json.dumps(head | {"held_s": 1e9}).encode() + b"\nabc",
            (json.dumps(head | {"n": 0}).encode() + b"\n") * 257,
        ):
            status, text, _ = ask(
                place.port, "POST", "/api/v1/ingest/relay", body,
                Authorization=f"Bearer {place.token}",
            )  # fmt: skip
            assert (status, json.loads(text)["field"]) == (400, "body"), body[:80]
        unknown = ask(place.port, "POST", "/api/v1/ingest/relay", b"", Authorization="Bearer x")
        assert unknown[0] == 401
        # Each request is refused for itself.
        status, text, _ = ask(
            place.port, "POST", "/api/v1/ingest/relay", json.dumps(head).encode() + b"\nabc",
            Authorization=f"Bearer {place.token}",
        )  # fmt: skip
        assert status == 200
        assert [each["status"] for each in json.loads(text)["answers"]] == [401]


@pytest.fixture
def server() -> Iterator[RelayServer]:
    """Give a relay that may hold 1,000 bytes; no server answers it."""
    wire = ServerConnection("http://127.0.0.1:1", token=lambda: "x", option="--server")
    server = RelayServer(("127.0.0.1", 0), Relay(wire, Health(), max_bytes=1_000))
    server.relay.start()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_relay_turns_away_what_it_cannot_hold(server: RelayServer) -> None:
    port = server.server_port
    status, text, headers = ask(port, "POST", PATH, bytes(1_001))
    assert (status, headers["Retry-After"]) == (503, "5")
    assert "holds as many reports as it may" in text
    status, text, _ = ask(port, "POST", PATH, bytes(999))
    assert status == 503
    assert "no answer of the server: ConnectionRefusedError" in text
    assert ask(port, "POST", "/api/v1/ingest/steps", b"{}")[0] == 404
    assert ask(port, "POST", PATH, b"", Content_Length=str(MAX_BODY_BYTES + 1))[0] == 413
    assert ask(port, "GET", "/live")[0] == 200
    assert ask(port, "GET", "/")[0] == 404
    counts = metrics(port)
    assert counts['trnwatch_relay_requests_total{result="turned_away"}'] == 1
    assert counts['trnwatch_relay_requests_total{result="failed"}'] == 1
    assert counts["trnwatch_relay_held_bytes"] == 0


def test_a_relay_forgets_a_body_that_is_cut_short(server: RelayServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)) as node:
        node.sendall(f"POST {PATH} HTTP/1.1\r\nContent-Length: 900\r\n\r\nabc".encode())
    until(lambda: metrics(server.server_port)["trnwatch_relay_held_bytes"] == 0)
