"""Prometheus remote write: encode series, batch them, and send them with retries."""

import base64
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from threading import Event
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import cramjam
import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.write_request import TimeSeries

HEADERS: Mapping[str, str] = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
# A Sample as a field of its TimeSeries: every one has the same length, as milliseconds since
# 1970 take six bytes as a varint from 2004 until 2109.
SAMPLE = np.dtype(
    [
        ("field", "u1"),
        ("length", "u1"),
        ("value_field", "u1"),
        ("value", "<f8"),
        ("time_field", "u1"),
        ("time", "u1", 6),
    ]
)
FIRST_MS, END_MS = 1 << 35, 1 << 42
SERIES_FIELD = b"\x0a"


@lru_cache(maxsize=1 << 20)
def series(name: str, labels: tuple[tuple[str, str], ...]) -> bytes:
    """Encode the labels of a TimeSeries, sorted by name, without empty values.

    Cached, because a fleet sends the same series every second.
    """
    pairs = sorted([("__name__", name), *((key, value) for key, value in labels if value)])
    message: bytes = TimeSeries(
        labels=[{"name": key, "value": value} for key, value in pairs]
    ).SerializeToString()
    return message


def samples(values: FloatArray, times_ms: IntArray) -> NDArray[np.void]:
    """Encode samples as fields of a TimeSeries.

    Parameters
    ----------
    values : FloatArray
        Of any shape.
    times_ms : IntArray
        Milliseconds since 1970, of a shape that broadcasts to that of the values.
    """
    if times_ms.size and not FIRST_MS <= int(times_ms.min()) <= int(times_ms.max()) < END_MS:
        msg = f"times_ms: {int(times_ms.min())} to {int(times_ms.max())}; expected milliseconds"
        raise ValueError(msg)
    written = np.empty(values.shape, SAMPLE)
    written["field"], written["length"] = 0x12, SAMPLE.itemsize - 2
    written["value_field"], written["value"] = 0x09, values
    written["time_field"] = 0x10
    bits = times_ms.astype("u8")[..., None] >> np.arange(0, 42, 7, dtype="u8")
    more = np.array([0x80] * 5 + [0], "u8")
    written["time"] = (bits & np.uint64(0x7F)) | more
    return written


def request(heads: Sequence[bytes], values: FloatArray, times_ms: IntArray) -> bytes:
    """Return the body of a write: one TimeSeries per head, with its values that are not NaN.

    Parameters
    ----------
    heads : (n_series,)
        See ``series``.
    values : (n_series, n_times)
        NaN where there is nothing to say.
    times_ms : (n_series, n_times), or what broadcasts to it
        Rising along each series.
    """
    present = ~np.isnan(values)
    written = samples(values[present], np.broadcast_to(times_ms, values.shape)[present])
    body, size = written.tobytes(), SAMPLE.itemsize
    counts = present.sum(axis=1)
    ends = (np.cumsum(counts) * size).tolist()
    pieces: list[bytes] = []
    begin = 0
    for head, end in zip(heads, ends, strict=True):
        if end > begin:
            pieces += (SERIES_FIELD, _varint(len(head) + end - begin), head, body[begin:end])
        begin = end
    return bytes(cramjam.snappy.compress_raw(b"".join(pieces)))


@lru_cache(maxsize=65_536)
def _varint(number: int) -> bytes:
    pieces: list[int] = []
    while number >= 0x80:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*pieces, number])


# About 180 kB before compression; stores recommend some thousand samples per request.
MOST_SAMPLES = 10_000
Number = TypeVar("Number", bound=np.number[Any])


@dataclass(frozen=True, slots=True)
class SeriesChunk:
    """Series over the same number of moments.

    ``heads`` (n_series,) are their encoded labels, see `series`; ``values`` (n_series, n_times),
    NaN for no sample; ``times_ms`` of the same shape, or (1, n_times).
    """

    heads: Sequence[bytes]
    values: FloatArray
    times_ms: IntArray

    def rows(self, begin: int, end: int) -> "SeriesChunk":
        times_ms = self.times_ms if len(self.times_ms) == 1 else self.times_ms[begin:end]
        return SeriesChunk(self.heads[begin:end], self.values[begin:end], times_ms)


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """The content of one request; a series is in one batch only."""

    chunks: Sequence[SeriesChunk]

    @property
    def n_samples(self) -> int:
        return sum(int(np.count_nonzero(~np.isnan(chunk.values))) for chunk in self.chunks)

    @property
    def n_times(self) -> int:
        return max(int(chunk.values.shape[1]) for chunk in self.chunks)

    def body(self) -> bytes:
        n_times = self.n_times
        heads = [head for chunk in self.chunks for head in chunk.heads]
        values = np.concatenate([_wide(chunk.values, n_times, np.nan) for chunk in self.chunks])
        times_ms = np.concatenate(
            [
                _wide(np.broadcast_to(chunk.times_ms, chunk.values.shape), n_times, 0)
                for chunk in self.chunks
            ]
        )
        return request(heads, values, times_ms)

    def by_time(self) -> Iterator["WriteBatch"]:
        for i in range(self.n_times):
            chunks = [
                SeriesChunk(chunk.heads, chunk.values[:, i : i + 1], chunk.times_ms[:, i : i + 1])
                for chunk in self.chunks
                if i < chunk.values.shape[1]
            ]
            if (batch := WriteBatch(chunks)).n_samples:
                yield batch


