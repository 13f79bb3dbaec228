"""The API as a whole: its routers, how it says no, and its addresses.

A resource is a router of its own: copy one, name it here, and it is described and guarded too.
"""

from typing import Any

from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, path
from ninja import NinjaAPI, Router
from ninja.errors import HttpError, ValidationError
from ninja.operation import Operation
from redis.exceptions import RedisError

from fleet.api.answers import RETRY_AFTER_S
from fleet.api.v1 import (
    acting,
    alerts,
    annotations,
    budgets,
    compiles,
    likes,
    me,
    money,
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
from fleet.api.v1.coding import PlainRenderer, StrictParser
from fleet.api.v1.description import ABOUT, described
from fleet.api.v1.gate import guarded
from fleet.problem import ProblemError, problem
from fleet.version import VERSION
from telemetry.store.hot import StoreUnavailable

ROUTERS: tuple[tuple[str, Router], ...] = (
    ("/runs", runs.router),
    ("/runs", money.router),
    ("/runs", compiles.of_runs),
    ("/runs", likes.router),
    ("/nodes", nodes.router),
    ("", series.router),
    ("/alerts", alerts.router),
    ("/alerts", acting.router),
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
AWAY = "A store is away; nothing was changed. Ask again."


class Api(NinjaAPI):
    """Ninja's application with a gate before every address."""

    _described: dict[str, Any] | None = None

    def _get_urls(self) -> list[URLResolver | URLPattern]:
        document = path("openapi.json", guarded(self.document, []), name="openapi")
        patterns: list[URLResolver | URLPattern] = [document]
        for bound in self._get_bound_routers():
            # There is one address per operation, though those of one path share a view.
            views = [view for view in bound.path_operations.values() for _ in view.operations]
            for view, pattern in zip(views, bound.urls_paths(bound.prefix), strict=True):
                pattern.callback = guarded(pattern.callback, view.operations)
                patterns.append(pattern)
        return patterns

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Name an operation as its function."""
        return operation.view_func.__name__

    def document(self, request: HttpRequest) -> HttpResponse:
        """Answer with the description of it all (OpenAPI 3.1)."""
        if self._described is None:
            self._described = described(self.get_openapi_schema(path_prefix="api/v1/"))
        return self.create_response(request, self._described, status=200)


def _refuse(request: HttpRequest, error: Any) -> HttpResponse:
    refused: ProblemError = error
    return refused.response()


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


def _absent(request: HttpRequest, error: Any) -> HttpResponse:
    return problem(404, f"Nothing is at {request.path[:200]}.")


def _away(request: HttpRequest, error: Any) -> HttpResponse:
    return problem(503, AWAY, headers={"Retry-After": str(RETRY_AFTER_S)})


api = Api(
    title="trnwatch",
    version=VERSION,
    description=ABOUT,
    renderer=PlainRenderer(),
    parser=StrictParser(),
    docs_url=None,
    openapi_url=None,
    urls_namespace="api",
)
for _kind, _handler in (
    (ProblemError, _refuse),
    (ValidationError, _invalid),
    (HttpError, _unreadable),
    (Http404, _absent),
    (DatabaseError, _away),
    (RedisError, _away),
    (StoreUnavailable, _away),
):
    api.add_exception_handler(_kind, _handler)
for _prefix, _router in ROUTERS:
    api.add_router(_prefix, _router)
urls = api.urls
