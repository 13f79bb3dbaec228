"""Ingest of lines from nodes and training jobs, whichever way they come.

Requests are authenticated, read and stored many at a time. ``fleet.api.ingest_asgi`` serves nodes
without Django, ``fleet.api.ingest_views`` all others.
"""

import logging
import math
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection
from redis.exceptions import RedisError
from zstandard import ZstdError

from fleet.access.throttling import RateLimiter, RequestGate, WorkBudget
from fleet.access.tokens import MACHINE_PREFIX, TokenCache, bearer
from fleet.ingest.nodes import IngestBatch, NodeIngest, clock_of, response_of, store_batches
from fleet.ingest.rows import NAME, NAME_RULE
from fleet.models import Token
from fleet.models.problem import ProblemError
from fleet.ops.compression import UNPACKERS, unzstd_whole
from telemetry.errors import whole_number
from telemetry.ingest import limits
from telemetry.ingest.columns import BEGINS, ReportTable, compute, read_columns
from telemetry.ingest.lines import RefusedError, join_documents
from telemetry.ingest.timing import shard_of
from telemetry.store.hot import HotStore, hot_store, open_store
from telemetry.store.refused import note_refused
from telemetry.units import DAY_S

RETRY_AFTER_S = 5
MAX_LINES = 10_000
# JSON that is printed over several lines has many for each report.
MAX_PRINTED_LINES = 1_000_000
# Requests whose columns are computed in one pass. Until then the numbers and templates of all are
# held, so larger ones are read alone.
MAX_TOGETHER, MAX_TABLE_BYTES, MAX_TABLE_NUMBERS = 32, 250_000, 60_000

log = logging.getLogger(__name__)
tokens = TokenCache()
gate = RequestGate()
work = WorkBudget()
# Senders wait 10 s for an answer (OTLP's exporters); then they send again.
TURN_WITHIN_S = 10.0
log_limit = RateLimiter(every_s=10.0)


@dataclass(slots=True)
class IngestRequest:
    """One request, or one part of a stream. Names of headers are in lower case.

    Lines that come ``alone`` contain no report of neuron-monitor.
    """

    headers: Mapping[str, str]
    node: str | None
    body: bytes
    arrived_s: float
    first_line: int = 1
    alone: bool = False
    token: Token | None = None
    delivery: IngestBatch | None = None
    problem: ProblemError | None = None

    def absorb(self, part: "IngestRequest") -> None:
        """Add the outcome of a part of this stream; a problem ends the stream."""
        if part.problem is not None:
            raise part.problem
        if self.delivery is None:
            self.delivery = IngestBatch()
        if part.delivery is not None:
            self.delivery.absorb(part.delivery)

    def clocks(self) -> tuple[float | None, float | None]:
        """Return when the request was sent (Unix time) and the sender's uptime, in seconds."""
        sent_s = self._seconds("X-Trnwatch-At", "the Unix time in seconds")
        return sent_s, self._seconds("X-Trnwatch-Up", "the seconds since boot")

    def _seconds(self, name: str, meaning: str) -> float | None:
        header = self.headers.get(name.lower())
        if header is None:
            return None
        try:
            value_s = float(header)
        except ValueError:
            value_s = math.nan
        if not 0 <= value_s <= 1e11:
            raise ProblemError(400, f"{name}: {header[:40]!r} is not {meaning}.", field=name)
        return value_s

    def unpacked(self, *, max_bytes: int) -> bytes:
        """Return the body without gzip or zstd; refuse other encodings."""
        encoding = self.headers.get("content-encoding", "").strip().lower() or "identity"
        if encoding not in {"identity", *UNPACKERS}:
            detail = f"Content-Encoding {encoding[:40]!r} is not supported. Use gzip or zstd."
            accepted = {"Accept-Encoding": "gzip, zstd"}
            raise ProblemError(415, detail, field="Content-Encoding", headers=accepted)
        # It is read once: what comes next takes its room.
        body, self.body = self.body, b""
        if encoding == "identity":
            return body
        most = limits.most_unpacked(len(body), max_bytes)
        return _unpack(body, encoding.removeprefix("x-"), max_bytes=most)

    def lines(self, *, max_bytes: int) -> list[bytes]:
        """Return the lines of the unpacked body; refuse other encodings and unusable bodies."""
        if self.headers.get("content-type", "").startswith("multipart/"):
            detail = "Send the lines as the body itself, as application/x-ndjson, not as a form."
            raise ProblemError(415, detail, field="Content-Type")
        body = self.unpacked(max_bytes=max_bytes)
        if not body.strip():
            raise ProblemError(400, "The body is empty. Send one report per line.", field="body")
        lines: list[bytes] = []
        if body.count(b"\n") <= MAX_PRINTED_LINES:
            lines = join_documents(body).split(b"\n")
        if not lines or sum(map(bool, lines)) > MAX_LINES:
            detail = f"The body has more than {MAX_LINES:,} lines. Send fewer reports at a time."
            raise ProblemError(413, detail, limit_lines=MAX_LINES)
        return lines


