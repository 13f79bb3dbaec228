"""How calls with neuron-monitor's lines are served: admitted, read, stored; many at a time."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection
from redis.exceptions import RedisError

from fleet.access.throttling import RequestGate, Seldom
from fleet.access.tokens import TokenBook, bearer
from fleet.api.answers import (
    check_node,
    check_sent,
    check_up,
    split_lines,
    too_often,
    unavailable,
)
from fleet.api.bodies import check_kind, gunzip
from fleet.intake.arrivals import Arrivals
from fleet.intake.deliveries import Delivery, clock_of, store, told
from fleet.models import Token
from fleet.problem import ProblemError
from telemetry.store.hot import HotStore, open_store

log = logging.getLogger(__name__)
tokens = TokenBook()
gate = RequestGate()
DAY_S = 24 * 3600
complaints = Seldom(every_s=10.0)


@dataclass(slots=True)
class Call:
    """One request, or one piece of a stream: its headers, its lines, and when they came.

    Lines that come ``alone`` have no report of neuron-monitor in them.
    """

    headers: Mapping[str, str]
    node: str | None
    body: bytes
    arrived_s: float
    first_line: int = 1
    alone: bool = False
    token: Token | None = None
    delivery: Delivery | None = None
    problem: ProblemError | None = None

    def absorb(self, piece: "Call") -> None:
        """Add what became of a piece of this stream; a problem ends the stream."""
        if piece.problem is not None:
            raise piece.problem
        if self.delivery is None:
            self.delivery = Delivery()
        if piece.delivery is not None:
            self.delivery.absorb(piece.delivery)


def serve(calls: Sequence[Call]) -> None:
    """Take many calls at once: each ends with a delivery or a problem, never with half of one.

    All that arrived together is stored in one go, so a fleet costs fewer trips to Redis.
    """
    try:
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        _admit(calls, hot)
        arrivals = arrivals_of(settings.REDIS_URL, str(connection.settings_dict["NAME"]))
        for call in calls:
            _read(call, arrivals)
        _store(calls, hot, arrivals)
    except RedisError as error:
        for call in calls:
            call.delivery, call.problem = None, call.problem or _away(error)


def _admit(calls: Sequence[Call], hot: HotStore) -> None:
    """Find out who calls, and who calls too often."""
    for call in calls:
        try:
            secret = bearer(call.headers.get("authorization", ""))
            call.token = tokens.check(secret, Token.Scope.INGEST)
        except ProblemError as error:
            call.problem = error
        except DatabaseError as error:
            call.problem = _away(error)
    n_by_token = Counter(call.token.digest for call in calls if call.token)
    if not n_by_token:
        return
    left = gate.left(hot, n_by_token, now_s=time.time())
    for call in calls:
        if call.token and left[call.token.digest] < 0:
            call.problem = too_often(settings.INGEST_REQUESTS_PER_MINUTE)


def _read(call: Call, arrivals: Arrivals) -> None:
    """Read the lines of a call that was admitted."""
    if call.problem is not None:
        return
    try:
        call.delivery = arrivals.deliver(
            split_lines(_plain(call)),
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
        call.problem = _away(error)


def _away(error: Exception) -> ProblemError:
    """Return the answer while a store is away; the log is told now and then."""
    if complaints.is_due():
        log.warning("Reports cannot be taken: %s", error)
    return unavailable()


def _plain(call: Call) -> bytes:
    """Return the body of a call, unpacked."""
    headers = call.headers
    packed = check_kind(headers.get("content-type", ""), headers.get("content-encoding", ""))
    if not packed:
        return call.body
    return gunzip(call.body, limit=settings.INGEST_MAX_UNPACKED_BYTES)


def _store(calls: Sequence[Call], hot: HotStore, arrivals: Arrivals) -> None:
    """Store what all the calls brought, and count it."""
    deliveries = [call.delivery for call in calls if call.delivery is not None]
    n_refused_whole = sum(call.problem is not None for call in calls)
    try:
        store(hot, deliveries, n_refused_whole=n_refused_whole)
    except RedisError:
        for delivery in deliveries:
            arrivals.forget(delivery.node)
        raise


@lru_cache(maxsize=4096)
def arrivals_of(redis_url: str, database: str) -> Arrivals:
    """Return what this process knows of the nodes that report to these stores."""
    keep_s = settings.HOT_KEEP_S
    return Arrivals(
        keep_s=keep_s,
        late_s=settings.DURABLE_KEEP_DAYS * DAY_S,
        recall_clock=lambda node: clock_of(open_store(redis_url, keep_s=keep_s), node),
    )


def answer(call: Call) -> dict[str, Any]:
    """Return what became of the lines of a call; raises ProblemError when none was taken."""
    if call.problem is not None:
        raise call.problem
    delivery = call.delivery or Delivery()
    outcome = told(delivery)
    if delivery.refused and not delivery.n_accepted and not delivery.n_repeated:
        reason = f"No line was taken. {delivery.refused[0]}"
        raise ProblemError(400, reason, **outcome["refused"][0] | outcome)
    return outcome
