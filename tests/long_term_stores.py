"""Real long-term stores for tests: VictoriaMetrics and Prometheus, and one that misbehaves."""

import contextlib
import json
import math
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.helpers import free_port, prometheus_command

TIMEOUT_S = 60.0
Result = list[dict[str, Any]]


@dataclass
class LongTermStore:
    """A store that takes remote writes and answers PromQL."""

    command: list[str]
    port: int
    log: Path
    process: "subprocess.Popen[bytes]" = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __post_init__(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        eventually(self.answers)

    def answers(self) -> bool:
        """Whether it can be asked."""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?query=1", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def ask(self, path: str, **query: object) -> Result:
        """Return what a query finds; nothing while the store is still starting."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                found: Result = json.load(response)["data"]["result"]
        except (urllib.error.URLError, ConnectionError):
            return []
        return found

    def flush(self) -> None:
        """Make VictoriaMetrics show at once what it took; another store does so by itself."""
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"{self.url}/internal/force_flush", timeout=30).close()


@dataclass
class Past:
    """Samples of long ago, as lines of text: a store is filled with them before it is asked."""

    lines: list[tuple[str, float, float]] = field(default_factory=list)

    def add(self, series: str, t_s: Iterable[float], values: Iterable[float]) -> None:
        """Add samples of a series, in order of time; NaN is none."""
        pairs = zip(t_s, map(float, values), strict=True)
        self.lines += [(series, value, t) for t, value in pairs if not math.isnan(value)]

    def text(self, *, per_s: int) -> str:
        """Return one line per sample, with times in units of which a second has so many."""
        lines = (f"{name} {value!r} {round(t * per_s)}" for name, value, t in self.lines)
        return "\n".join([*lines, "# EOF\n"])


@contextmanager
def victoria_metrics(folder: Path, past: Past | None = None) -> Iterator[LongTermStore]:
    """Run VictoriaMetrics."""
    port = free_port()
    command = [
        "victoria-metrics",
        f"-storageDataPath={folder / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=100y",
        "-search.latencyOffset=0s",
        "-loggerLevel=ERROR",
        "-memory.allowedBytes=256MB",
    ]
    with _running(LongTermStore(command, port, folder / "log")) as store:
        if past is not None:
            body = past.text(per_s=1000).encode()
            address = f"{store.url}/api/v1/import/prometheus"
            urllib.request.urlopen(address, body, timeout=TIMEOUT_S).close()
            store.flush()
        yield store


@contextmanager
def prometheus(folder: Path, past: Past | None = None) -> Iterator[LongTermStore]:
    """Run Prometheus as a receiver of remote writes."""
    port = free_port()
    options = ("--web.enable-remote-write-receiver", "--log.level=error")
    command = prometheus_command(folder, port, {}, *options)
    if past is not None:
        (folder / "past").write_text(past.text(per_s=1))
        make_blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics"]
        done = subprocess.run(
            [*make_blocks, folder / "past", folder / "data"], check=False, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
    with _running(LongTermStore(command, port, folder / "log")) as store:
        yield store


@contextmanager
def _running(store: LongTermStore) -> Iterator[LongTermStore]:
    try:
        yield store
    finally:
        store.process.kill()
        store.process.wait()


def eventually(question: Callable[[], Any], *, wants: Callable[[Any], bool] = bool) -> Any:
    """Query until the result fits; stores show new samples after a delay."""
    deadline = time.monotonic() + TIMEOUT_S
    while not wants(answer := question()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return answer


@dataclass
class Moody:
    """A server that gives prepared answers in turn, then 204; it keeps what it was sent."""

    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def moody_server() -> Iterator[Moody]:
    """Serve on a free port of this machine."""
    moody = Moody()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            moody.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            moody.headers.append(dict(self.headers))
            moody.paths.append(self.path)
            status, headers, body = moody.answers.pop(0) if moody.answers else (204, {}, b"")
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    moody.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield moody
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