def serve(requests: Sequence[IngestRequest]) -> None:
    """Set ``delivery`` or ``problem`` of every request.

    What arrived together is stored together, with few round trips to Redis.
    """
    try:
        hot = hot_store()
        authenticate(requests, hot)
        arrivals = arrivals_of(settings.REDIS_URL, str(connection.settings_dict["NAME"]))
        by_token: dict[str, list[IngestRequest]] = {}
        for request in requests:
            if request.token and request.problem is None:
                by_token.setdefault(request.token.digest, []).append(request)
        for digest, of_token in by_token.items():
            for i in range(0, len(of_token), MAX_TOGETHER):
                with work.spend(digest):
                    _read_together(of_token[i : i + MAX_TOGETHER], arrivals)
        _note_refused_nodes(hot, requests)
        if n_refused_whole := sum(request.problem is not None for request in requests):
            hot.count("ingest_errors", n_refused_whole)
        read = [(each, each.delivery) for each in requests if each.delivery is not None]
        # Where one of several stores is missing, its nodes send again, and the others are stored.
        for _, some in hot.divide(read, lambda each: shard_of(each[1].node)):
            try:
                store_batches(hot, [delivery for _, delivery in some])
            except RedisError as error:
                for _, delivery in some:
                    arrivals.forget(delivery.node)
                _send_again([request for request, _ in some], error)
    except RedisError as error:
        _send_again(requests, error)


def _send_again(requests: Sequence[IngestRequest], error: Exception) -> None:
    for request in requests:
        request.delivery, request.problem = None, request.problem or store_unavailable(error)


def _note_refused_nodes(hot: HotStore, requests: Sequence[IngestRequest]) -> None:
    """Count what was refused by node; a sender without a token may write on no page."""
    of_nodes, of_tokens = [], []
    for request in requests:
        delivery, name, n, reason = request.delivery, request.node or "", 0, ""
        if request.problem is not None:
            n, reason = 1, str(request.problem)
        elif delivery is not None and delivery.n_refused:
            name, n = delivery.node or name, delivery.n_refused
            reason = delivery.refused[0].problem
        if n and request.token is not None:
            if NAME.fullmatch(name):
                of_nodes.append((name, n, reason))
            else:
                of_tokens.append((request.token.name, n, reason))
    now_s = time.time()
    note_refused(hot, "node", of_nodes, now_s=now_s)
    note_refused(hot, "token", of_tokens, now_s=now_s)


def check_sender(known: TokenCache, secret: str, scope: str) -> Token:
    """Return the token of a secret; what is sent with an expired or revoked one is counted."""
    try:
        return known.check(secret, scope)
    except ProblemError as error:
        if error.who:
            of_token = (error.who.removeprefix(MACHINE_PREFIX), 1, str(error))
            with suppress(RedisError):
                note_refused(hot_store(), "token", [of_token], now_s=time.time())
        raise


def authenticate(requests: Sequence[IngestRequest], hot: HotStore) -> None:
    """Set the token of each request, or its problem if it is refused or over the limit."""
    for request in requests:
        try:
            secret = bearer(request.headers.get("authorization", ""))
            request.token = check_sender(tokens, secret, Token.Scope.INGEST)
        except ProblemError as error:
            request.problem = error
        except DatabaseError as error:
            request.problem = store_unavailable(error)
    n_by_token = Counter(request.token.digest for request in requests if request.token)
    if not n_by_token:
        return
    left = gate.left(hot, n_by_token, now_s=time.time())
    for request in requests:
        if request.token and left[request.token.digest] < 0:
            request.problem = ProblemError(
                429,
                f"More than {settings.INGEST_REQUESTS_PER_MINUTE:,} requests in a minute with "
                "this token. Send more lines in each.",
                headers={"Retry-After": "60"},
                who=f"{MACHINE_PREFIX}{request.token.name}",
            )
        elif request.token:
            request.problem = overworked(request.token)


def overworked(token: Token) -> ProblemError | None:
    """Return the refusal of a token whose requests took too much CPU time, else None."""
    wait_s = work.wait_s(token.digest)
    if not wait_s:
        return None
    return ProblemError(
        429,
        f"Requests with this token took {settings.INGEST_CPU_S_PER_MINUTE} s of CPU time "
        "in a minute. Send less, or raise TRNWATCH_INGEST_CPU_PER_MINUTE.",
        headers={"Retry-After": str(wait_s)},
        who=f"{MACHINE_PREFIX}{token.name}",
    )


