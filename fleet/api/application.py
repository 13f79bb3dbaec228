"""The API: its routers, error responses, OpenAPI description and URLs."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from ninja import NinjaAPI
from ninja.errors import HttpError, Throttled, ValidationError
from ninja.operation import Operation
from redis.exceptions import RedisError

from fleet.access.audit import explain_problem
from fleet.api.auth import (
    ANY_SCOPE,
    CallerThrottle,
    check_query,
    conditional,
    needs,
    with_all_methods,
)
from fleet.api.fields import PlainRenderer, Problem, StrictParser
from fleet.api.ingest import RETRY_AFTER_S
from fleet.ingest.nodes import TAKES
from fleet.models.problem import ProblemError, problem
from fleet.version import VERSION
from telemetry.errors import FieldError
from telemetry.ingest.columns import ColumnsLine
from telemetry.ingest.schemas import MonitorLine
from telemetry.ingest.step_reports import StepReport
from telemetry.store.connection import StoreUnavailable

ABOUT = """\
Runs, nodes, series, alerts, silences, annotations and tokens of a training fleet; trials and
their schedules, prices, budgets and costs, compiles, preflights and support checks.

Send `Authorization: Bearer <token>` or the session cookie of a signed-in person. With the
cookie, changes also need the CSRF token as `X-CSRFToken`. Every operation names the scope that it
needs. Lists are paginated: follow `next` and `prev`. Responses to GET carry an `ETag`; send it as
`If-None-Match` to get 304 if nothing has changed. Times are ISO 8601 in UTC. Names end in their
units (`_s` seconds, `_bytes`, `_ratio` 0 to 1). Unknown values are null, never 0. Errors are
problem documents (RFC 9457); a refused request changes nothing.
"""
Document = dict[str, Any]
PROBLEM = {"$ref": "#/components/schemas/Problem"}
RESPONSES = {
    "400": "A field or parameter is invalid or unknown; `field` names it.",
    "401": "The caller is not authenticated.",
    "403": "The caller lacks the scope.",
    "404": "Not found.",
    "405": "The method is not supported; `Allow` names those that are.",
    "409": "It conflicts with the current state.",
    "412": "It has changed (`If-Match`).",
    "413": "The body is too large.",
    "415": "The content encoding is not supported; gzip and zstd are.",
    "429": "Too many requests; `Retry-After` says when to try again.",
    "503": "A store is unavailable; `Retry-After` says when to try again.",
}
INGEST = Path(__file__).with_name("ingest.yaml")
LINES = (
    "Lines are JSON, one object each, at most 10,000; `Content-Encoding: gzip` and `zstd` are "
    "supported. `x-line-schema` describes a line."
)
READ_ERRORS = ("400", "401", "403", "404", "405", "429", "503")
WRITE_ERRORS = (*READ_ERRORS, "409", "412", "413")
TAG = {"ETag": {"description": "Entity tag of this body.", "schema": {"type": "string"}}}
# Each resource is a module with a router: prefix, and where the router is.
ROUTERS = (
    ("/runs", "runs.router"),
    ("/runs", "costs.router"),
    ("/runs", "compiles.run_router"),
    ("/nodes", "nodes.router"),
    ("", "series.router"),
    ("/alerts", "alerts.router"),
    ("/silences", "silences.router"),
    ("/annotations", "annotations.router"),
    ("/tokens", "tokens.router"),
    ("/trials", "trials.router"),
    ("/trials", "schedules.router"),
    ("/prices", "prices.router"),
    ("/budgets", "costs.budget_router"),
    ("/compiles", "compiles.router"),
    ("/support-checks", "support.router"),
    ("/preflights", "preflights.router"),
    ("/me", "tokens.me_router"),
)
STORE_UNAVAILABLE = "A store is unavailable; nothing was changed. Try again."


class Api(NinjaAPI):
    """NinjaAPI with operations named after their functions."""

    def get_openapi_operation_id(self, operation: Operation) -> str:
        return operation.view_func.__name__


def _invalid(request: HttpRequest, error: Any) -> HttpResponse:
    """Name each field without the source and argument that ninja puts before it."""
    errors = []
    for each in error.errors:
        source, *path = each["loc"]
        field = ".".join(map(str, path[1:])) or "body" if source == "body" else each["loc"][-1]
        errors.append({"field": str(field), "reason": str(each["msg"])})
    first = errors[0]
    return problem(
        400, f"{first['field']}: {first['reason']}.", field=first["field"], errors=errors
    )


def _refused(request: HttpRequest, error: Any) -> HttpResponse:
    explain_problem(request, error)
    response: HttpResponse = error.response()
    return response


def _store_unavailable(request: HttpRequest, error: Any) -> HttpResponse:
    return problem(503, STORE_UNAVAILABLE, headers={"Retry-After": str(RETRY_AFTER_S)})


TOO_MANY = "More than {:,} requests in a minute. Send fewer, or read larger pages."
# By error: the response.
HANDLERS: Mapping[type[Exception], Callable[[HttpRequest, Any], HttpResponse]] = {
    ProblemError: _refused,
    FieldError: lambda _, error: ProblemError.of(error).response(),
    ValidationError: _invalid,
    Throttled: lambda *_: problem(429, TOO_MANY.format(settings.API_REQUESTS_PER_MINUTE)),
    HttpError: lambda _, error: problem(
        error.status_code, f"The body is not JSON: {error.__cause__ or error}.", field="body"
    ),
    Http404: lambda request, _: problem(404, f"Not found: {request.path[:200]}."),
    DatabaseError: _store_unavailable,
    RedisError: _store_unavailable,
    StoreUnavailable: _store_unavailable,
}
api = Api(
    title="trnwatch",
    version=VERSION,
    description=ABOUT,
    throttle=CallerThrottle(),
    renderer=PlainRenderer(),
    parser=StrictParser(),
    docs_url=None,
    openapi_url=None,
    urls_namespace="api",
)
for _error, _handler in HANDLERS.items():
    api.add_exception_handler(_error, _handler)
api.add_decorator(check_query)
api.add_decorator(conditional, mode="view")
for _prefix, _router in ROUTERS:
    api.add_router(_prefix, f"fleet.api.{_router}")


@api.get("/openapi.json", include_in_schema=False, url_name="openapi", **needs(ANY_SCOPE))
def openapi(request: HttpRequest) -> Document:
    """Describe all operations (OpenAPI 3.1)."""
    return document()


@cache
def document() -> Document:
    return finished_document(api.get_openapi_schema(path_prefix="api/v1/"))


def finished_document(schema: Document) -> Document:
    """Complete the description that ninja derives from types."""
    document = dict(schema)
    for operations in document["paths"].values():
        for method, operation in operations.items():
            _finish(operation, is_read=method == "get")
    components = document["components"]
    (step_line, *_), line_schemas = msgspec.json.schema_components(
        [StepReport, MonitorLine, ColumnsLine], ref_template="#/components/schemas/{name}"
    )
    document["paths"] |= ingest_paths(step_line)
    components["schemas"] |= line_schemas
    components["schemas"]["Problem"] = Problem.model_json_schema(mode="serialization")
    components["responses"] = {
        status: {
            "description": description,
            "content": {"application/problem+json": {"schema": PROBLEM}},
        }
        for status, description in RESPONSES.items()
    }
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "A trnwatch token."},
        "session": {"type": "apiKey", "in": "cookie", "name": "trnwatch_session"},
    }
    document["security"] = [{"bearer": []}, {"session": []}]
    return {name: _without_null_defaults(part) for name, part in document.items()}


def ingest_paths(step_line: Document) -> Document:
    """Read the description of what nodes and jobs send, which ninja does not serve."""
    text = INGEST.read_text(encoding="utf-8")
    for name, value in {"takes": TAKES, "step_line": step_line}.items():
        text = text.replace(f"{{{name}}}", json.dumps(value))
    paths: Document = yaml.safe_load(text)["paths"]
    for path_item in paths.values():
        operation = path_item["post"]
        takes_lines = "application/x-ndjson" in operation["requestBody"]["content"]
        about = (operation["description"], LINES if takes_lines else "", "Needs scope `ingest`.")
        operation["description"] = "\n\n".join(filter(None, about))
    return paths


def _finish(operation: Document, *, is_read: bool) -> None:
    if "security" not in operation:
        name = operation["operationId"]
        raise ImproperlyConfigured(f"{name}: add its scope to the route, as in **needs('read').")
    scopes = operation["security"][0]["bearer"]
    about = operation.get("description", "")
    operation["description"] = f"{about}\n\nNeeds scope `{scopes[0]}`." if scopes else about
    for parameter in operation["parameters"]:
        parameter.setdefault("description", "Name or number.")
        # OpenAPI wants one example of a parameter; ninja gives a list.
        if examples := parameter.pop("examples", []):
            parameter["example"] = examples[0]
        if parameter["in"] == "header":
            parameter["schema"] = {"type": "string"}
    responses = operation["responses"] = {str(k): v for k, v in operation["responses"].items()}
    # Some reads can conflict, too; their description says so.
    conflicts = ("409",) if "409" in about else ()
    for status in (*READ_ERRORS, *conflicts) if is_read else WRITE_ERRORS:
        responses.setdefault(status, {"$ref": f"#/components/responses/{status}"})
    if is_read:
        responses["200"]["headers"] = TAG
        responses["304"] = {"description": "Not changed (`If-None-Match`)."}


def _without_null_defaults(node: Any) -> Any:
    """Drop ``default: null``: an omitted parameter is absent, not null."""
    if isinstance(node, dict):
        return {
            key: _without_null_defaults(value)
            for key, value in node.items()
            if not (key == "default" and value is None)
        }
    return [_without_null_defaults(each) for each in node] if isinstance(node, list) else node


_patterns, _app_name, _namespace = api.urls
urls = (
    [
        path(str(pattern.pattern), with_all_methods(pattern.callback), name=pattern.name)
        for pattern in _patterns
        # Without ninja's documentation page.
        if isinstance(pattern, URLPattern) and pattern.name != "api-root"
    ],
    _app_name,
    _namespace,
)
