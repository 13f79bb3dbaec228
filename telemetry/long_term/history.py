"""History from the long-term store, which has what an agent scraped from `/metrics`."""

import base64
import logging
import math
import re
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import unquote, urlencode, urlsplit

import msgspec
import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.exporter.hardware import HARDWARE
from telemetry.steps import PHASES
from telemetry.store.chunks import ENDED, FIRST_PHASE, LOSS, N_COLUMNS, STEP, TOKENS
from telemetry.store.reading import LongTermError
from telemetry.store.rollups import N_STATS

log = logging.getLogger(__name__)

QUERY_RANGE = "/api/v1/query_range"
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
# Pause after a failed request: a page queries many charts at once.
REST_S = 10.0
MOST_BYTES = 32 << 20
TIMEOUT_S = 8.0
PIECE = 64 * 1024
MAX_TEXT = 300
LONGEST_WHY = 120
# Readers see what is missing; address and reason are only in the log.
STORE = "the long-term store"
AWAY = f"{STORE} does not answer"


class EndpointUnreachableError(Exception):
    """No valid response within the time and size limits; the message says why."""


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The beginning of the response as one line of plain text."""
        text = self.body[: 4 * MAX_TEXT].decode("utf-8", "replace")
        words = "".join(c if c.isprintable() else " " for c in text).split()
        return " ".join(words)[:MAX_TEXT]


@dataclass(frozen=True)
class Endpoint:
    """The URL of a long-term store.

    ``url`` may contain user and password; ``token_file`` is read for every request, so that a
    rotated token is used at once.
    """

    url: str
    token_file: str = ""
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            msg = f"{self.safe_url!r} is not a URL of a long-term store; give http://host:port"
            raise ValueError(msg)

    @property
    def safe_url(self) -> str:
        """The URL without user and password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> EndpointAnswer:
        """Post once to ``url`` + ``path``; EndpointUnreachableError without a valid response."""
        ends_at_s = time.monotonic() + self.timeout_s
        try:
            with closing(self._connection()) as connection:
                target = urlsplit(self.url).path.rstrip("/") + path
                connection.request("POST", target, body, {**headers, **self._authorization()})
                response = connection.getresponse()
                return EndpointAnswer(response.status, self._read(response, ends_at_s))
        except (OSError, HTTPException, ValueError) as error:
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            if isinstance(error, TimeoutError):
                why = f"no complete response in {self.timeout_s:g} s"
            raise EndpointUnreachableError(f"{self.safe_url}: {why}") from error

    def _read(self, response: HTTPResponse, ends_at_s: float) -> bytes:
        """Read the response in pieces, within the limits of time and size."""
        body = bytearray()
        while piece := response.read1(PIECE):
            body += piece
            if len(body) > MOST_BYTES:
                raise ValueError(f"the response is longer than {MOST_BYTES} bytes")
            if time.monotonic() > ends_at_s:
                raise TimeoutError
        if response.length:
            raise ValueError("the response is incomplete")
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
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if parts.scheme == "http":
            return HTTPConnection(host, parts.port, timeout=self.timeout_s)
        context = ssl.create_default_context()
        return HTTPSConnection(host, parts.port, timeout=self.timeout_s, context=context)


class PromSeries(msgspec.Struct):
    """One series of a response: its labels, and (second, value as text) pairs."""

    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    result: list[PromSeries]


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


@dataclass
class PromQL:
    """A client of one store; every failure is a LongTermError."""

    endpoint: Endpoint
    clock: Callable[[], float] = time.monotonic
    _rests_until: float = field(default=-math.inf, init=False)

    def query_range(self, query: str, *, start: int, end: int, step_s: int) -> list[PromSeries]:
        """Values at start, start + step, … up to and including end."""
        if self.clock() < self._rests_until:
            raise LongTermError(AWAY)
        # nocache stops VictoriaMetrics from rounding start and end to whole steps.
        asked = {"query": query, "start": start, "end": end, "step": step_s, "nocache": 1}
        try:
            answer = self.endpoint.post(QUERY_RANGE, urlencode(asked).encode(), FORM)
        except EndpointUnreachableError as error:
            log.warning("%s", error)
            self._rests_until = self.clock() + REST_S
            raise LongTermError(AWAY) from error
        try:
            result = msgspec.json.decode(answer.body, type=_Answer)
        except (msgspec.DecodeError, UnicodeError):
            log.warning("%s: %s %s", self.endpoint.safe_url, answer.status, answer.text)
            raise LongTermError(f"{STORE} answers no PromQL ({answer.status})") from None
        if result.status != "success" or result.data is None:
            log.warning("%s: %s %s", self.endpoint.safe_url, answer.status, answer.text)
            why = result.error[:LONGEST_WHY] or answer.status
            raise LongTermError(f"{STORE} refuses: {why}")
        return result.data.result


def selector(name: str, **labels: str) -> str:
    r"""Return a selector of series; whatever the labels hold, it stays inside its quotes.

    >>> selector("up", node='a"} or {b="')
    'up{node="a\\"} or {b=\\""}'
    """
    plain = {label: value.encode("utf-8", "replace").decode() for label, value in labels.items()}
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    pairs = ",".join(f'{label}="{value.translate(escapes)}"' for label, value in plain.items())
    return f"{name}{{{pairs}}}"


