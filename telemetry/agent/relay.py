"""The relay of a rack: nodes report to it, and it sends their reports together, in one request.

It stores nothing. A node is answered once the server has stored its report, with the server's own
answer; until then the report stays in the node's spool.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from trnwatch.wire import ServerConnection

from telemetry.agent.reports import PATHS, Health

PATH = "/api/v1/ingest/relay"
# What the server reads of a node's request besides its body.
HEADERS = ("authorization", "content-encoding", "x-trnwatch-at", "x-trnwatch-up")
# Of one node's request, of one request to the server, and how many nodes' it has.
MAX_BODY_BYTES, MAX_SENT_BYTES, MAX_TOGETHER = 2_000_000, 8_000_000, 64
MAX_CONNECTIONS = 512
# How long reports that ask for an answer at once are held to be sent together, and columns.
GATHER_S, PATIENT_S = 0.1, 1.0
# Agents wait 20 s for an answer; the server gets less.
ANSWER_WITHIN_S, SERVER_WITHIN_S = 18.0, 15.0
RETRY_AFTER_S = 5
IDLE_S = 60.0


@dataclass(eq=False)
class Held:
    """A node's request, and the answer to it: the server's, or 503 so that it is sent again."""

    target: str
    headers: Mapping[str, str]
    body: bytes
    came_s: float = field(default_factory=time.monotonic)
    done: threading.Event = field(default_factory=threading.Event)
    status: int = 503
    answer: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: int = RETRY_AFTER_S

    @property
    def due_s(self) -> float:
        is_patient = "wait=" in self.headers.get("prefer", "")
        return self.came_s + (PATIENT_S if is_patient else GATHER_S)

    def encoded(self) -> bytes:
        """Return it as the server reads it: a line of JSON, then the body as it came."""
        headers = {name: self.headers[name] for name in HEADERS if name in self.headers}
        held_s = round(time.monotonic() - self.came_s, 3)
        head = {"target": self.target, "headers": headers, "held_s": held_s, "n": len(self.body)}
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + self.body


class Relay(threading.Thread):
    """Sends what nodes report, many requests in one; bodies of at most ``max_bytes`` wait."""

    def __init__(self, wire: ServerConnection, health: Health, *, max_bytes: int) -> None:
        super().__init__(name="relay", daemon=True)
        self._wire, self._health, self._max_bytes = wire, health, max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Held] = deque()
        self._n_bytes = 0
        self._counts = dict.fromkeys(("answered", "turned_away", "failed"), 0)
        self._n_sent = 0

    @contextmanager
    def room(self, n_bytes: int) -> Iterator[bool]:
        """Whether there is room for a body, which is kept until its answer was sent."""
        with self._changed:
            has_room = self._n_bytes + n_bytes <= self._max_bytes
            self._counts["turned_away"] += not has_room
            self._n_bytes += n_bytes * has_room
        try:
            yield has_room
        finally:
            with self._changed:
                self._n_bytes -= n_bytes * has_room

    def forward(self, held: Held) -> None:
        """Wait for the answer to a request."""
        with self._changed:
            self._waiting.append(held)
            self._changed.notify()
        is_done = held.done.wait(ANSWER_WITHIN_S)
        with self._changed:
            if not is_done:
                # The server may still store it: what the node sends again counts once.
                held.answer = {"detail": "The relay got no answer from the server in time."}
                if held in self._waiting:
                    self._waiting.remove(held)
            self._counts["failed" if held.status == 503 else "answered"] += 1

    def run(self) -> None:
        while True:
            together = self._next()
            try:
                self._send(together)
            except Exception as error:
                self._fail(together, f"{type(error).__name__}: {error}")
            for held in together:
                held.done.set()

    def metrics(self) -> bytes:
        """Return its counts in the text format of Prometheus."""
        with self._changed:
            lines = ["# TYPE trnwatch_relay_requests_total counter"]
            for result, n in self._counts.items():
                lines.append(f'trnwatch_relay_requests_total{{result="{result}"}} {n}')
            lines.append("# TYPE trnwatch_relay_sent_total counter")
            lines.append(f"trnwatch_relay_sent_total {self._n_sent}")
            lines.append("# TYPE trnwatch_relay_held_bytes gauge")
            lines.append(f"trnwatch_relay_held_bytes {self._n_bytes}\n")
        return "\n".join(lines).encode()

    def _next(self) -> list[Held]:
        """Wait until a request is due, or many wait; return those to send together."""
        with self._changed:
            while True:
                due_s = min((held.due_s for held in self._waiting), default=None)
                now_s = time.monotonic()
                if due_s is not None and (due_s <= now_s or len(self._waiting) >= MAX_TOGETHER):
                    break
                self._changed.wait(None if due_s is None else due_s - now_s)
            together: list[Held] = []
            n_bytes = 0
            while self._waiting and len(together) < MAX_TOGETHER:
                n_bytes += len(self._waiting[0].body)
                if together and n_bytes > MAX_SENT_BYTES:
                    break
                together.append(self._waiting.popleft())
            return together

    def _send(self, together: Sequence[Held]) -> None:
        body = b"".join(held.encoded() for held in together)
        headers = {"Content-Encoding": "identity", "Content-Type": "application/octet-stream"}
        self._n_sent += 1
        try:
            response = self._wire.post(PATH, body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._fail(together, f"{type(error).__name__}: {error}")
            return
        answers = response.body.get("answers")
        if not isinstance(answers, list) or len(answers) != len(together):
            self._fail(together, str(response))
            return
        self._health.problem("server", "")
        for held, answer in zip(together, answers):
            held.answer, held.status = answer["body"], answer["status"]
            held.retry_after_s = answer.get("retry_after_s") or RETRY_AFTER_S

    def _fail(self, together: Sequence[Held], problem: str) -> None:
        self._health.problem("server", f"server: {problem}")
        for held in together:
            held.answer = {"detail": f"The relay has no answer of the server: {problem}"[:300]}


class Handler(BaseHTTPRequestHandler):
    """Answers one node; a thread for each connection."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    server: RelayServer

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if urlsplit(self.path).path not in PATHS.values():
            self._refuse(404, "The relay takes what agents report. Send the rest to the server.")
        elif not length.isdecimal():
            self._refuse(411, "Send Content-Length.")
        elif int(length) > MAX_BODY_BYTES:
            self._refuse(413, f"The body has more than {MAX_BODY_BYTES:,} bytes.")
        else:
            with self.server.relay.room(int(length)) as has_room:
                if not has_room:
                    self._refuse(503, "The relay holds as many reports as it may. Send it again.")
                else:
                    self._forward(self.rfile.read(int(length)), int(length))

    def _forward(self, body: bytes, n_bytes: int) -> None:
        if len(body) < n_bytes:
            self.close_connection = True
            return
        held = Held(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        self.server.relay.forward(held)
        text = json.dumps(held.answer).encode()
        self._answer(held.status, text, retry_after_s=held.retry_after_s)

    def do_GET(self) -> None:
        if self.path == "/metrics":
            metrics = self.server.relay.metrics()
            self._answer(200, metrics, kind="text/plain; version=0.0.4; charset=utf-8")
        else:
            self._answer(200 if self.path == "/live" else 404, b"{}")

    def _refuse(self, status: int, detail: str) -> None:
        """Refuse a request whose body is not read."""
        self.close_connection = True
        self._answer(status, json.dumps({"detail": detail}).encode())

    def _answer(
        self,
        status: int,
        body: bytes,
        *,
        kind: str = "application/json",
        retry_after_s: int = RETRY_AFTER_S,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status in (429, 503):
            self.send_header("Retry-After", str(retry_after_s))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: a problem is logged when it starts, lasts and ends."""


class RelayServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], relay: Relay) -> None:
        self.relay = relay
        super().__init__(address, Handler)

    def verify_request(self, *_: object) -> bool:
        return threading.active_count() < MAX_CONNECTIONS

    def handle_error(self, *_: object) -> None:
        """Log nothing: a node that disconnects sends its reports again."""
