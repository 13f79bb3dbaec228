"""Ingest on a real web server: streams, limits before reading, concurrent clients."""

import http.client
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlencode

import numpy as np
import psutil
import pytest

from telemetry.store.hot import HotStore, open_store
from telemetry.store.refused import read_all_refused
from tests import warm
from tests.fleet.api.conftest import URL
from tests.fleet.ops.installation import prepared
from tests.helpers import free_port, redis_server
from tests.telemetry.ingest.reports import encoded, lines, report, stream

MB = 1_000_000


class Site:
    """A web server of our own, with its stores and a token."""

    def __init__(self, port: int, environment: dict[str, str], token: str, pid: int) -> None:
        self.port = port
        self.process = psutil.Process(pid)
        self._environment = environment
        self.token = token
        self.hot: HotStore = open_store(environment["REDIS_URL"])

    def manage(self, *command: str) -> str:
        return manage(self._environment, *command)

    def session(self) -> str:
        """Sign in a new user by the form, and return the session key."""
        name = f"user-{secrets.token_hex(4)}"
        made = json.loads(self.manage("create_user", name, "--role", "operator", "--json"))
        with self.ask("GET", "/sign-in/") as response:
            page, cookie = response.read().decode(), response.headers["Set-Cookie"]
        form = {
            "username": name,
            "password": made["password"],
            "csrfmiddlewaretoken": page.partition('name="csrfmiddlewaretoken" value="')[2][:64],
        }
        headers = {
            "Cookie": cookie.partition(";")[0],
            "Content-Type": "application/x-www-form-urlencoded",
        }
        with self.ask("POST", "/sign-in/", urlencode(form), **headers) as response:
            cookies = " ".join(response.headers.get_all("Set-Cookie") or [])
        return cookies.partition("trnwatch_session=")[2].partition(";")[0]

    @contextmanager
    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        auth = {"Authorization": f"Bearer {self.token}"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, auth | named)
            with connection.getresponse() as response:
                yield response

    def post(self, body: Any, query: str = "", **headers: str) -> tuple[int, dict[str, Any]]:
        with self.ask("POST", URL + query, body, **headers) as response:
            answer: dict[str, Any] = json.loads(response.read())
            return response.status, answer

    def seconds_of(self, node: str) -> int:
        span = self.hot.window(
            f"node:{node}",
            ("vcpu_usage_ratio",),
            start=int(time.time()) - 60,
            end=int(time.time()),
        )
        values = span.values.get("vcpu_usage_ratio")
        return 0 if values is None else int(np.isfinite(values).sum())


