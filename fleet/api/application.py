"""The API as a whole: its routers, how it says no, and its addresses.

A resource is a router of its own: copy one, name it here, and it is described and guarded too.
"""

from functools import cache
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from ninja import NinjaAPI, Router
from ninja.errors import HttpError, Throttled, ValidationError
from ninja.operation import Operation
from redis.exceptions import RedisError

from fleet.api import (
    alerts,
    annotations,
    budgets,
    compiles,
    costs,
    me,
    nodes,
    preflights,
    prices,
    runs,
    schedules,
    series,
    silences,
    support,
    tokens,
    trials,
)
from fleet.api.auth import (
    ANY_SCOPE,
    CallerThrottle,
    check_query,
    conditional,
    needs,
    with_all_methods,
)
from fleet.api.fields import PlainRenderer, Problem, StrictParser
from fleet.api.ingest_schemas import INGEST_PATHS, SCHEMAS
from fleet.api.ingest_service import RETRY_AFTER_S
from fleet.models.problem import ProblemError, problem
from fleet.version import VERSION
from telemetry.errors import FieldError
from telemetry.store.connection import StoreUnavailable

ABOUT = """\
Runs, nodes, series, alerts, silences, annotations and tokens of a fleet that trains; trials and
their schedules, prices, budgets and dollars, compiles, preflights and support checks.

Send `Authorization: Bearer <token>`, or the session cookie of a person who has signed in; with
the cookie, changes need the CSRF token as `X-CSRFToken` too. Every operation says which scope
it needs. Lists come by the page: follow `next` and `prev`. What is read carries an `ETag`; send
it as `If-None-Match` and what has not changed is answered 304. Moments are ISO 8601 in UTC;
names end in their units (`_s` seconds, `_bytes`, `_ratio` 0 to 1). Whatever is unknown is null,
never 0. Refusals are problem documents (RFC 9457), and nothing is kept of what is refused.
"""
Document = dict[str, Any]
PROBLEM = {"$ref": "#/components/schemas/Problem"}
RESPONSES = {
    "400": "A field or parameter cannot be, or is not known; `field` names it.",
    "401": "Nobody knows who asks.",
    "403": "Who asks may not.",
    "404": "There is no such thing.",
    "405": "Not by this method; `Allow` names those that do.",
    "409": "It cannot be done as things stand.",
    "412": "It has changed since (`If-Match`).",
    "413": "The body is too large.",
    "415": "It is not packed as understood: only gzip is.",
    "429": "Too many requests; `Retry-After` says when to ask again.",
    "503": "A store is away; `Retry-After` says when to ask again.",
}
READ_ERRORS = ("400", "401", "403", "404", "405", "429", "503")
WRITE_ERRORS = (*READ_ERRORS, "409", "412", "413")
TAG = {"ETag": {"description": "Tag of exactly this body.", "schema": {"type": "string"}}}


def finished_document(schema: Document) -> Document:
    """Return the whole description, from what ninja derives of types."""
    document = dict(schema)
    for operations in document["paths"].values():
        for method, operation in operations.items():
            _finish(operation, is_read=method == "get")
    document["paths"] |= INGEST_PATHS
    components = document["components"]
    components["schemas"] |= SCHEMAS
    components["schemas"]["Problem"] = Problem.model_json_schema(mode="serialization")
    components["responses"] = {
        status: {
            "description": said,
            "content": {"application/problem+json": {"schema": PROBLEM}},
        }
        for status, said in RESPONSES.items()
    }
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "A token of trnwatch."},
        "session": {"type": "apiKey", "in": "cookie", "name": "trnwatch_session"},
    }
    document["security"] = [{"bearer": []}, {"session": []}]
    return {name: _without_null_defaults(part) for name, part in document.items()}


def _finish(operation: Document, *, is_read: bool) -> None:
    """Add to an operation what it has in common with the others."""
    scopes = operation["security"][0]["bearer"]
    about = operation.get("description", "")
    operation["description"] = f"{about}\n\nNeeds scope `{scopes[0]}`." if scopes else about
    for parameter in operation["parameters"]:
        parameter.setdefault("description", "Which one: its name, or its number.")
        # Of a parameter OpenAPI wants one example, or a table of them; ninja gives a list.
        if examples := parameter.pop("examples", []):
            parameter["example"] = examples[0]
        if parameter["in"] == "header":
            parameter["schema"] = {"type": "string"}
    responses = operation["responses"] = {str(k): v for k, v in operation["responses"].items()}
    # What is read may be impossible as things stand, too: then the operation's own words say so.
    conflicts = ("409",) if "409" in about else ()
    for status in (*READ_ERRORS, *conflicts) if is_read else WRITE_ERRORS:
        responses.setdefault(status, {"$ref": f"#/components/responses/{status}"})
    if is_read:
        responses["200"]["headers"] = TAG
        responses["304"] = {"description": "It has not changed (`If-None-Match`)."}


