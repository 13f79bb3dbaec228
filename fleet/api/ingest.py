"""The plain way in for nodes' lines: one body, one answer."""

import logging
import time
from functools import lru_cache

import msgspec
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from redis.exceptions import RedisError

from fleet.access.throttling import RateLimiter, RequestGate
from fleet.access.tokens import TokenCache, bearer
from fleet.api.ingest_service import (
    IngestRequest,
    check_announced,
    check_kind,
    check_sent,
    check_up,
    gunzip,
    outcome_of,
    rate_exceeded,
    serve,
    store_unavailable,
    too_large,
)
from fleet.ingest.steps import StepIngest, StepIngestResult
from fleet.models import Token
from fleet.models.problem import ProblemError, problem
from telemetry.store.hot import HotStore, open_store


@csrf_exempt
def ingest_neuron_monitor(request: HttpRequest) -> HttpResponse:
    """Take the reports of one node, and say what became of them."""
    return _ingest_node(request, alone=False)


@csrf_exempt
def ingest_efa(request: HttpRequest) -> HttpResponse:
    """Take what one node says of its EFA devices and its driver, and say what became of it."""
    return _ingest_node(request, alone=True)


def _ingest_node(request: HttpRequest, *, alone: bool) -> HttpResponse:
    """Take the lines of one node."""
    if request.method != "POST":
        return problem(405, "Send the lines by POST.", headers={"Allow": "POST"})
    try:
        headers = {name.lower(): value for name, value in request.headers.items()}
        node = request.GET.get("node")
        call = IngestRequest(headers, node, _read_body(request), time.time(), alone=alone)
        serve([call])
        told = outcome_of(call)
    except ProblemError as error:
        return error.response()
    return HttpResponse(msgspec.json.encode(told), content_type="application/json")


def _read_body(request: HttpRequest) -> bytes:
    """Read the body, if it is not too large."""
    limit = settings.INGEST_MAX_BODY_BYTES
    check_announced(request.META.get("CONTENT_LENGTH"), limit=limit)
    body = request.read(limit + 1)
    if len(body) > limit:
        raise too_large(limit)
    return body


log = logging.getLogger(__name__)
tokens = TokenCache()
gate = RequestGate()
log_limit = RateLimiter(every_s=10.0)

MAX_BODY_BYTES = 1_000_000
MAX_UNPACKED_BYTES = 16_000_000
MAX_LINES = 10_000


@csrf_exempt
def ingest_steps(request: HttpRequest) -> HttpResponse:
    """Take lines about steps, and say what became of them."""
    if request.method != "POST":
        return problem(405, "Send the lines by POST.", headers={"Allow": "POST"})
    try:
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        _authenticate(request, hot)
        told = _outcome(_store_steps(request, hot))
    except ProblemError as error:
        return error.response()
    except (RedisError, DatabaseError) as error:
        if log_limit.is_due():
            log.warning("Step reports cannot be taken: %s", error)
        return store_unavailable().response()
    return HttpResponse(msgspec.json.encode(told), content_type="application/json")


def _authenticate(request: HttpRequest, hot: HotStore) -> None:
    """Find out who calls, and whether too often."""
    secret = bearer(request.headers.get("Authorization", ""))
    token = tokens.check(secret, Token.Scope.INGEST)
    left = gate.left(hot, {token.digest: 1}, now_s=time.time())
    if left[token.digest] < 0:
        raise rate_exceeded(settings.INGEST_REQUESTS_PER_MINUTE)


def _store_steps(request: HttpRequest, hot: HotStore) -> StepIngestResult:
    """Read the body's lines and take them in."""
    lines = _read_lines(request)
    sent_s = check_sent(request.headers.get("X-Trnwatch-At"))
    intake = step_ingest(settings.REDIS_URL, str(connection.settings_dict["NAME"]))
    up_s = check_up(request.headers.get("X-Trnwatch-Up"))
    outcome = intake.deliver(hot, lines, arrived_s=time.time(), sent_s=sent_s, up_s=up_s)
    counts = {
        "ingest_step_reports": outcome.n_accepted,
        "ingest_step_repeated": outcome.n_repeated,
        "ingest_step_lines_refused": outcome.n_refused,
    }
    hot.execute_all(
        ("HINCRBYFLOAT", "service:counters", name, n) for name, n in counts.items() if n
    )
    return outcome


def _read_lines(request: HttpRequest) -> list[bytes]:
    """Return the lines of the body, if it is neither too large nor blank."""
    is_packed = check_kind(
        request.headers.get("Content-Type", ""), request.headers.get("Content-Encoding", "")
    )
    check_announced(request.META.get("CONTENT_LENGTH"), limit=MAX_BODY_BYTES)
    body = request.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise too_large(MAX_BODY_BYTES)
    if is_packed:
        body = gunzip(body, limit=MAX_UNPACKED_BYTES)
    if not body.strip():
        raise ProblemError(400, "The body is empty. Send one report per line.", field="body")
    if body.count(b"\n") > MAX_LINES:
        detail = f"The body has more than {MAX_LINES:,} lines. Send fewer at a time."
        raise ProblemError(413, detail, limit_lines=MAX_LINES)
    return body.split(b"\n")


@lru_cache(maxsize=4096)
def step_ingest(redis_url: str, database: str) -> StepIngest:
    """Return what this process knows of the runs that report to these stores."""
    return StepIngest(time.monotonic)


def _outcome(outcome: StepIngestResult) -> dict[str, object]:
    """Return what became of the lines; raises ProblemError where none was taken."""
    told = outcome.response()
    if outcome.refused and not outcome.n_accepted and not outcome.n_repeated:
        first = outcome.refused[0]
        raise ProblemError(400, f"No line was taken. {first}", **told["refused"][0] | told)
    return told
