"""How calls with neuron-monitor's lines are served: admitted, read, stored; many at a time."""

import logging
import math
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection
from redis.exceptions import RedisError

from fleet.access.throttling import RateLimiter, RequestGate
from fleet.access.tokens import TokenCache, bearer
from fleet.ingest.nodes import (
    NAME,
    NAME_RULE,
    IngestBatch,
    NodeIngest,
    clock_of,
    response_of,
    store_batches,
)
from fleet.models import Token
from fleet.models.problem import ProblemError
from fleet.ops.compression import gunzip_pieces
from telemetry.store.hot import HotStore, open_store

RETRY_AFTER_S = 5
MAX_LINES = 10_000


def store_unavailable() -> ProblemError:
    """Return the answer while Redis or the database is away: nothing was stored, try again."""
    return ProblemError(
        503,
        "The store is away; nothing of this was taken. Send it again.",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def rate_exceeded(limit: int) -> ProblemError:
    """Return the answer to a token that sends too many requests."""
    detail = f"More than {limit:,} requests in a minute with this token. Send more lines in each."
    return ProblemError(429, detail, headers={"Retry-After": "60"})


def check_node(node: str | None) -> str | None:
    """Return the node that a call names, None where it names none."""
    if node is None:
        return None
    if not NAME.fullmatch(node):
        raise ProblemError(400, f"{node[:80]!r} is no name for a node: {NAME_RULE}.", field="node")
    return node


def check_sent(header: str | None) -> float | None:
    """Return when a call says it was sent, by its own clock."""
    return _seconds("X-Trnwatch-At", "the Unix time in seconds", header)


def check_up(header: str | None) -> float | None:
    """Return how long a call says its machine has been up, seconds."""
    return _seconds("X-Trnwatch-Up", "the seconds since boot", header)


def _seconds(name: str, meaning: str, header: str | None) -> float | None:
    """Return the seconds in a header, None where it is not there."""
    if header is None:
        return None
    try:
        told_s = float(header)
    except ValueError:
        told_s = math.nan
    if not 0 <= told_s <= 1e11:
        raise ProblemError(400, f"{name} is {meaning}, not {header[:40]!r}.", field=name)
    return told_s


def split_lines(body: bytes) -> list[bytes]:
    """Return the lines of a body; refuse one that is blank or has too many."""
    if body.count(b"\n") > MAX_LINES:
        detail = f"The body has more than {MAX_LINES:,} lines. Send fewer reports at a time."
        raise ProblemError(413, detail, limit_lines=MAX_LINES)
    if not body.strip():
        raise ProblemError(400, "The body is empty. Send a line for each report.", field="body")
    return body.split(b"\n")


def too_large(limit: int, *, unpacked: bool = False) -> ProblemError:
    """Return the refusal of a body that is larger than we read."""
    how = " once unpacked" if unpacked else ""
    detail = f"The body has more than {limit:,} bytes{how}. Send fewer reports at a time."
    return ProblemError(413, detail, limit_bytes=limit)


def check_announced(length: str | None, *, limit: int) -> None:
    """Refuse a body by the length it announces, before any of it is read."""
    if not length:
        return
    if not length.isdecimal():
        raise ProblemError(400, "Content-Length is not a number.", field="Content-Length")
    if int(length) > limit:
        raise too_large(limit)


def check_utf8(field: str, raw: bytes) -> None:
    """Refuse bytes that are not UTF-8, and say where they stop being so."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} (0x{raw[error.start]:02x})"
        detail = f"The {field} is not UTF-8: see {where}. Send text encoded as UTF-8."
        raise ProblemError(400, detail, field=field) from error


def check_kind(content_type: str, encoding: str) -> bool:
    """Return whether the body is gzip; refuse what is neither that nor plain."""
    if content_type.startswith("multipart/"):
        detail = "Send the lines as the body itself, as application/x-ndjson; no form."
        raise ProblemError(415, detail, field="Content-Type")
    packing = encoding.strip().lower()
    if packing not in {"", "identity", "gzip", "x-gzip"}:
        detail = f"Content-Encoding {packing[:40]!r} is not understood; gzip is."
        raise ProblemError(415, detail, field="Content-Encoding")
    return packing.endswith("gzip")


def check_unpacked(encoding: str) -> None:
    """Refuse a stream that is packed: its lines could not be read as they come."""
    if encoding.strip().lower() not in {"", "identity"}:
        detail = "Lines that are sent live come unpacked; leave out live=1 to send gzip."
        raise ProblemError(415, detail, field="Content-Encoding")


def gunzip(packed: bytes, *, limit: int) -> bytes:
    """Unpack gzip, never more than ``limit`` bytes of it."""
    lines_of_node = []
    size = 0
    try:
        for line in gunzip_pieces(packed):
            size += len(line)
            if size > limit:
                raise too_large(limit, unpacked=True)
            lines_of_node.append(line)
    except EOFError as error:
        raise ProblemError(400, "The gzip body ends early.", field="body") from error
    except (zlib.error, ValueError) as error:
        raise ProblemError(400, f"The body is not gzip: {error}.", field="body") from error
    return b"".join(lines_of_node)


log = logging.getLogger(__name__)
tokens = TokenCache()
gate = RequestGate()
DAY_S = 24 * 3600
log_limit = RateLimiter(every_s=10.0)


@dataclass(slots=True)
class IngestRequest:
    """One request, or one line of a stream: its headers, its lines, and when they came.

    Lines that come ``alone`` have no report of neuron-monitor in them.
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

    def absorb(self, line: "IngestRequest") -> None:
        """Add what became of a line of this stream; a problem ends the stream."""
        if line.problem is not None:
            raise line.problem
        if self.delivery is None:
            self.delivery = IngestBatch()
        if line.delivery is not None:
            self.delivery.absorb(line.delivery)


def serve(calls: Sequence[IngestRequest]) -> None:
    """Take many calls at once: each ends with a delivery or a problem, never with half of one.

    All that arrived together is stored in one go, so a fleet costs fewer trips to Redis.
    """
    try:
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        _authenticate(calls, hot)
        arrivals = arrivals_of(settings.REDIS_URL, str(connection.settings_dict["NAME"]))
        for call in calls:
            _read(call, arrivals)
        _store(calls, hot, arrivals)
    except RedisError as error:
        for call in calls:
            call.delivery, call.problem = None, call.problem or _store_unavailable(error)


def _authenticate(calls: Sequence[IngestRequest], hot: HotStore) -> None:
    """Find out who calls, and who calls too often."""
    for call in calls:
        try:
            secret = bearer(call.headers.get("authorization", ""))
            call.token = tokens.check(secret, Token.Scope.INGEST)
        except ProblemError as error:
            call.problem = error
        except DatabaseError as error:
            call.problem = _store_unavailable(error)
    n_by_token = Counter(call.token.digest for call in calls if call.token)
    if not n_by_token:
        return
    left = gate.left(hot, n_by_token, now_s=time.time())
    for call in calls:
        if call.token and left[call.token.digest] < 0:
            call.problem = rate_exceeded(settings.INGEST_REQUESTS_PER_MINUTE)


def _read(call: IngestRequest, arrivals: NodeIngest) -> None:
    """Read the lines of a call that was admitted."""
    if call.problem is not None:
        return
    try:
        call.delivery = arrivals.deliver(
            split_lines(_unpacked_body(call)),
            node=check_node(call.node),
            arrived_s=call.arrived_s,
            sent_s=check_sent(call.headers.get("x-trnwatch-at")),
            first_line=call.first_line,
            up_s=check_up(call.headers.get("x-trnwatch-up")),
            alone=call.alone,
        )
    except ProblemError as error:
        call.problem = error
    except DatabaseError as error:
        call.problem = _store_unavailable(error)


def _store_unavailable(error: Exception) -> ProblemError:
    """Return the answer while a store is away; the log is told now and then."""
    if log_limit.is_due():
        log.warning("Reports cannot be taken: %s", error)
    return store_unavailable()


def _unpacked_body(call: IngestRequest) -> bytes:
    """Return the body of a call, unpacked."""
    headers = call.headers
    packed = check_kind(headers.get("content-type", ""), headers.get("content-encoding", ""))
    if not packed:
        return call.body
    return gunzip(call.body, limit=settings.INGEST_MAX_UNPACKED_BYTES)


def _store(calls: Sequence[IngestRequest], hot: HotStore, arrivals: NodeIngest) -> None:
    """Store what all the calls brought, and count it."""
    deliveries = [call.delivery for call in calls if call.delivery is not None]
    n_refused_whole = sum(call.problem is not None for call in calls)
    try:
        store_batches(hot, deliveries, n_refused_whole=n_refused_whole)
    except RedisError:
        for delivery in deliveries:
            arrivals.forget(delivery.node)
        raise


@lru_cache(maxsize=4096)
def arrivals_of(redis_url: str, database: str) -> NodeIngest:
    """Return what this process knows of the nodes that report to these stores."""
    keep_s = settings.HOT_KEEP_S
    return NodeIngest(
        keep_s=keep_s,
        late_s=settings.DURABLE_KEEP_DAYS * DAY_S,
        restore_clock=lambda node: clock_of(open_store(redis_url, keep_s=keep_s), node),
    )


def outcome_of(call: IngestRequest) -> dict[str, Any]:
    """Return what became of the lines of a call; raises ProblemError when none was taken."""
    if call.problem is not None:
        raise call.problem
    delivery = call.delivery or IngestBatch()
    outcome = response_of(delivery)
    if delivery.refused and not delivery.n_accepted and not delivery.n_repeated:
        reason = f"No line was taken. {delivery.refused[0]}"
        raise ProblemError(400, reason, **outcome["refused"][0] | outcome)
    return outcome