def _wide(values: NDArray[Number], n_times: int, absent: float) -> NDArray[Number]:
    lacking = [(0, 0), (0, n_times - values.shape[1])]
    return np.pad(values, lacking, constant_values=absent) if lacking[1][1] else values


def batches(chunks: Iterable[SeriesChunk], *, most: int = MOST_SAMPLES) -> Iterator[WriteBatch]:
    """Split chunks into batches of at most ``most`` samples; a single series may have more."""
    held: list[SeriesChunk] = []
    room = most
    for chunk in chunks:
        begin, n_times = 0, max(1, chunk.values.shape[1])
        while begin < len(chunk.heads):
            if room < n_times and held:
                yield WriteBatch(held)
                held, room = [], most
            end = min(len(chunk.heads), begin + max(1, room // n_times))
            held.append(chunk.rows(begin, end))
            room -= (end - begin) * n_times
            begin = end
    if held:
        yield WriteBatch(held)


PIECE = 64 * 1024
MAX_TEXT = 300


class EndpointUnreachableError(Exception):
    """No valid response within the time and size limits; the message says why."""


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    status: int
    body: bytes
    retry_after: str = ""

    @property
    def text(self) -> str:
        """The beginning of the response as one line of plain text."""
        text = self.body[: 4 * MAX_TEXT].decode("utf-8", "replace")
        words = "".join(c if c.isprintable() else " " for c in text).split()
        return " ".join(words)[:MAX_TEXT]


@dataclass
class Endpoint:
    """The URL of a long-term store.

    With ``keep_alive`` each thread keeps one connection. ``url`` may contain user and password;
    ``token_file`` is read for every request, so that a rotated token is used at once.
    """

    url: str
    token_file: str = ""
    timeout_s: float = 10.0
    most_bytes: int = 1 << 20
    keep_alive: bool = False
    _own: threading.local = field(default_factory=threading.local)
    _open: set[HTTPConnection] = field(default_factory=set)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            msg = (
                f"{self.safe_url!r} is not a URL of a long-term store; give http://host:port/path"
            )
            raise ValueError(msg)

    @property
    def safe_url(self) -> str:
        """The URL without user and password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> EndpointAnswer:
        """Post once to ``url`` + ``path``; EndpointUnreachableError without a valid response."""
        connection = self._connection()
        ends_at_s = time.monotonic() + self.timeout_s
        try:
            target = (urlsplit(self.url).path.rstrip("/") + path) or "/"
            connection.request("POST", target, body, {**headers, **self._authorization()})
            response = connection.getresponse()
            answer = EndpointAnswer(
                response.status,
                self._read(response, ends_at_s),
                response.headers.get("Retry-After", ""),
            )
        except (OSError, HTTPException, ValueError) as error:
            self._close_own()
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            if isinstance(error, TimeoutError):
                why = f"no complete response in {self.timeout_s:g} s"
            raise EndpointUnreachableError(f"{self.safe_url}: {why}") from error
        if response.will_close or not self.keep_alive:
            self._close_own()
        return answer

    def _read(self, response: HTTPResponse, ends_at_s: float) -> bytes:
        """Read the response in pieces, within the limits of time and size."""
        body = bytearray()
        while piece := response.read1(PIECE):
            body += piece
            if len(body) > self.most_bytes:
                raise ValueError(f"the response is longer than {self.most_bytes} bytes")
            if time.monotonic() > ends_at_s:
                raise TimeoutError
        if response.length:
            raise ValueError("the response is incomplete")
        response.close()  # needed to reuse the connection if the length is known
        return bytes(body)

    def _authorization(self) -> Mapping[str, str]:
        parts = urlsplit(self.url)
        if self.token_file:
            return {"Authorization": f"Bearer {Path(self.token_file).read_text().strip()}"}
        if parts.username is None:
            return {}
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def _connection(self) -> HTTPConnection:
        held: HTTPConnection | None = getattr(self._own, "connection", None)
        if held is None:
            parts = urlsplit(self.url)
            host = parts.hostname or ""
            held = (
                HTTPSConnection(
                    host,
                    parts.port,
                    timeout=self.timeout_s,
                    context=ssl.create_default_context(),
                )
                if parts.scheme == "https"
                else HTTPConnection(host, parts.port, timeout=self.timeout_s)
            )
            self._own.connection = held
            self._open.add(held)
        return held

    def close(self) -> None:
        """Close the connections of all threads. Call it when none is in use."""
        while self._open:
            self._open.pop().close()

    def _close_own(self) -> None:
        held: HTTPConnection | None = getattr(self._own, "connection", None)
        if held is not None:
            held.close()
            self._open.discard(held)
        self._own.connection = None


log = logging.getLogger(__name__)

TOO_MANY_REQUESTS = 429
MAX_PAUSE_S = 30.0
MAX_RETRY_AFTER_S = 300.0
REPORT_EVERY_S = 2.0


class StoppedError(Exception):
    """The writer was stopped before everything was delivered."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Counts of samples that the store accepted, or rejected for good."""

    sent: int = 0
    dropped: int = 0
    retries: int = 0
    why: str = ""

    def __add__(self, other: "Delivered") -> "Delivered":
        """Sum the counts; the last reason wins."""
        return Delivered(
            self.sent + other.sent,
            self.dropped + other.dropped,
            self.retries + other.retries,
            other.why or self.why,
        )


@dataclass
class WriteClient:
    """Sends batches from a few threads until the store accepts or rejects each.

    While the store is unreachable or busy (no response, 429, 5xx) a request is repeated, after
    Retry-After or with exponential backoff; no further batches are made until then, so memory
    stays bounded. Any other response is final: the samples are dropped, counted and logged.
    """

    endpoint: Endpoint
    stopping: Event
    n_threads: int = 4
    first_pause_s: float = 0.5
    headers: dict[str, str] = field(default_factory=lambda: dict(HEADERS))
    rng: random.Random = field(default_factory=random.SystemRandom)
    on_failure: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.n_threads, thread_name_prefix="long-term")
        self._failure = ""

    def close(self) -> None:
        """Stop threads and close connections. Call it when nothing is being delivered."""
        self._pool.shutdown(cancel_futures=True)
        self.endpoint.close()

    def deliver(self, batches: Iterator[WriteBatch]) -> Delivered:
        """Deliver all; at most one batch per thread is in memory.

        Raises
        ------
        StoppedError
            The caller must deliver all of it again.
        """
        total, under_way = Delivered(), set[Future[Delivered]]()
        try:
            for batch in batches:
                under_way.add(self._pool.submit(self._deliver_batch, batch))
                while len(under_way) >= self.n_threads:
                    total, under_way = self._collect(total, under_way)
            while under_way:
                total, under_way = self._collect(total, under_way)
            return total
        finally:
            # The next slice must not overtake a batch of this one.
            wait(under_way)

    def _collect(
        self, total: Delivered, under_way: set[Future[Delivered]]
    ) -> tuple[Delivered, set[Future[Delivered]]]:
        """Wait for deliveries; report the current problem every few seconds."""
        done, rest = wait(under_way, timeout=REPORT_EVERY_S, return_when=FIRST_COMPLETED)
        if self._failure:
            self.on_failure(self._failure)
            self._failure = ""
        return sum((each.result() for each in done), total), rest

    def _deliver_batch(self, batch: WriteBatch) -> Delivered:
        """Deliver one batch; a rejected one is split by time and sent again.

        A store rejects a whole batch if it already has some of its samples, or finds some too
        old. The others must not be lost with them.
        """
        outcome = self._send(batch)
        if outcome.dropped and batch.n_times > 1:
            parts = sum((self._send(part) for part in batch.by_time()), Delivered())
            outcome = Delivered(retries=outcome.retries) + parts
        if outcome.dropped:
            log.error(
                "%d samples were rejected by %s: %s",
                outcome.dropped,
                self.endpoint.safe_url,
                outcome.why,
            )
        return outcome

    def _send(self, batch: WriteBatch) -> Delivered:
        """Send a batch until it is accepted or rejected."""
        body, n_tries = batch.body(), 0
        while not self.stopping.is_set():
            n_tries += 1
            try:
                answer = self.endpoint.post("", body, self.headers)
            except EndpointUnreachableError as error:
                self._back_off(str(error), "", n_tries)
                continue
            if answer.status < 300:
                return Delivered(sent=batch.n_samples, retries=n_tries - 1)
            why = f"{answer.status} {answer.text}"
            if answer.status != TOO_MANY_REQUESTS and answer.status < 500:
                return Delivered(dropped=batch.n_samples, retries=n_tries - 1, why=why)
            self._back_off(f"{self.endpoint.safe_url}: {why}", answer.retry_after, n_tries)
        raise StoppedError

    def _back_off(self, why: str, retry_after: str, n_tries: int) -> None:
        """Wait as long as the store asks for, or exponentially longer, with jitter."""
        self._failure = why
        longest_s = min(MAX_PAUSE_S, self.first_pause_s * 2 ** min(n_tries - 1, 16))
        pause_s = longest_s * self.rng.uniform(0.5, 1.0)
        self.stopping.wait(max(pause_s, min(retry_after_s(retry_after), MAX_RETRY_AFTER_S)))


def retry_after_s(retry_after: str) -> float:
    """Seconds of a Retry-After header, given in seconds or as a date; 0 without one."""
    try:
        if retry_after.strip().isdecimal():
            return float(retry_after)
        moment = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())