def manage(environment: dict[str, str], *command: str) -> str:
    done = warm.run(["manage.py", *command], env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def until_open(port: int, server: warm.Program) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the web server did not open its port")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with redis_server(folder) as redis_url:
        environment = os.environ | {
            "TRNWATCH_DATA_DIR": str(folder),
            "DATABASE_URL": f"sqlite:///{folder / 'site.sqlite3'}",
            "REDIS_URL": redis_url,
        }
        shutil.copy(prepared() / "trnwatch.sqlite3", folder / "site.sqlite3")
        token = manage(environment, "create_token", "test", "--scope", "ingest")
        port = free_port()
        command = ["uvicorn", "fleet.asgi:application", "--port", str(port), "--no-access-log"]
        command += ["--http", "fleet.api.connections:LimitedProtocol"]
        with (folder / "web.log").open("wb") as log:
            server = warm.start(["-m", *command], env=environment, stderr=log, stdout=log)
        try:
            until_open(port, server)
            yield Site(port, environment, token, server.pid)
        finally:
            server.terminate()
            server.wait(20)


def test_a_body_is_accepted(site: Site) -> None:
    status, answer = site.post(stream("trn2.48xlarge"), "?node=whole")

    assert (status, answer["accepted"], answer["node"]) == (200, 3, "whole")
    assert site.seconds_of("whole") == 3


def test_refusals_are_the_same_as_everywhere(site: Site) -> None:
    body = lines("trn1.2xlarge")[0] + b"\nnonsense"

    assert site.post(body, "?node=refusing")[1]["refused"][0]["line"] == 2
    assert site.post(b"nonsense")[0] == 400
    assert site.post(b"x", Authorization="Bearer nope")[0] == 401
    assert site.post(b"x", "?node=a%20b")[1]["field"] == "node"
    assert site.post(b"x", Content_Encoding="br")[0] == 415


def test_other_methods_go_to_django(site: Site) -> None:
    with site.ask("GET", URL) as response:
        assert response.status == 405


def test_lines_of_a_stream_are_stored_as_they_come(site: Site) -> None:
    shown = lines("trn1.2xlarge")
    seen_while_open = []

    def slowly() -> Iterator[bytes]:
        for line in shown[:3]:
            yield line[:100]
            time.sleep(0.02)
            yield line[100:] + b"\n"
            time.sleep(1.1)
            seen_while_open.append(site.seconds_of("live"))

    status, answer = site.post(slowly(), "?live=1&node=live")

    assert (status, answer["accepted"], answer["n_refused"]) == (200, 3, 0)
    assert seen_while_open[0] >= 1
    assert seen_while_open[-1] >= 3


def test_line_numbers_run_through_a_stream(site: Site) -> None:
    def slowly() -> Iterator[bytes]:
        yield lines("trn1.2xlarge")[0] + b"\n"
        time.sleep(0.2)
        yield b"\nnonsense\n"
        time.sleep(0.2)
        yield b"more nonsense"

    _, answer = site.post(slowly(), "?live=1&node=numbered")

    assert [refusal["line"] for refusal in answer["refused"]] == [3, 4]


def test_a_report_over_several_lines_comes_through_a_stream_in_pieces(site: Site) -> None:
    printed = json.dumps(json.loads(lines("trn1.2xlarge")[0]), indent=2).encode()

    def slowly() -> Iterator[bytes]:
        yield printed[:2_000]
        time.sleep(0.2)
        yield printed[2_000:] + b"\n"
        time.sleep(0.2)
        yield b"nonsense"

    _, answer = site.post(slowly(), "?live=1&node=printed")

    assert answer["accepted"] == 1
    assert [refusal["line"] for refusal in answer["refused"]] == [printed.count(b"\n") + 2]


def test_a_stream_without_a_token_ends_at_its_first_line(site: Site) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(3):
            yield lines("trn1.2xlarge")[0] + b"\n"
            time.sleep(0.2)

    status, _ = site.post(endless(), "?live=1&node=missing", Authorization="Bearer nope")

    assert status == 401
    assert site.seconds_of("missing") == 0


def test_a_stream_that_breaks_off_keeps_its_whole_lines(site: Site) -> None:
    whole, broken = lines("trn1.2xlarge")[:2]
    body = whole + b"\n" + broken[:500]
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        head = (
            f"POST {URL}?live=1&node=broken HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {site.token}\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        client.sendall(head.encode() + f"{len(body):x}\r\n".encode() + body + b"\r\n")
        time.sleep(0.3)
    time.sleep(0.5)

    assert site.seconds_of("broken") == 1


def test_a_body_that_breaks_off_leaves_nothing(site: Site) -> None:
    line = lines("trn1.2xlarge")[0] + b"\n"
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        head = (
            f"POST {URL}?node=halved HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {site.token}\r\nContent-Length: {3 * len(line)}\r\n\r\n"
        )
        client.sendall(head.encode() + line)
        time.sleep(0.3)
    time.sleep(0.5)

    assert site.seconds_of("halved") == 0


def test_a_body_that_announces_too_much_is_refused(site: Site) -> None:
    status, answer = site.post(b"x" * 50 * MB)

    assert (status, answer["limit_bytes"]) == (413, 10 * MB)


@pytest.mark.parametrize("path", [f"{URL}?node=big", f"{URL}?node=big&live=1", "/sign-in/"])
def test_a_body_that_announces_nothing_is_refused_too(site: Site, path: str) -> None:
    chunks = (b"x" * MB for _ in range(50))

    with site.ask("POST", path, chunks) as response:
        assert response.status == 413
        assert json.loads(response.read())["limit_bytes"] <= 10 * MB


@pytest.mark.parametrize(("path", "n_mb"), [("/sign-in/", 1), ("/support/", 10)])
def test_a_page_takes_what_people_send_to_it_and_no_more(site: Site, path: str, n_mb: int) -> None:
    for n_bytes, is_taken in ((n_mb * MB, True), (n_mb * MB + 1, False)):
        with site.ask("POST", path, (b"x" * n_bytes,)) as response:
            assert (response.status != 413) == is_taken


def test_a_client_that_asks_first_need_not_send_it(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as client:
        head = (
            f"POST {URL} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            f"Authorization: Bearer {site.token}\r\nContent-Length: {50 * MB}\r\n\r\n"
        )
        client.sendall(head.encode())

        assert client.recv(1000).startswith(b"HTTP/1.1 413")


def half_sent(site: Site, path: str, *lines: str, sent: int) -> socket.socket:
    """Begin to send 9 MB from another thread, and leave the connection open."""
    client = socket.create_connection(("127.0.0.1", site.port), timeout=20)
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {9 * MB}", *lines]
    client.sendall("\r\n".join([*head, "", ""]).encode())
    client.settimeout(1)
    with suppress(OSError):
        # After a refusal the server reads on for a while.
        client.sendall(b"x" * sent)
    client.settimeout(20)
    return client


@pytest.mark.parametrize("path", [URL, f"{URL}?live=1", "/support/"])
def test_large_anonymous_bodies_use_no_memory(site: Site, path: str) -> None:
    site.post(lines("trn1.2xlarge")[0], "?node=before")
    before = site.process.memory_info().rss

    with ThreadPoolExecutor(20) as pool:
        send = partial(half_sent, site, path, sent=8 * MB)
        clients = list(pool.map(lambda _: send(), range(60)))
    grown = site.process.memory_info().rss - before
    answers = [client.recv(4096) for client in clients]
    for client in clients:
        client.close()

    assert grown < 20 * MB
    statuses = {answer.split(b" ", 2)[1] for answer in answers}
    # What the first pieces of all of them hold together is bounded too.
    assert b"401" in statuses <= {b"401", b"429", b"503"}
    assert all(b"application/problem+json" in answer for answer in answers)


def test_an_anonymous_request_is_refused_before_its_body(site: Site) -> None:
    for path in (URL, f"{URL}?live=1", "/api/v1/ingest/efa", "/support/"):
        for line in ("X-Nothing: 1", "Authorization: Bearer nope", "Cookie: trnwatch_session=x"):
            with half_sent(site, path, line, sent=0) as client:
                assert client.recv(1000).startswith(b"HTTP/1.1 401")


def test_a_browser_whose_session_expired_is_sent_to_the_sign_in_page(site: Site) -> None:
    expired = "Cookie: trnwatch_session=expired\r\nAccept: text/html,*/*;q=0.8"
    for path, page in (("/support/", "/support/"), ("/preflight/files", "/preflight/")):
        with half_sent(site, path, expired, sent=0) as client:
            answer = client.recv(1000)
        assert answer.startswith(b"HTTP/1.1 303")
        assert f"location: /sign-in/?next={page}".encode() in answer.lower()


def test_a_token_of_another_scope_is_refused_before_the_body_is_sent(site: Site) -> None:
    secret = site.manage("create_token", "reader", "--scope", "read").split()[-1]
    with half_sent(site, URL, f"Authorization: Bearer {secret}", sent=0) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 403")
    assert "scope `ingest`" in str(read_all_refused(site.hot, now_s=time.time())["token:reader"])


def test_who_is_signed_in_may_send_large_files(site: Site) -> None:
    cookie = f"Cookie: trnwatch_session={site.session()}"
    with half_sent(site, "/support/", cookie, sent=9 * MB) as client:
        # Django has it all, and misses the form's own token.
        assert client.recv(1000).startswith(b"HTTP/1.1 403")


def test_a_body_without_a_length_needs_a_token(site: Site) -> None:
    for n_bytes, status in ((60_000, b"403"), (200_000, b"401")):
        with socket.create_connection(("127.0.0.1", site.port), timeout=20) as client:
            head = ["POST /support/ HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked"]
            client.sendall("\r\n".join([*head, "", ""]).encode())
            for _ in range(n_bytes // 10_000):
                client.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
            client.sendall(b"0\r\n\r\n")
            assert client.recv(1000).split(b" ", 2)[1] == status


def test_many_clients_are_served_at_once(site: Site) -> None:
    def send(number: int) -> int:
        document = report("trn1.2xlarge")
        document["instance_info"]["instance_id"] = f"i-crowd-{number}"
        return site.post(encoded(document))[0]

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(send, range(120)))

    assert statuses == [200] * 120
    assert len([s for s in site.hot.shards() if s.startswith("node:i-crowd-")]) == 120
