"""Hostile bodies to every ingest endpoint: memory and CPU of the web process, and `/healthz`.

Each body is sent several times. Memory is what the process holds above what it held before, at
most; `/healthz` is asked all the while.
"""

import gzip
import http.client
import json
import signal
import socket
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import cramjam
import psutil
from django.utils import timezone
from zstandard import ZstdCompressor

from bench.installation import ROOT
from bench.table import print_table
from fleet.models import Token
from tests.helpers import free_port, running

MB = 1_000_000
# Every repetition is the same attack again: nothing may pile up.
TIMES = 10
START_WITHIN_S, SAMPLE_EVERY_S, ASK_EVERY_S = 90.0, 0.005, 0.05
API = "/api/v1/ingest/"
LINES = "application/x-ndjson"
PROTOBUF, JSON = "application/x-protobuf", "application/json"


@dataclass(frozen=True, slots=True)
class Body:
    """A body, how it says that it is packed, and what it says it is."""

    content: bytes
    encoding: str = ""
    kind: str = ""


def field(number: int, content: bytes) -> bytes:
    """Encode a field of a protobuf message that has bytes."""
    size, length = len(content), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2]) + bytes([*length, size]) + content


@cache
def packed_zeros() -> dict[str, Body]:
    """Pack zeros in the ways that senders say, or falsely say, they do."""
    zeros = bytes(200 * MB)
    packed = gzip.compress(zeros)
    return {
        "gzip of 200 MB": Body(packed, "gzip"),
        "gzip of gzip": Body(gzip.compress(packed), "gzip"),
        "gzip of empty members": Body(gzip.compress(b"") * 400_000, "gzip"),
        "deflate of 200 MB": Body(zlib.compress(zeros), "deflate"),
        "zstd of 200 MB": Body(ZstdCompressor().compress(zeros), "zstd"),
        "snappy of 9 MB": Body(bytes(cramjam.snappy.compress_raw(bytes(9 * MB))), "snappy"),
        "snappy that says 4 GB": Body(b"\xff\xff\xff\xff\x0f" + b"\0" * 1_000, "snappy"),
        "10 MB of nothing": Body(bytes(10 * MB - 1)),
        "11 MB": Body(bytes(11 * MB)),
    }


def packings(content: bytes) -> dict[str, Body]:
    """Pack zeros, and a message."""
    return packed_zeros() | {"gzip that repeats a message": Body(gzip.compress(content), "gzip")}


def label(name: str, value: str) -> bytes:
    return field(1, field(1, name.encode()) + field(2, value.encode()))


def sample(value: float, at_ms: int) -> bytes:
    at = at_ms & (1 << 64) - 1
    varint = bytearray()
    while at > 0x7F:
        varint.append(at & 0x7F | 0x80)
        at >>= 7
    return field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + bytes([*varint, at]))


def write_requests(now_ms: int) -> dict[str, bytes]:
    """Return hostile WriteRequests, unpacked."""
    core = label("__name__", "neuroncore_utilization_ratio") + label("instance", "bomb:8000")
    one = sample(0.5, now_ms)
    core_0 = core + label("neuroncore", "0")
    return {
        "empty series": field(1, b"") * 4_000_000,
        "empty labels": field(1, field(1, b"") * 4_000_000),
        "empty samples": field(1, core_0 + field(2, b"") * 2_000_000),
        "unknown fields": b"\x50\x01" * 4_000_000,
        "100,000 series of one sample": b"".join(
            field(1, core + label("neuroncore", str(i)) + label("x", f"{i}") + one)
            for i in range(100_000)
        ),
        "18,000 series, which are taken": b"".join(
            field(1, core + label("neuroncore", str(i % 128)) + label("x", f"{i}") + one)
            for i in range(18_000)
        ),
        "one series of 500,000 samples": field(
            1, core_0 + b"".join(sample(0.5, now_ms - i) for i in range(500_000))
        ),
        "1,000 labels": field(
            1, core_0 + b"".join(label(f"l{i}", "x") for i in range(1_000)) + one
        )
        * 500,
        "a label of 8 MB": field(1, core_0 + label("x", "x" * 8 * MB) + one),
        "labels of 60 kB": field(1, core_0 + label("x", "x" * 60_000) + one) * 150,
        "samples of no time": b"".join(
            field(1, core_0 + sample(value, at))
            for value in (float("nan"), float("inf"), -1.0)
            for at in (-1, 0, (1 << 63) - 1, now_ms)
        ),
        "a message cut short": field(1, core_0 + one)[:-5],
        "groups": b"\x0b" * 1_000_000,
    }


