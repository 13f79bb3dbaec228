"""Servers that respond as configured, or never."""

import gzip
import http.server
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Listener:
    """An HTTP server that answers with ``status`` and keeps the lines it was sent."""

    def __init__(self) -> None:
        self.status = 200
        self.answer: dict[str, Any] = {"accepted": 1, "n_refused": 0, "refused": []}
        self.bodies: list[list[dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [line for body in self.bodies for line in body]

    def steps(self) -> list[int]:
        return [line["step"] for line in self.lines if line["kind"] == "step"]


@contextmanager
def listening(tls: ssl.SSLContext | None = None) -> Iterator[Listener]:
    listener = Listener()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(listener))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    listener.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield listener
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reporting_to(url: str) -> dict[str, str]:
    """Return the environment of a training process; its end waits until all is sent."""
    return {"TRNWATCH_SERVER": url, "TRNWATCH_TOKEN": "secret", "TRNWATCH_FINISH_S": "120"}


def _handler(listener: Listener) -> type[http.server.BaseHTTPRequestHandler]:
    """Return what answers a request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
            shown = json.dumps(listener.answer).encode()
            if listener.status == 200:
                listener.headers.append(dict(self.headers))
                listener.bodies.append([json.loads(line) for line in body.splitlines()])
            self.send_response(listener.status)
            self.send_header("Content-Length", str(len(shown)))
            self.end_headers()
            self.wfile.write(shown)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def never_answering() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        yield f"http://127.0.0.1:{deaf.getsockname()[1]}"


def until(is_so: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)
