"""Ingest endpoints in Django: reports of nodes and jobs, remote write and OTLP."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any

import msgspec
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from redis.exceptions import RedisError

from fleet.access.audit import explain_problem
from fleet.api.ingest import (
    RETRY_AFTER_S,
    TURN_WITHIN_S,
    IngestRequest,
    authenticate,
    check_announced,
    outcome_of,
    overworked,
    require_accepted,
    serve,
    store_unavailable,
    too_large,
    work,
)
from fleet.ingest.prometheus import QueueFullError, queue
from fleet.ingest.steps import StepIngest, StepIngestResult
from fleet.models import Token
from fleet.models.problem import ProblemError, problem
from telemetry.ingest import limits, otlp
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.prometheus import WrittenSamples, samples_of, unpack
from telemetry.store.hot import HotStore, hot_store
from telemetry.store.refused import note_refused
from telemetry.write_request import Status

MAX_STEPS_BODY_BYTES = 1_000_000
MAX_STEPS_UNPACKED_BYTES = 16_000_000
JSON, PROTOBUF = "application/json", "application/x-protobuf"
# Step reports, and samples, are unpacked and read one request at a time: each may take several
# times its bytes.
steps_turn, samples_turn = Lock(), Lock()


@csrf_exempt
def ingest_neuron_monitor(request: HttpRequest) -> HttpResponse:
    """Store reports of one node."""
    return _ingest_node(request, alone=False)


@csrf_exempt
def ingest_efa(request: HttpRequest) -> HttpResponse:
    """Store values of one node's EFA devices and driver."""
    return _ingest_node(request, alone=True)


def _ingest_node(request: HttpRequest, *, alone: bool) -> HttpResponse:
    if request.method != "POST":
        return problem(405, "Send the lines by POST.", headers={"Allow": "POST"})
    try:
        call = _request_of(request)
        call.body, call.alone = _read_body(request, settings.INGEST_MAX_BODY_BYTES), alone
        call.arrived_s = time.time()
        serve([call])
        return _json(outcome_of(call))
    except ProblemError as error:
        explain_problem(request, error.without_frames())
        return error.response()


@csrf_exempt
def ingest_steps(request: HttpRequest) -> HttpResponse:
    """Store reports of a training job."""
    if request.method != "POST":
        return problem(405, "Send the lines by POST.", headers={"Allow": "POST"})
    try:
        hot = hot_store()
        with _admitted(request, hot, steps_turn, max_bytes=MAX_STEPS_BODY_BYTES) as call:
            outcome = _store_steps(call, hot).response()
        return _json(require_accepted(outcome))
    except ProblemError as error:
        explain_problem(request, error)
        return error.response()
    except (RedisError, DatabaseError) as error:
        return store_unavailable(error).response()


@contextmanager
def _turn(turn: Lock, token: Token) -> Iterator[None]:
    """Wait until no other request is read, and count the CPU time; raises ProblemError."""
    if not turn.acquire(timeout=TURN_WITHIN_S):
        detail = "More requests arrive than are read. Nothing was stored. Send it again."
        raise ProblemError(503, detail, headers={"Retry-After": str(RETRY_AFTER_S)})
    try:
        # The requests that this one waited for may have taken the rest of the minute.
        if refusal := overworked(token):
            raise refusal
        with work.spend(token.digest):
            yield
    finally:
        turn.release()


@contextmanager
def _admitted(
    request: HttpRequest, hot: HotStore, turn: Lock, *, max_bytes: int
) -> Iterator[IngestRequest]:
    """Yield a request that may send, with its body, once it is its turn; raises ProblemError."""
    call = _request_of(request)
    authenticate([call], hot)
    if call.problem is not None or call.token is None:
        raise call.problem or ProblemError(401, "Send a token.")
    with _turn(turn, call.token):
        try:
            call.body = _read_body(request, max_bytes)
            yield call
        except (ProblemError, RefusedError) as error:
            note_refused(hot, "token", [(call.token.name, 1, str(error))], now_s=time.time())
            raise


@csrf_exempt
def ingest_prometheus(request: HttpRequest) -> HttpResponse:
    """Queue the samples of a remote write; a task assembles them.

    Prometheus drops what is answered with 4xx, and logs the answer; it sends again after 5xx: also
    when it sends too often. Where some samples are rejected, the others are stored.
    """
    try:
        written = _queue_samples(request, _remote_write)
    except ProblemError as error:
        explain_problem(request, error)
        if error.status == 429:
            # Prometheus would drop what is answered with 4xx.
            return problem(503, str(error), headers={"Retry-After": "60"})
        return error.response()
    if written.n_rejected:
        # Prometheus logs the first line of the answer.
        detail = f"Rejected samples: {written.n_rejected:,}. The first one: {written.reason}."
        return problem(400, detail)
    return HttpResponse(status=204)


