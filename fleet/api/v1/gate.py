"""What stands before every address of the API: who calls, how much, and with which parameters."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from urllib.parse import unquote_to_bytes

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from ninja.operation import Operation

from fleet.access.throttling import RequestGate
from fleet.api.answers import unavailable
from fleet.api.bodies import check_announced, check_utf8, too_large
from fleet.api.v1.access import limit_of, scope_of
from fleet.api.v1.caching import with_tag
from fleet.api.v1.callers import admit
from fleet.problem import ProblemError, problem

gate = RequestGate("API_REQUESTS_PER_MINUTE")
View = Callable[..., HttpResponseBase]


def guarded(view: View, operations: Sequence[Operation]) -> View:
    """Return a view that lets in only whoever may, and tags what it answers to GET."""
    by_method = {method: each for each in operations for method in each.methods}
    allowed = sorted({*by_method, "OPTIONS"} | ({"GET", "HEAD"} if _is_read(by_method) else set()))

    @csrf_exempt
    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method == "OPTIONS":
            options = HttpResponse(status=204, headers={"Allow": ", ".join(allowed)})
            del options["Content-Type"]
            return options
        if request.method not in allowed:
            detail = f"{request.method} is not understood here; {', '.join(allowed)} are."
            return problem(405, detail, headers={"Allow": ", ".join(allowed)})
        sent, method = request.method, "GET" if request.method == "HEAD" else str(request.method)
        try:
            _let_in(request, by_method.get(method))
        except ProblemError as error:
            return error.response()
        except DatabaseError:
            return unavailable().response()
        request.method = method
        response = view(request, *args, **kwargs)
        request.method = sent
        if method == "GET" and response.status_code == 200 and isinstance(response, HttpResponse):
            return with_tag(request, response)
        response["Cache-Control"] = "no-store"
        return response

    return answered


def _is_read(by_method: dict[str, Operation]) -> bool:
    """Whether an address can be read; the description, which is no operation, can."""
    return not by_method or "GET" in by_method


def _let_in(request: HttpRequest, operation: Operation | None) -> None:
    """Refuse whoever may not, what is too large, and what is asked that nobody knows."""
    extra = operation.openapi_extra if operation else None
    scope, limit = scope_of(extra), limit_of(extra)
    most = settings.API_REQUESTS_PER_MINUTE
    request.auth = admit(request, scope, gate=gate, most=most)  # type: ignore[attr-defined]
    check_announced(request.META.get("CONTENT_LENGTH"), limit=limit)
    try:
        if len(request.body) > limit:
            raise too_large(limit)
    except RequestDataTooBig as error:
        raise too_large(limit) from error
    check_utf8("query", unquote_to_bytes(request.META.get("QUERY_STRING", "")))
    check_utf8("body", request.body)
    known = parameters_of(operation) if operation else []
    for name, values in request.GET.lists():
        if name not in known:
            said = ", ".join(known) or "none"
            detail = f"{name[:40]!r} is no parameter of this; known are: {said}."
            raise ProblemError(400, detail, field=name[:40])
        if len(values) > 1:
            raise ProblemError(400, f"{name}: is there {len(values)} times; once.", field=name)


def parameters_of(operation: Operation) -> list[str]:
    """Return the names of an operation's query parameters."""
    return [
        name
        for model in operation.models
        if model.__ninja_param_source__ == "query"
        for name in getattr(model, "__ninja_flatten_map__", {})
    ]