def exports(now_ms: int) -> dict[str, Body]:
    """Return hostile exports of OTLP, as protobuf and as JSON."""

    def attribute(key: str, text: str, number: int = 1) -> bytes:
        return field(number, field(1, key.encode()) + field(2, field(1, text.encode())))

    def export(*metrics: bytes, node: str = "bomb") -> bytes:
        scope = field(2, b"".join(field(2, each) for each in metrics))
        return field(1, field(1, attribute("host.name", node)) + scope)

    at = struct.pack("<Q", now_ms * 1_000_000)
    value = b"\x21" + struct.pack("<d", 0.5)
    core = field(7, field(1, b"neuroncore") + field(2, field(1, b"0")))
    point = field(1, core + b"\x19" + at + value)
    name = field(1, b"neuroncore_utilization_ratio")
    deep = b""
    for _ in range(20_000):
        deep = field(5, field(1, deep))
        if len(deep) > MB:
            break
    many = field(7, b"") * 2_000_000
    packed_counts = field(6, b"\x01" * 4 * MB)
    messages = {
        "empty resources": field(1, b"") * 1_450_000,
        "empty scopes": field(1, field(2, b"") * 1_450_000),
        "empty metrics": field(1, field(2, field(2, b"") * 1_450_000)),
        "empty points": export(name + field(5, field(1, b"") * 1_450_000)),
        "empty attributes": export(name + field(5, field(1, many + value))),
        "200,000 points": export(name + field(5, point * 200_000)),
        "90,000 points, which are taken": export(name + field(5, point * 90_000)),
        "packed counts": export(name + field(9, field(1, packed_counts))),
        "exponential buckets": export(name + field(10, field(1, field(8, packed_counts)))),
        "a node's name of 1 MB": export(name + field(5, point * 20_000), node="x" * MB),
        "nested values": field(1, field(1, field(1, field(2, deep)))),
        "unknown fields": b"\x78\x01" * 4_000_000,
    }
    found = {what: Body(content, kind=PROTOBUF) for what, content in messages.items()}
    before, after = (
        b'{"resourceMetrics":[{"resource":{"attributes":[{"key":"host.name","value":'
        b'{"stringValue":"bomb"}}]},"scopeMetrics":[{"metrics":['
        b'{"name":"neuroncore_utilization_ratio","gauge":{"dataPoints":[',
        b"]}}]}]}]}",
    )
    point_of_json = (
        b'{"attributes":[{"key":"neuroncore","value":{"stringValue":"0"}}],'
        b'"timeUnixNano":"%d","asDouble":0.5}' % (now_ms * 1_000_000)
    )
    of_json = {
        "480,000 empty points of JSON": before + b",".join([b"{}"] * 480_000) + after,
        "40,000 points of JSON, which are taken": before
        + b",".join([point_of_json] * 40_000)
        + after,
        "empty JSON": b'{"resourceMetrics":[' + b"{}," * 900_000 + b"{}]}",
        "nested JSON": b'{"resourceMetrics":' + b"[" * 4_000_000,
        "numbers of JSON": b'{"resourceMetrics":[' + b"1," * 2_000_000 + b"1]}",
        "a long number": b'{"resourceMetrics":[' + b"9" * 4_000_000 + b"]}",
    }
    for what, content in of_json.items():
        found[what] = Body(content, kind=JSON)
        found[f"{what}, gzip"] = Body(gzip.compress(content), "gzip", JSON)
    return found


def report_lines() -> dict[str, Body]:
    """Return hostile lines for nodes and jobs."""
    counters = b'"report":{"neuroncore_counters":{"period":1,"neuroncores_in_use":{%s}}}'
    cores = b",".join(b'"%d":{"neuroncore_utilization":1}' % i for i in range(4_000))
    columns = {
        "columns": {
            "stream": "abcdefgh-1",
            "seq": [*range(1, 1_001)],
            "at": [1.0] * 1_000,
            "template": "{" + "\x7f" * 900_000,
            "once": "AAAA" * 3,
            "varies": [],
            "more": "",
        }
    }
    contents = {
        "empty processes": b'{"neuron_runtime_data":[' + b"{}," * 2_600_000 + b"{}]}",
        "nested lists": b"[" * 7_900_000,
        "nested objects": b'{"a":' * 1_500_000,
        "a long text": b'{"a":"' + b"x" * 7_900_000 + b'"}',
        "a long number": b'{"at":' + b"9" * 7_900_000 + b"}",
        "wrong cores": b"".join(
            b'{"neuron_runtime_data":[{%s}]}\n'
            % (counters % (cores + b',"5":{"neuroncore_utilization":"x"}'))
            for _ in range(60)
        ),
        "columns of nothing": json.dumps(columns).encode(),
        "10,000 lines": b"{}\n" * 9_999,
        "100,000 lines": b"{}\n" * 100_000,
        "infinite times": b'{"at":1e400}\n{"at":NaN}\n{"at":-1}\n',
    }
    return {what: Body(content, kind=LINES) for what, content in contents.items()}


