"""Connection limits for anonymous clients: bytes, number, time."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import pytest
from pytest_django import Settings
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from fleet.api.connections import EXTENSION, LimitedProtocol, Limits
from fleet.api.ingest_asgi import IngestApplication, Receive, Send
from tests.web_server import served

QUICK = Limits(header_s=0.4, request_s=0.8, unread_s=0.2)
WITHIN_S = 20


async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Read a whole body as Django does; return its length, or stream for a while."""
    if scope["path"] == "/known":
        scope["extensions"][EXTENSION].identify()
    n_bytes, is_open = 0, scope["path"] != "/unread"
    while is_open:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        n_bytes += len(message["body"])
        is_open = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/stream":
        for _ in range(8):
            await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
            await asyncio.sleep(0.25)
    await send({"type": "http.response.body", "body": f"{n_bytes} bytes".encode()})


class Server:
    """A server with limits of its own."""

    def __init__(self, url: str, protocol: type[LimitedProtocol]) -> None:
        self.port = int(url.rpartition(":")[2])
        self._protocol = protocol

    def connect(self, *sent: bytes) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S)
        for piece in sent:
            client.sendall(piece)
        return client

    def status(self, path: str = "/", body: bytes | None = None, *, secret: str = "") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)
        with closing(connection):
            headers = {"Authorization": f"Bearer {secret}"} if secret else {}
            connection.request("POST" if body else "GET", path, body, headers)
            return connection.getresponse().status

    @property
    def held_bytes(self) -> int:
        return sum(tracker.held_bytes for tracker in self._protocol._trackers.values())


@contextmanager
def limited(limits: Limits, app: Any = application, *, stop_within_s: int = 1) -> Iterator[Server]:
    class Protocol(LimitedProtocol):
        _trackers: ClassVar = type(LimitedProtocol._trackers)()

    Protocol.limits = limits
    with served(app, Protocol, stop_within_s=stop_within_s) as url:
        yield Server(url, Protocol)


def response_of(client: socket.socket) -> tuple[int, str]:
    """Read to the end; return the status and the problem document."""
    pieces = []
    with client, suppress(ConnectionResetError):
        while piece := client.recv(65_536):
            pieces.append(piece)
    head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
    if not head:
        return 0, ""
    assert b"Connection: close" in head
    document = json.loads(body)
    status = int(head.split(b" ", 2)[1])
    assert document["status"] == status
    return status, document["detail"]


def is_answered(client: socket.socket) -> bool:
    """Read one response of a connection that stays open, and whether it is a success."""
    text = b""
    while not text.endswith(b"\r\n0\r\n\r\n") and (piece := client.recv(1_000)):
        text += piece
    return text.startswith(b"HTTP/1.1 200")


def held(endpoint: IngestApplication, n_bytes: int) -> None:
    """Wait until large bodies of so many bytes are in memory."""
    until_s = time.monotonic() + WITHIN_S
    while sum(endpoint._body_memory._held.values()) != n_bytes:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def head(path: str = "/", *, length: int = 0, more: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{more}\r\n"
    ).encode()


ONE = b"Host: localhost\r\n"


@pytest.mark.parametrize(
    ("target", "hosts"),
    [
        (b"%s", b""),
        (b"%s", ONE + ONE),
        (b"%s", ONE + b"host: other\r\n"),
        (b"%s", b"Host:\r\n"),
        (b"%s", b"Host: a b\r\n"),
        (b"%s", b"Host: user@localhost\r\n"),
        (b"%s", b"Host: localhost/x\r\n"),
        (b"%s", b"Host: localhost,other\r\n"),
        (b"%s", b"Host: localhost:80x\r\n"),
        (b"%s", b"Host: [::1\r\n"),
        (b"%s", b"Host: \xe4\r\n"),
        (b"http://other%s", ONE),
        (b"http://localhost:81%s", ONE),
        (b"https://localhost@other%s", ONE),
        (b"http://%s", ONE),
    ],
)
def test_a_request_without_one_valid_host_is_refused(target: bytes, hosts: bytes) -> None:
    paths = (b"/", b"/api/v1/ingest/neuron-monitor", b"/static/x")
    with limited(Limits(), IngestApplication(answered)) as server:
        for path, version in product(paths, (b"1.0", b"1.1")):
            line = b"POST " + target % path + b" HTTP/" + version + b"\r\n"
            status, detail = response_of(server.connect(line + hosts + b"\r\n"))
            assert status == 400
            assert "Host" in detail or "HTTP/1.1" in detail