def _read_together(requests: Sequence[IngestRequest], arrivals: NodeIngest) -> None:
    """Read requests; what they have in small columns is computed in one pass."""
    tables: list[tuple[IngestRequest, ReportTable]] = []
    for request in requests:
        with _problems_of(request):
            lines = request.lines(max_bytes=settings.INGEST_MAX_UNPACKED_BYTES)
            if not request.alone and (table := small_table(lines)) is not None:
                tables.append((request, table))
            else:
                _deliver(request, lines, arrivals)
    compute(table for _, table in tables)
    with suppress(DatabaseError):
        arrivals.expect(request.node or table.node for request, table in tables)
    for request, table in tables:
        with _problems_of(request):
            _deliver(request, [table], arrivals)


def small_table(lines: Sequence[bytes]) -> ReportTable | None:
    """Return the columns of a body that is one small line of them, else None."""
    is_one = len(lines) == 1 or (len(lines) == 2 and not lines[1])
    if is_one and lines[0].startswith(BEGINS) and len(lines[0]) <= MAX_TABLE_BYTES:
        with suppress(RefusedError):
            table = read_columns(lines[0])
            return table if table.numbers.size <= MAX_TABLE_NUMBERS else None
    return None


@contextmanager
def _problems_of(request: IngestRequest) -> Iterator[None]:
    try:
        yield
    except ProblemError as error:
        request.problem = error.without_frames()
    except DatabaseError as error:
        request.problem = store_unavailable(error)
    finally:
        request.body = b""


def _deliver(
    request: IngestRequest, lines: Sequence[bytes | ReportTable], arrivals: NodeIngest
) -> None:
    if request.node is not None and not NAME.fullmatch(request.node):
        detail = f"node: {request.node[:80]!r} is not a valid name: {NAME_RULE}."
        raise ProblemError(400, detail, field="node")
    sent_s, up_s = request.clocks()
    request.delivery = arrivals.deliver(
        lines,
        node=request.node,
        arrived_s=request.arrived_s,
        first_line=request.first_line,
        alone=request.alone,
        sent_s=sent_s,
        up_s=up_s,
    )


@lru_cache(maxsize=4096)
def arrivals_of(redis_url: str, database: str) -> NodeIngest:
    """Return the state that this process keeps of the nodes that report to these stores."""
    keep_s = settings.HOT_KEEP_S
    return NodeIngest(
        keep_s=keep_s,
        late_s=settings.DURABLE_KEEP_DAYS * DAY_S,
        restore_clock=lambda node: clock_of(open_store(redis_url, keep_s=keep_s), node),
    )


def outcome_of(request: IngestRequest) -> dict[str, Any]:
    """Return the response to a request; raises ProblemError where no line was accepted."""
    if request.problem is not None:
        raise request.problem
    return require_accepted(response_of(request.delivery or IngestBatch()))


def require_accepted(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome; raises ProblemError with it where every line was refused."""
    if not outcome["refused"] or outcome["accepted"] or outcome["repeated"]:
        return outcome
    first = outcome["refused"][0]
    where = f"{first['field']}: " if first["field"] else ""
    detail = f"No line was accepted. line {first['line']}: {where}{first['reason']}"
    raise ProblemError(400, detail, **first | outcome)


# Refusals, also of requests to other endpoints.


def store_unavailable(error: Exception) -> ProblemError:
    """Return the 503 while Redis or the database is unavailable: nothing was stored."""
    if log_limit.is_due():
        log.warning("Reports cannot be stored: %s", error)
    return ProblemError(
        503,
        "The store is unavailable; nothing was stored. Send it again.",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def too_large(limit: int, *, unpacked: bool = False) -> ProblemError:
    how = " once unpacked" if unpacked else ""
    detail = f"The body has more than {limit:,} bytes{how}. Send fewer reports at a time."
    return ProblemError(413, detail, limit_bytes=limit)


def check_announced(length: str | None, *, limit: int) -> None:
    """Refuse a body by its Content-Length, before any of it is read."""
    if not length:
        return
    if not (length.isascii() and length.isdigit()):
        raise ProblemError(400, "Content-Length is not a number.", field="Content-Length")
    if whole_number(length, most=limit) is None:
        raise too_large(limit)


def check_utf8(field: str, raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} (0x{raw[error.start]:02x})"
        detail = f"The {field} is not UTF-8: see {where}. Send text encoded as UTF-8."
        raise ProblemError(400, detail, field=field) from error


def _unpack(packed: bytes, encoding: str, *, max_bytes: int) -> bytes:
    if encoding == "zstd" and (whole := unzstd_whole(packed, max_bytes=max_bytes)) is not None:
        return whole
    # Its value is no copy; joining a list of pieces would take the memory twice.
    unpacked = BytesIO()
    try:
        for piece in UNPACKERS[encoding](packed):
            unpacked.write(piece)
            if unpacked.tell() > max_bytes:
                raise too_large(max_bytes, unpacked=True)
    except EOFError as error:
        raise ProblemError(400, f"The {encoding} body ends early.", field="body") from error
    except (zlib.error, ZstdError, ValueError) as error:
        detail = f"The body is not {encoding}: {error}."
        raise ProblemError(400, detail, field="body") from error
    return unpacked.getvalue()