def _without_null_defaults(node: Any) -> Any:
    """Leave out defaults of null: where a parameter is left out, it is not null but absent."""
    if isinstance(node, dict):
        return {
            key: _without_null_defaults(value)
            for key, value in node.items()
            if not (key == "default" and value is None)
        }
    return [_without_null_defaults(each) for each in node] if isinstance(node, list) else node


ROUTERS: tuple[tuple[str, Router], ...] = (
    ("/runs", runs.router),
    ("/runs", costs.router),
    ("/runs", compiles.run_router),
    ("/nodes", nodes.router),
    ("", series.router),
    ("/alerts", alerts.router),
    ("/silences", silences.router),
    ("/annotations", annotations.router),
    ("/tokens", tokens.router),
    ("/trials", trials.router),
    ("/trials", schedules.router),
    ("/prices", prices.router),
    ("/budgets", budgets.router),
    ("/compiles", compiles.router),
    ("/support-checks", support.router),
    ("/preflights", preflights.router),
    ("/me", me.router),
)
STORE_UNAVAILABLE = "A store is away; nothing was changed. Ask again."


class Api(NinjaAPI):
    """Ninja's application, with operations named after their functions."""

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Return the name of the operation's function."""
        return operation.view_func.__name__


def _invalid(request: HttpRequest, error: Any) -> HttpResponse:
    """Name every field that cannot be."""
    errors = [{"field": _field(each["loc"]), "reason": str(each["msg"])} for each in error.errors]
    first = errors[0]
    return problem(
        400, f"{first['field']}: {first['reason']}.", field=first["field"], errors=errors
    )


def _field(place: tuple[str | int, ...]) -> str:
    """Return a field's name: ninja says where it stood, and in which argument, before it."""
    if place[0] == "body":
        return ".".join(map(str, place[2:])) or "body"
    return str(place[-1])


def _unreadable(request: HttpRequest, error: Any) -> HttpResponse:
    """Say that a body is no JSON."""
    why = f"{error.__cause__}" if error.__cause__ else str(error)
    return problem(error.status_code, f"The body is no JSON: {why}.", field="body")


def _not_found(request: HttpRequest, error: Any) -> HttpResponse:
    return problem(404, f"Nothing is at {request.path[:200]}.")


def _store_unavailable(request: HttpRequest, error: Any) -> HttpResponse:
    return problem(503, STORE_UNAVAILABLE, headers={"Retry-After": str(RETRY_AFTER_S)})


def _problem(request: HttpRequest, error: Any) -> HttpResponse:
    refused: ProblemError = error
    return refused.response()


def _field_error(request: HttpRequest, error: Any) -> HttpResponse:
    return ProblemError.of(error).response()


def _throttled(request: HttpRequest, error: Any) -> HttpResponse:
    limit = settings.API_REQUESTS_PER_MINUTE
    return problem(
        429, f"More than {limit:,} requests in a minute. Ask less often, or for more at once."
    )


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
for _error, _handler in (
    (ProblemError, _problem),
    (FieldError, _field_error),
    (ValidationError, _invalid),
    (Throttled, _throttled),
    (HttpError, _unreadable),
    (Http404, _not_found),
    (DatabaseError, _store_unavailable),
    (RedisError, _store_unavailable),
    (StoreUnavailable, _store_unavailable),
):
    api.add_exception_handler(_error, _handler)
api.add_decorator(check_query)
api.add_decorator(conditional, mode="view")
for _prefix, _router in ROUTERS:
    api.add_router(_prefix, _router)


@api.get("/openapi.json", include_in_schema=False, url_name="openapi", **needs(ANY_SCOPE))
def openapi(request: HttpRequest) -> Document:
    """Return the description of all operations (OpenAPI 3.1)."""
    return document()


@cache
def document() -> Document:
    """Describe the API; it does not change while the process runs."""
    return finished_document(api.get_openapi_schema(path_prefix="api/v1/"))


_patterns, _app_name, _namespace = api.urls
urls = (
    [
        path(str(each.pattern), with_all_methods(each.callback), name=each.name)
        for each in _patterns
        # Without the page of ninja's own documentation.
        if isinstance(each, URLPattern) and each.name != "api-root"
    ],
    _app_name,
    _namespace,
)