@pytest.mark.parametrize(
    ("target", "host"),
    [
        (b"/", b"localhost"),
        (b"/", b"LOCALHOST:8000"),
        (b"/", b"127.0.0.1"),
        (b"/", b"[::1]:8000"),
        (b"/", b"my_service"),
        (b"http://localhost/", b"localhost"),
        (b"http://LOCALHOST:80/?a=/", b"localhost"),
        (b"https://localhost/", b"localhost:443"),
        (b"/?to=http://other/", b"localhost"),
    ],
)
def test_a_request_with_one_valid_host_is_answered(target: bytes, host: bytes) -> None:
    request = b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
    with limited(Limits()) as server, server.connect(request) as client:
        assert is_answered(client)


async def answered(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_half_sent_headers_are_closed_at_the_deadline() -> None:
    with limited(QUICK) as server:
        clients = [server.connect(b"GET / HTTP/1.1\r\nHost: local") for _ in range(200)]
        answers = {response_of(client) for client in clients}
        status = server.status()

    assert answers == {(408, "The header did not end within 0.4 s.")}
    assert status == 200


def test_a_header_that_drips_is_closed_too() -> None:
    with limited(QUICK) as server, server.connect(b"GET / HTTP/1.1\r\n") as client:
        closed = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not closed.wait(0.05):
                    client.sendall(b"X-A: b\r\n")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert client.recv(1_000).startswith(b"HTTP/1.1 408")
        finally:
            closed.set()
            thread.join()


def test_a_second_request_has_the_same_deadline() -> None:
    with limited(QUICK) as server, server.connect(head() + b"\r\n") as client:
        assert is_answered(client)
        client.sendall(b"GET /")
        assert response_of(client)[0] == 408


def test_blank_lines_keep_no_connection_open() -> None:
    with limited(QUICK) as server, server.connect(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") as client:
        assert is_answered(client)
        client.sendall(b"\r\n")
        assert response_of(client)[0] == 408


def test_a_silent_connection_is_closed_without_a_response() -> None:
    with limited(QUICK) as server:
        assert response_of(server.connect()) == (0, "")


def test_an_anonymous_body_has_a_deadline() -> None:
    with limited(QUICK) as server:
        assert response_of(server.connect(head(length=100), b"x")) == (
            408,
            "The request did not end within 0.8 s.",
        )
        assert server.held_bytes == 0


def test_a_slow_body_with_a_token_has_no_deadline() -> None:
    with limited(QUICK) as server, server.connect(head("/known", length=8)) as client:
        for _ in range(8):
            time.sleep(0.2)
            client.sendall(b"x")
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += client.recv(1_000)
        # The next request of this connection is anonymous again.
        client.sendall(b"GET /")

        assert b"8 bytes" in answer
        assert response_of(client)[0] == 408


def test_streams_of_a_hundred_tabs_continue() -> None:
    with limited(replace(QUICK, n_waiting=5, n_waiting_per_network=5)) as server:
        tabs = []
        for _ in range(100):
            tabs.append(server.connect(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            assert tabs[-1].recv(1_000).startswith(b"HTTP/1.1 200")
        whole = []
        for tab in tabs:
            with tab:
                received = b""
                while not received.endswith(b"0\r\n\r\n"):
                    received += tab.recv(65_536)
                whole.append(b"0 bytes" in received)

    assert all(whole)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + b"X-A: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 102, 431),
        (b"GET /?" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n" * 20, 429),
        (b"no HTTP at all\r\n\r\n", 400),
    ],
    ids=["long", "many", "url", "pipelined", "nonsense"],
)
def test_what_no_client_sends_is_refused(sent: bytes, status: int) -> None:
    with limited(QUICK) as server:
        assert response_of(server.connect(sent))[0] == status


def test_a_header_without_an_end_is_refused_before_it_is_large() -> None:
    limits = replace(Limits(), header_bytes=10_000)
    with limited(limits) as server, server.connect(b"GET / HTTP/1.1\r\nX-A: ") as client:
        time.sleep(0.1)
        client.settimeout(WITHIN_S)
        with suppress(OSError):
            for _ in range(100):
                client.sendall(b"x" * 1_000)
                time.sleep(0.002)
        assert client.recv(1_000).startswith(b"HTTP/1.1 431")


def test_the_oldest_makes_room_for_the_newest() -> None:
    with limited(replace(Limits(), n_waiting=3)) as server, ExitStack() as open_ones:
        clients = [server.connect(b"GET /") for _ in range(3)]
        for client in clients:
            open_ones.enter_context(client)
        time.sleep(0.1)
        assert server.status() == 200
        assert response_of(clients[0]) == (503, "Too many unfinished requests. Try again.")
        clients[1].sendall(b" HTTP/1.1\r\nHost: a\r\n\r\n")
        assert clients[1].recv(1_000).startswith(b"HTTP/1.1 200")


def test_networks_have_separate_limits(settings: Settings) -> None:
    limits = replace(Limits(), n_waiting_per_network=2)
    behind = ProxyHeadersMiddleware(IngestApplication(application), ["127.0.0.1"])  # type: ignore[arg-type]
    settings.TRUSTED_PROXIES = ["127.0.0.1"]
    with limited(limits, behind) as server, ExitStack() as open_ones:
        clients = [
            open_ones.enter_context(
                server.connect(head("/", length=9, more=f"X-Forwarded-For: {host}\r\n"))
            )
            for host in ("192.0.2.1", "192.0.2.7", "192.0.2.1", "192.0.2.7", "192.0.2.1")
        ]

        assert response_of(clients[0]) == (429, "Too many unfinished requests from this network.")
        for client in clients[1:]:
            client.sendall(b"x" * 9)
            assert client.recv(1_000).startswith(b"HTTP/1.1 200")


def test_bytes_of_anonymous_clients_share_one_limit() -> None:
    limits = replace(Limits(), held_bytes=150_000)
    with limited(limits) as server:
        first = server.connect(head(length=100_000), b"x" * 60_000)
        while server.held_bytes < 60_000:
            time.sleep(0.01)
        second = server.connect(head(length=100_000), b"x" * 99_000)
        assert response_of(second) == (503, "Too many unanswered bytes. Try again.")
        with first:
            first.sendall(b"x" * 40_000)
            assert first.recv(1_000).startswith(b"HTTP/1.1 200")
        assert server.status(body=b"x" * 100_000) == 200
        assert server.held_bytes == 0


def test_a_body_that_no_one_reads_ends_with_the_answer() -> None:
    with limited(QUICK) as server, server.connect(head("/unread", length=9_000_000)) as client:
        received = b""
        with suppress(ConnectionResetError):
            while piece := client.recv(1_000):
                received += piece
        assert received.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("n_before", [0, 1])
def test_a_server_that_stops_answers_the_request_that_is_on_its_way(n_before: int) -> None:
    answers: list[bytes] = []

    def ask_once_it_stops() -> None:
        with suppress(ConnectionRefusedError, ConnectionResetError):
            while True:
                server.connect().close()
        client.sendall(head())
        answers.append(client.makefile("rb").read())

    asking = threading.Thread(target=ask_once_it_stops)
    with limited(Limits(last_request_s=WITHIN_S), stop_within_s=WITHIN_S) as server:
        client = server.connect()
        # Answered, so that the earlier connection is accepted too.
        assert server.status() == 200
        for _ in range(n_before):
            client.sendall(head())
            assert is_answered(client)
        asking.start()
    asking.join()
    client.close()

    [answer] = answers
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer.lower()


def test_a_body_that_stops_is_given_up() -> None:
    endpoint = IngestApplication(application, body_idle_s=0.3)
    with limited(Limits(), endpoint) as server, server.connect(head(length=100), b"x") as client:
        assert client.recv(1_000).startswith(b"HTTP/1.1 408")


@pytest.mark.django_db(transaction=True)
def test_while_large_bodies_are_held_the_next_ones_wait_until_they_are_answered(
    secret: str,
) -> None:
    endpoint = IngestApplication(application, max_held_bytes=100_000, turn_within_s=60)
    with limited(Limits(), endpoint) as server, ThreadPoolExecutor() as threads:
        first = server.connect(
            head(length=200_000, more=f"Authorization: Bearer {secret}\r\n"), b"x" * 190_000
        )
        held(endpoint, 190_000)
        second = threads.submit(server.status, body=b"x" * 80_000, secret=secret)
        held(endpoint, 270_000)
        # What anybody may send does not wait.
        assert server.status(body=b"x" * 60_000) == 200
        with first:
            first.sendall(b"x" * 10_000)
            assert first.recv(1_000).startswith(b"HTTP/1.1 200")
        assert second.result() == 200
        held(endpoint, 0)


@pytest.mark.django_db(transaction=True)
def test_a_large_body_without_room_is_refused_in_the_end(secret: str) -> None:
    endpoint = IngestApplication(application, max_held_bytes=100_000, turn_within_s=0.1)
    with limited(Limits(), endpoint) as server:
        with server.connect(
            head(length=200_000, more=f"Authorization: Bearer {secret}\r\n"), b"x" * 190_000
        ):
            held(endpoint, 190_000)
            assert server.status(body=b"x" * 80_000, secret=secret) == 503
        held(endpoint, 0)
        assert server.status(body=b"x" * 80_000, secret=secret) == 200
