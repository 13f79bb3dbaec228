"""Ingest endpoints in Django for nodes and training jobs, and their OpenAPI description."""

import time
from functools import lru_cache
from typing import Any

import msgspec
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from redis.exceptions import RedisError

from fleet.api.ingest_service import (
    IngestRequest,
    authenticate,
    check_announced,
    outcome_of,
    require_accepted,
    serve,
    store_unavailable,
    too_large,
)
from fleet.ingest.nodes import TAKES
from fleet.ingest.steps import StepIngest, StepIngestResult
from fleet.models.problem import ProblemError, problem
from telemetry.ingest import schemas, step_reports
from telemetry.ingest.columns import ColumnsLine
from telemetry.store.hot import HotStore, open_store

MAX_STEPS_BODY_BYTES = 1_000_000
MAX_STEPS_UNPACKED_BYTES = 16_000_000


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
        return error.response()


@csrf_exempt
def ingest_steps(request: HttpRequest) -> HttpResponse:
    """Store reports of a training job."""
    if request.method != "POST":
        return problem(405, "Send the lines by POST.", headers={"Allow": "POST"})
    try:
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        call = _request_of(request)
        authenticate([call], hot)
        if call.problem is not None:
            raise call.problem
        call.body = _read_body(request, MAX_STEPS_BODY_BYTES)
        return _json(require_accepted(_store_steps(call, hot).response()))
    except ProblemError as error:
        return error.response()
    except (RedisError, DatabaseError) as error:
        return store_unavailable(error).response()


def _store_steps(call: IngestRequest, hot: HotStore) -> StepIngestResult:
    lines = call.lines(max_bytes=MAX_STEPS_UNPACKED_BYTES)
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


# Their description in OpenAPI, from the types that lines are decoded with.

Document = dict[str, Any]
REF = "#/components/schemas/{name}"
(STEP_LINE, PLAIN_LINE, COLUMNS_LINE), SCHEMAS = msgspec.json.schema_components(
    [step_reports.StepReport, schemas.MonitorLine, ColumnsLine], ref_template=REF
)
NODE_LINE = {"anyOf": [PLAIN_LINE, COLUMNS_LINE]}
WHOLE = {"type": "integer", "minimum": 0}
OUTCOME: Document = {
    "type": "object",
    "required": ["accepted", "repeated", "clock_skew_s", "n_refused", "refused"],
    "properties": {
        "node": {"type": ["string", "null"], "description": "Name of the node (of node reports)."},
        "accepted": WHOLE | {"description": "Accepted lines."},
        "repeated": WHOLE | {"description": "Lines that were accepted before; they are ignored."},
        "late": WHOLE | {"description": "Lines too old for second charts (of node reports)."},
        "clock_skew_s": {
            "type": "number",
            "description": "Seconds added to the sender's times; above 0 if its clock is behind.",
        },
        "n_refused": WHOLE | {"description": "Refused lines."},
        "refused": {
            "type": "array",
            "description": "The first refused lines.",
            "items": {
                "type": "object",
                "properties": {
                    "line": WHOLE | {"description": "Number of the line, from 1."},
                    "field": {"type": "string", "description": "The invalid field."},
                    "reason": {"type": "string", "description": "Why it was refused."},
                },
            },
        },
        "takes": {
            "type": "array",
            "description": "Additional line formats that are accepted (of node reports).",
            "items": {"type": "string", "enum": list(TAKES)},
        },
    },
}
NODE: Document = {
    "in": "query",
    "name": "node",
    "description": "Name of the node. Default: the instance that the lines name.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"},
}
LIVE: Document = {
    "in": "query",
    "name": "live",
    "description": "1: lines are accepted as they arrive, until the connection ends.",
    "schema": {"type": "string", "enum": ["0", "1"]},
}
SENT_AT: Document = {
    "in": "header",
    "name": "X-Trnwatch-At",
    "description": "Time of sending by the sender's clock, in Unix seconds; corrects its skew.",
    "schema": {"type": "number"},
}
PREFER_WAIT: Document = {
    "in": "header",
    "name": "Prefer",
    "description": "wait=1: the request may wait up to a second to be stored with others.",
    "schema": {"type": "string", "pattern": r"^wait=\d{1,4}$"},
}
REFUSALS = ("400", "401", "403", "405", "413", "415", "429", "503")


def _ingest_path(
    name: str, summary: str, about: str, line: Document, *parameters: Document
) -> Document:
    lines = {
        "schema": {"type": "string", "description": "A JSON object per line."},
        "x-line-schema": line,
    }
    # A body is read as lines whatever its type; one line is also valid JSON.
    body = {"application/json": {"schema": line}, "application/x-ndjson": lines}
    refused = {status: {"$ref": f"#/components/responses/{status}"} for status in REFUSALS}
    accepted = {
        "description": "Accepted, except for the refused lines.",
        "content": {"application/json": {"schema": OUTCOME}},
    }
    return {
        "post": {
            "operationId": f"ingest_{name}",
            "tags": ["ingest"],
            "summary": summary,
            "description": f"{about}\n\nLines are JSON, one object each, at most 10,000; "
            "`Content-Encoding: gzip` is supported. `x-line-schema` describes a line.\n\n"
            "Needs scope `ingest`.",
            "security": [{"bearer": ["ingest"]}],
            "parameters": list(parameters),
            "requestBody": {"required": True, "content": body},
            "responses": {"200": accepted} | refused,
        }
    }


INGEST_PATHS: Document = {
    "/api/v1/ingest/neuron-monitor": _ingest_path(
        "neuron_monitor",
        "Report a node",
        "Accepts the output of neuron-monitor, plain or in an envelope.",
        NODE_LINE,
        NODE,
        LIVE,
        SENT_AT,
        PREFER_WAIT,
    ),
    "/api/v1/ingest/efa": _ingest_path(
        "efa",
        "Report a node's EFA devices",
        "Accepts EFA counters and driver values, which neuron-monitor does not report.",
        NODE_LINE,
        NODE,
        SENT_AT,
        PREFER_WAIT,
    ),
    "/api/v1/ingest/steps": _ingest_path(
        "steps",
        "Report a job's steps",
        "Accepts reports of a training job: its description, its steps by worker, and its end.",
        STEP_LINE,
        SENT_AT,
    ),
}