def bodies(now_ms: int) -> Iterator[tuple[str, str, Body]]:
    """Yield the path, what it is, and a body."""
    lines = report_lines()
    small = {name: Body(body.content[:999_999], "", LINES) for name, body in lines.items()}
    for path, own, repeated in (
        ("neuron-monitor", lines, b"{}\n" * 9_000),
        ("efa", lines, b'{"efa":{}}\n' * 9_000),
        ("steps", small, b'{"run":"x"}\n' * 9_000),
        ("prometheus", {}, b"\x0a\x00" * MB),
        ("otlp", exports(now_ms), b"\x0a\x00" * MB),
    ):
        kind = PROTOBUF if path in {"prometheus", "otlp"} else LINES
        for what, body in packings(repeated).items():
            yield path, what, Body(body.content, body.encoding, kind)
        for what, body in own.items():
            yield path, what, body
        if path == "prometheus":
            for what, message in write_requests(now_ms).items():
                packed = bytes(cramjam.snappy.compress_raw(message))
                yield path, what, Body(packed, "snappy", kind)


@dataclass
class Watch:
    """The web process: its memory at most, and the longest wait for `/healthz`."""

    process: psutil.Process
    port: int
    peak_bytes: int = 0
    longest_s: float = 0.0
    n_failed: int = 0

    def memory(self, stop: Event) -> None:
        while not stop.wait(SAMPLE_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, self.process.memory_info().rss)

    def health(self, stop: Event) -> None:
        while not stop.wait(ASK_EVERY_S):
            began_s = time.monotonic()
            with suppress(OSError, http.client.HTTPException):
                status, _ = send(self.port, "GET", "/healthz")
                self.n_failed += status != 200
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)


def send(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    """Send a request; give status and answer. A refusal may come before the body's end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        with suppress(BrokenPipeError, ConnectionResetError):
            names = {name.replace("_", "-"): value for name, value in headers.items() if value}
            connection.request(method, path, body, names)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def attack(
    process: psutil.Process, port: int, secret: str, *, times: int
) -> Iterator[dict[str, Any]]:
    """Send every body ``times``; yield its figures."""
    for path, what, body in bodies(round(time.time() * 1000)):
        watch = Watch(process, port)
        before_bytes, before_s = process.memory_info().rss, sum(process.cpu_times()[:2])
        stop = Event()
        threads = [Thread(target=each, args=(stop,)) for each in (watch.memory, watch.health)]
        for thread in threads:
            thread.start()
        statuses = []
        try:
            for _ in range(times):
                post = partial(send, port, "POST", f"{API}{path}", body.content)
                status, answer = post(
                    Authorization=f"Bearer {secret}",
                    Content_Type=body.kind,
                    Content_Encoding=body.encoding,
                )
                statuses.append(status)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        yield {
            "path": path,
            "body": what,
            "sent_bytes": len(body.content),
            "statuses": sorted(set(statuses)),
            "answer": answer.decode(errors="replace")[:200],
            "cpu_s": (sum(process.cpu_times()[:2]) - before_s) / times,
            "grown_bytes": max(0, watch.peak_bytes - before_bytes),
            "health_s": watch.longest_s,
            "health_failed": watch.n_failed,
        }


def await_server(port: int) -> None:
    for _ in range(round(START_WITHIN_S / ASK_EVERY_S)):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(ASK_EVERY_S)
    raise TimeoutError("the web server did not start")


def measure(env: Mapping[str, str], times: int = TIMES) -> dict[str, Any]:
    """Attack a web process of its own; print the figures of each body."""
    secret = Token.issue("bench", Token.Scope.INGEST, now=timezone.now())[1]
    port = free_port()
    options = {"cwd": ROOT, "env": {**env, "DJANGO_DEBUG": "0"}, "start_new_session": True}
    command = [sys.executable, "-m", "uvicorn", "fleet.asgi:application", "--port", str(port)]
    command += ["--http", "fleet.api.connections:LimitedProtocol", "--log-level", "warning"]
    log = Path(env["TRNWATCH_DATA_DIR"]) / "web.log"
    with running(command, log, ends_by=signal.SIGTERM, **options) as started:
        await_server(port)
        process = psutil.Process(started.pid)
        # What every server holds once it has answered is not growth.
        for path in ("neuron-monitor", "steps", "otlp", "prometheus"):
            send(port, "POST", API + path, b"{}", Authorization=f"Bearer {secret}")
        first_bytes = process.memory_info().rss
        rows = []
        for row in attack(process, port, secret, times=times):
            rows.append(row | {"above_first_bytes": process.memory_info().rss - first_bytes})
            print_table(
                f"{row['path']}: {row['body']}, {row['sent_bytes']:,} bytes",
                [
                    ("answers", f"{row['statuses']} {row['answer'][:90]}"),
                    ("CPU of one", f"{row['cpu_s']:.2f} s"),
                    ("memory", f"+ {row['grown_bytes'] / MB:.0f} MB"),
                    ("/healthz at most", f"{row['health_s']:.2f} s"),
                ],
            )
    return {"bench": "bodies", "times": times, "bodies": rows}