@csrf_exempt
def ingest_otlp(request: HttpRequest) -> HttpResponse:
    """Queue the data points of an export of metrics; a task assembles them.

    Senders drop what is answered with 4xx except 429, and send again after 429 and 503. Answers
    have the encoding of the request: an ExportMetricsServiceResponse, or a Status.
    """
    accepted = ExportMetricsServiceResponse()
    refusal, headers = None, {}
    try:
        written = _queue_samples(request, _otlp)
        if written.n_rejected:
            accepted.partial_success.rejected_data_points = written.n_rejected
            accepted.partial_success.error_message = f"The first one: {written.reason}."
    except ProblemError as error:
        explain_problem(request, error)
        refusal, headers = error.without_frames(), error.headers
    answer = accepted if refusal is None else Status(message=str(refusal))
    is_json = _content_type(request.headers.get("Content-Type", "")) != PROTOBUF
    return HttpResponse(
        MessageToJson(answer) if is_json else answer.SerializeToString(),
        status=200 if refusal is None else refusal.status,
        headers=headers | {"Content-Type": JSON if is_json else PROTOBUF},
    )


def _queue_samples(
    request: HttpRequest, read: Callable[[IngestRequest], WrittenSamples]
) -> WrittenSamples:
    """Queue the samples that ``read`` finds in a request; raises ProblemError."""
    if request.method != "POST":
        raise ProblemError(405, "Send samples by POST.", headers={"Allow": "POST"})
    try:
        hot = hot_store()
        most = settings.INGEST_MAX_BODY_BYTES
        with _admitted(request, hot, samples_turn, max_bytes=most) as call:
            written = read(call)
        queue(hot, written, arrived_s=time.time())
        if call.token is not None:
            of_token = (call.token.name, written.n_rejected, written.reason)
            note_refused(hot, "token", [of_token], now_s=time.time())
    except RefusedError as error:
        hot.count("ingest_errors")
        detail = f"The {error.field} {error.reason}."
        raise ProblemError(400, detail, field=error.field) from error
    except QueueFullError as error:
        detail = "More samples arrive than are stored. Send them again."
        raise ProblemError(503, detail, headers={"Retry-After": str(RETRY_AFTER_S)}) from error
    except (RedisError, DatabaseError) as error:
        raise store_unavailable(error) from error
    return written


def _remote_write(call: IngestRequest) -> WrittenSamples:
    if call.headers.get("content-encoding", "").strip().lower() != "snappy":
        detail = "Send remote write 1.0: a WriteRequest, compressed as a snappy block."
        raise ProblemError(415, detail, field="Content-Encoding")
    if "v2" in call.headers.get("content-type", ""):
        detail = "Remote write 2.0 is not supported. Leave protobuf_message at its default."
        raise ProblemError(415, detail, field="Content-Type")
    return samples_of(unpack(call.body, max_bytes=settings.INGEST_MAX_UNPACKED_BYTES))


def _otlp(call: IngestRequest) -> WrittenSamples:
    kind = _content_type(call.headers.get("content-type", ""))
    if kind not in {JSON, PROTOBUF}:
        detail = f"Send OTLP as {PROTOBUF} or {JSON}."
        raise ProblemError(415, detail, field="Content-Type")
    body = call.unpacked(max_bytes=settings.INGEST_MAX_UNPACKED_BYTES)
    return otlp.samples_of(otlp.decode(body, is_json=kind == JSON))


def _content_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def _store_steps(call: IngestRequest, hot: HotStore) -> StepIngestResult:
    lines = call.lines(max_bytes=MAX_STEPS_UNPACKED_BYTES)
    if sum(map(limits.count_values, lines)) > limits.MAX_STEP_VALUES:
        detail = f"The body has more than {limits.MAX_STEP_VALUES:,} values. Send fewer lines."
        raise ProblemError(413, detail, field="body", limit_values=limits.MAX_STEP_VALUES)
    intake = step_ingest(settings.REDIS_URL, str(connection.settings_dict["NAME"]))
    sent_s, up_s = call.clocks()
    outcome = intake.deliver(hot, lines, arrived_s=time.time(), sent_s=sent_s, up_s=up_s)
    counts = {
        "ingest_step_reports": outcome.n_accepted,
        "ingest_step_repeated": outcome.n_repeated,
        "ingest_step_lines_refused": outcome.n_refused,
    }
    hot.execute_all(
        ("HINCRBYFLOAT", "service:counters", name, n) for name, n in counts.items() if n
    )
    now_s, refused = time.time(), outcome.refused_of_runs
    note_refused(hot, "run", refused, now_s=now_s)
    if call.token is not None:
        unnamed = [(call.token.name, n, reason) for run, n, reason in refused if not run]
        note_refused(hot, "token", unnamed, now_s=now_s)
    return outcome


@lru_cache(maxsize=4096)
def step_ingest(redis_url: str, database: str) -> StepIngest:
    """Return the state that this process keeps of the runs that report to these stores."""
    return StepIngest(time.monotonic)


def _request_of(request: HttpRequest) -> IngestRequest:
    """Return a request without its body, which is read once the client may send it."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    return IngestRequest(headers, request.GET.get("node"), b"", time.time())


def _read_body(request: HttpRequest, limit: int) -> bytes:
    check_announced(request.META.get("CONTENT_LENGTH"), limit=limit)
    body = request.read(limit + 1)
    if len(body) > limit:
        raise too_large(limit)
    return body


def _json(outcome: dict[str, Any]) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(outcome), content_type="application/json")
