"""The web servers of one machine: a parent that loads everything, and servers as its children.

A child that ends or hangs is replaced by a fork, which takes no time. When the parent is killed,
its children serve on until the supervisor has another parent ready (see `Program.outlives`).
"""

import asyncio
import contextlib
import gc
import logging
import os
import select
import signal
import socket
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import django
from django.conf import settings
from django.urls import get_resolver
from uvicorn import Config, Server

from fleet.ops import sockets
from fleet.ops.liveness import CHECK_EVERY_S, PROOF_EVERY_S, TABLE, TRACEBACK_S, Pulse, Watch
from fleet.ops.supervisor import abort, describe_exit

log = logging.getLogger(__name__)

APPLICATION = "fleet.asgi:application"
PROTOCOL = "fleet.api.connections:LimitedProtocol"
# One that serves while the other is replaced.
N_SERVERS = 2
# A server that ends at once is not started again for so long.
PAUSE_S = 1.0


def config_of(*, stop_within_s: float) -> Config:
    """Load the application and return how uvicorn serves it."""
    config = Config(
        APPLICATION,
        http=PROTOCOL,
        log_level="warning",
        timeout_graceful_shutdown=int(stop_within_s),
        # uvicorn's 5 s is how often Prometheus sends: the server would close as a request arrives.
        timeout_keep_alive=20,
        timeout_notify=int(PROOF_EVERY_S),
        server_header=False,
        # fleet/asgi.py reads these headers, and only from trusted proxies.
        proxy_headers=False,
    )
    config.load()
    # Addresses import every view: once, before the first fork.
    _ = get_resolver().url_patterns
    return config


def host_to_ask_for() -> bytes:
    """Return a host name that the application accepts."""
    first = next(iter(settings.ALLOWED_HOSTS), "localhost")
    return first.removeprefix(".").replace("*", "localhost").encode()


async def ask(application: Any, host: bytes) -> None:
    """Request /healthz in this process, through everything that a request passes."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/healthz",
        "raw_path": b"/healthz",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", host)],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
    }
    sent = asyncio.Event()
    is_read = False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if is_read:
            await sent.wait()
            return {"type": "http.disconnect"}
        is_read = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            sent.set()

    await application(scope, receive, send)


def serve(config: Config, listener: socket.socket, parent: int, proofs: int) -> None:
    """Serve until SIGTERM, or until no process is left that would replace or stop it."""
    server = Server(config)
    guardians = {parent, int(os.environ.get("TRNWATCH_SUPERVISOR") or parent)}
    host = host_to_ask_for()

    async def prove() -> None:
        if os.getppid() not in guardians:
            server.should_exit = True
            return
        await ask(config.loaded_app, host)
        with contextlib.suppress(OSError):
            os.write(proofs, b".")

    config.callback_notify = prove
    server.run(sockets=[listener])


@dataclass
class Child:
    """A server process, and the pipe that it writes its proofs to."""

    pid: int
    proofs: int
    watch: Watch
    began_s: float = field(default_factory=time.monotonic)
    killed_at_s: float = 0.0


class Parent:
    """Keeps the servers running until SIGTERM."""

    def __init__(self, config: Config, listener: socket.socket, *, stop_within_s: float) -> None:
        self._config = config
        self._listener = listener
        self._stop_within_s = stop_within_s
        self._children: list[Child] = []
        self._not_before_s = 0.0
        self._is_stopping = False
        # A signal wakes the loop at once.
        self._wake, wakes = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _stop(self, *_: object) -> None:
        self._is_stopping = True

    def run(self) -> None:
        pulse = Pulse("web", redis_url=settings.REDIS_URL)
        while not self._is_stopping:
            self._fill()
            self._wait(CHECK_EVERY_S)
            self._collect()
            for child in self._children:
                self._check(child)
            if self._children and all(child.watch.is_ready for child in self._children):
                pulse.beat()
        self._end()
        pulse.end()

    def _fill(self) -> None:
        while len(self._children) < N_SERVERS and time.monotonic() >= self._not_before_s:
            reads, writes = os.pipe()
            parent, pid = os.getpid(), os.fork()
            if pid == 0:
                self._become_server(parent, writes)
            os.close(writes)
            os.set_blocking(reads, False)
            self._children.append(Child(pid, reads, Watch(pid)))

    def _become_server(self, parent: int, proofs: int) -> None:
        """Serve in the new process; never returns."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        try:
            serve(self._config, self._listener, parent, proofs)
        except SystemExit as end:
            os._exit(int(end.code or 0))
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)

    def _wait(self, within_s: float) -> None:
        by_pipe = {child.proofs: child for child in self._children}
        ready, _, _ = select.select([self._wake, *by_pipe], [], [], within_s)
        for pipe in ready:
            with contextlib.suppress(BlockingIOError):
                if os.read(pipe, 4096) and pipe in by_pipe:
                    by_pipe[pipe].watch.prove(TABLE["web"].silent_s)
        # Proofs come many times a second at most; a pipe that has ended is always ready.
        time.sleep(0.01)

    def _collect(self) -> None:
        """Forget the servers that ended."""
        for child in list(self._children):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if not pid:
                continue
            os.close(child.proofs)
            self._children.remove(child)
            if not self._is_stopping:
                how = describe_exit(os.waitstatus_to_exitcode(status))
                self._say(f"web server {pid} {how}; another takes its place.")
                if not child.watch.is_ready:
                    self._not_before_s = time.monotonic() + PAUSE_S

    def _check(self, child: Child) -> None:
        """Abort a server that hangs, and kill it if it does not end."""
        now_s = time.monotonic()
        if child.killed_at_s:
            if now_s >= child.killed_at_s:
                os.kill(child.pid, signal.SIGKILL)
        elif why := child.watch.check():
            self._say(f"web server {child.pid} {why}: it is aborted.")
            abort(child.pid, signal.SIGABRT)
            child.killed_at_s = now_s + TRACEBACK_S

    def _end(self) -> None:
        """Stop the servers; kill those that do not end in time."""
        deadline_s = time.monotonic() + self._stop_within_s + 1
        for child in self._children:
            abort(child.pid, signal.SIGTERM)
        while self._children and time.monotonic() < deadline_s:
            self._wait(0.1)
            self._collect()
        for child in self._children:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def main(arguments: Sequence[str]) -> None:
    parser = ArgumentParser(prog="python -m fleet.ops.web_server")
    parser.add_argument("--fd", type=int, help="a listening socket that was inherited")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="8000", type=sockets.port_from)
    parser.add_argument("--stop-within-s", type=float, default=5.0)
    given = parser.parse_args(arguments)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fleet.settings")
    django.setup()
    for sentence in settings.WITHOUT_EFFECT:
        log.warning(sentence)
    if given.fd is None:
        listener = sockets.listen(given.host, given.port)
    else:
        listener = socket.socket(fileno=given.fd)
    config = config_of(stop_within_s=given.stop_within_s)
    # What is loaded by now is shared by all children, and is never collected.
    gc.collect()
    gc.freeze()
    Parent(config, listener, stop_within_s=given.stop_within_s).run()


if __name__ == "__main__":
    main(sys.argv[1:])
