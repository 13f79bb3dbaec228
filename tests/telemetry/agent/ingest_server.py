"""A web server with configurable responses that records its requests."""

import gzip
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import zstandard

# A status, a body, and headers.
Response = tuple[int, Mapping[str, Any], Mapping[str, str]]


@dataclass
class RecordedRequest:
    """One request: its path with query, headers, and lines."""

    path: str
    headers: Mapping[str, str]
    lines: list[dict[str, Any]]


@dataclass
class Server:
    """What it will answer, in turn and then 200, and what it was sent."""

    address: str = ""
    answers: list[Response] = field(default_factory=list)
    requests: list[RecordedRequest] = field(default_factory=list)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all accepted lines."""
        return [line["seq"] for request in self.requests for line in request.lines]


@contextmanager
def serve_ingest(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Run a server on a free port."""
    reported = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(reported)) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        reported.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield reported
        finally:
            server.shutdown()
            thread.join()


def _handler(reported: Server) -> type[BaseHTTPRequestHandler]:
    """Return what answers a request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            packed = self.rfile.read(int(self.headers["Content-Length"]))
            is_zstd = self.headers["Content-Encoding"] == "zstd"
            body = zstandard.decompress(packed) if is_zstd else gzip.decompress(packed)
            lines = [json.loads(line) for line in body.splitlines()]
            default: Response = (200, {"accepted": len(lines), "refused": []}, {})
            status, answer, headers = reported.answers.pop(0) if reported.answers else default
            if status == 200:
                reported.requests.append(RecordedRequest(self.path, dict(self.headers), lines))
            data = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