# Aggregation over time, in the order of the rows' statistics.
MERGES = ("min", "avg", "max")
assert len(MERGES) == N_STATS  # noqa: S101
MOST_PARTS = 1024
# A label that no metric has.
KIND = "trnwatch_kind"
COLUMNS = {"tokens": TOKENS, "step": STEP, "loss": LOSS} | {
    phase.removesuffix("_s"): FIRST_PHASE + i for i, phase in enumerate(PHASES)
}


def over(merge: str, name: str, by: str, every_s: int, **labels: str) -> str:
    """Return a query that merges the samples of a series in each interval.

    The lookback is a millisecond less than the interval: neighbours share no sample.
    """
    series = selector(name, **labels)
    return f"{merge} by ({by}) ({merge}_over_time({series}[{every_s * 1000 - 1}ms]))"


class LongTermHistory:
    """Reads history of a store that has what `/metrics` showed.

    Releases before 0.10 wrote minutes to it, as ``NAME:min_1m``, ``NAME:avg_1m`` and
    ``NAME:max_1m``: where there are such, they are read instead of samples.
    """

    def __init__(self, promql: PromQL) -> None:
        self._promql = promql

    def node_minutes(
        self, node: str, metric: str, *, start: int, end: int, every_s: int
    ) -> tuple[IntArray, FloatArray]:
        """Return lowest, mean and highest of each part per ``every_s`` from start up to end.

        Returns
        -------
        t_s : (n,)
            Where each stretch begins: start, start + every_s, ….
        values : (n, 3 * n_parts)
            As ``telemetry.store.rollups.Minutes`` has them; NaN for gaps.
        """
        spec, t_s = HARDWARE[metric], np.arange(start, end, every_s)
        by_part = spec.labels[1] if len(spec.labels) > 1 else ""
        of_node = {spec.labels[0]: node}
        pieces = []
        for merge in MERGES:
            minutes = over(merge, f"{spec.name}:{merge}_1m", by_part, every_s, **of_node)
            samples = over(merge, spec.name, by_part, every_s, **of_node)
            pieces.append(f'label_replace({minutes} or {samples}, "{KIND}", "{merge}", "", "")')
        answers = self._ask(" or ".join(pieces), t_s, every_s)
        places = [(MERGES.index(one.metric[KIND]), _part(one, by_part), one) for one in answers]
        n_parts = max((part + 1 for _, part, _ in places), default=0)
        values = np.full((len(t_s), N_STATS, n_parts), np.nan)
        for stat, part, one in places:
            _place(values[:, stat, part], one, t_s, every_s)
        return t_s, values.reshape(len(t_s), -1)

    def run_minutes(self, run: str, *, start: int, end: int, every_s: int) -> FloatArray:
        """Return the average step of each ``every_s`` in which one ended: ``Chunk.steps``."""

        def of(merge: str, name: str, by: str = "") -> str:
            return over(merge, f"trnwatch_run_{name}", by, every_s, run=run)

        pace = f"{of('avg', 'tokens_per_second')} * {of('avg', 'step_seconds')}"
        asked = {
            "tokens": f"{of('avg', 'step_tokens:avg_1m')} or {pace}",
            "step": f"{of('max', 'steps:max_1m')} or {of('max', 'steps_total')}",
            "loss": of("avg", "loss"),
        }
        phases = (of("avg", name, "phase") for name in ("phase_seconds:avg_1m", "phase_seconds"))
        queries = [*phases, *(_named(query, name) for name, query in asked.items())]
        t_s = np.arange(start, end, every_s)
        rows = np.full((len(t_s), N_COLUMNS), np.nan)
        rows[:, ENDED] = t_s + every_s - 1
        for one in self._ask(" or ".join(queries), t_s, every_s):
            column = COLUMNS.get(one.metric.get("phase", ""))
            if column is not None:
                _place(rows[:, column], one, t_s, every_s)
        is_known = np.isfinite(rows[:, FIRST_PHASE : FIRST_PHASE + len(PHASES)]).any(axis=1)
        rows = rows[is_known & np.isfinite(rows[:, STEP])]
        # The count of steps is scraped also while none ends.
        return np.asarray(rows[np.diff(rows[:, STEP], prepend=np.nan) != 0])

    def _ask(self, query: str, t_s: IntArray, every_s: int) -> list[PromSeries]:
        """Query at the last second of each interval, so that values cover one interval each."""
        first, last = int(t_s[0]) + every_s - 1, int(t_s[-1]) + every_s - 1
        return self._promql.query_range(query, start=first, end=last, step_s=every_s)


def _named(query: str, phase: str) -> str:
    return f'label_replace({query}, "phase", "{phase}", "", "")'


def _part(found: PromSeries, label: str) -> int:
    text = found.metric.get(label, "0") if label else "0"
    if not re.fullmatch(r"\d{1,4}", text) or int(text) >= MOST_PARTS:
        raise LongTermError(f"the store names a part {text[:20]!r}; expected a small number")
    return int(text)


def _place(column: FloatArray, found: PromSeries, t_s: IntArray, every_s: int) -> None:
    try:
        moments = np.array([second for second, _ in found.values])
        values = np.array([float(text) for _, text in found.values])
    except ValueError:
        raise LongTermError("the store gives a value that is no number") from None
    places = np.rint((moments - (every_s - 1) - t_s[0]) / every_s).astype(int)
    kept = (places >= 0) & (places < len(t_s))
    column[places[kept]] = values[kept]


@lru_cache(maxsize=4)
def open_history(url: str, token_file: str) -> LongTermHistory | None:
    """Open a long-term store, once per process; None without a URL."""
    if not url:
        return None
    return LongTermHistory(PromQL(Endpoint(url, token_file)))
