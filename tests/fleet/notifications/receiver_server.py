"""A receiver with configurable misbehaviour: a real server that records its requests."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    """Return an answer of this status."""
    lines = [f"HTTP/1.1 {code} Reason", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


@dataclass(frozen=True)
class Post:
    """One thing that arrived."""

    at_s: float
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class ReceiverServer:
    """Its responses in order, the last one repeated, and the requests it received."""

    url: str
    answers: list[bytes | Callable[[socket.socket], None]] = field(default_factory=lambda: [OK])
    posts: list[Post] = field(default_factory=list)

    def next_answer(self) -> bytes | Callable[[socket.socket], None]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def keys(self) -> list[str]:
        return [post.key for post in self.posts]

    def until(self, n_posts: int, *, within_s: float = 90) -> list[Post]:
        """Wait until so much has arrived."""
        deadline = time.monotonic() + within_s
        while len(self.posts) < n_posts:
            assert time.monotonic() < deadline, f"{len(self.posts)} of {n_posts} arrived"
            time.sleep(0.02)
        return self.posts


@contextmanager
def serve_receiver(
    host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None
) -> Iterator[ReceiverServer]:
    """Run a receiver for as long as the block lasts; with ``tls`` it is called localhost."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            hook_server.posts.append(Post(time.monotonic(), self.path, headers, body))
            answer = hook_server.next_answer()
            self.close_connection = True
            try:
                if isinstance(answer, bytes):
                    self.connection.sendall(answer)
                else:
                    answer(self.connection)
            except OSError:
                return

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    url = f"http://{host}:{server.server_port}/in"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        url = f"https://localhost:{server.server_port}/in"
    hook_server = ReceiverServer(url)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hook_server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def thinks(for_s: float) -> Callable[[socket.socket], None]:
    """Take the request, and answer well after a while."""

    def answer(connection: socket.socket) -> None:
        time.sleep(for_s)
        connection.sendall(OK)

    return answer


def waits_for(event: threading.Event) -> Callable[[socket.socket], None]:
    """Take the request, and answer well once something has happened."""

    def answer(connection: socket.socket) -> None:
        event.wait(20)
        connection.sendall(OK)

    return answer


def hangs(for_s: float) -> Callable[[socket.socket], None]:
    """Take the request, and say nothing for a while."""

    def answer(_: socket.socket) -> None:
        time.sleep(for_s)

    return answer


def drips(every_s: float, n: int) -> Callable[[socket.socket], None]:
    """Answer so slowly that no time-out between bytes would message."""

    def answer(connection: socket.socket) -> None:
        for byte in (b"HTTP/1.1 200 OK\r\nX: " + b"x" * n)[:n]:
            connection.sendall(bytes([byte]))
            time.sleep(every_s)

    return answer


def closes(connection: socket.socket) -> None:
    """Close without a word."""
    connection.shutdown(socket.SHUT_RDWR)


def cut_short(connection: socket.socket) -> None:
    """Promise more than is sent."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nok")
    connection.shutdown(socket.SHUT_RDWR)


def endless(connection: socket.socket) -> None:
    """Never stop talking."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(2_000):
        connection.sendall(b"x" * 65_536)
