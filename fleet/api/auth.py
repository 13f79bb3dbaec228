"""What stands before every address of the API: who calls, how much, and with which parameters."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import unquote_to_bytes

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from ninja.operation import Operation
from ninja.utils import check_csrf
from redis.exceptions import RedisError

from fleet.access.roles import (
    MACHINE_PREFIX,
    MACHINE_SCOPES,
    READING,
    SCOPES,
    owner_of,
    powers,
    reads_anonymously,
    role_of,
)
from fleet.access.throttling import RequestGate
from fleet.access.tokens import CHALLENGE, Maker, TokenError, bearer, check_token
from fleet.api.ingest_service import check_announced, check_utf8, too_large, unavailable
from fleet.api.paging import with_tag
from fleet.models import Token
from fleet.models.problem import ProblemError, problem
from telemetry.store.connection import StoreUnavailable
from telemetry.store.hot import open_store

ANYBODY = ""


# How large a body may be where an operation says nothing else.
USUAL_BYTES = 16_384
MOST_BYTES = "x-body-limit-bytes"


def needs(scope: str, *, most_bytes: int = USUAL_BYTES) -> dict[str, Any]:
    """Return what an operation says of who may call it, for its ``openapi_extra``.

    People need a role that has the scope; an empty scope is anybody who is known. A body may
    have as many bytes as ``most_bytes``, and never more than Django reads.
    """
    scopes = [scope] if scope else []
    limit = {} if most_bytes == USUAL_BYTES else {MOST_BYTES: most_bytes}
    return {"security": [{"bearer": scopes}, {"session": scopes}], **limit}


def scope_of(extra: dict[str, Any] | None) -> str:
    """Return the scope that an operation needs, by its ``openapi_extra``."""
    scopes = (extra or {}).get("security", [{}])[0].get("bearer", [])
    return scopes[0] if scopes else ANYBODY


def limit_of(extra: dict[str, Any] | None) -> int:
    """Return how many bytes the body of an operation may have."""
    return int((extra or {}).get(MOST_BYTES, USUAL_BYTES))


REMEDY = "Sign in, or send `Authorization: Bearer <token>`."


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever calls: ``name`` is who did it, wherever that is kept."""

    kind: str
    name: str
    scopes: frozenset[str]
    user: User | None = None
    token: Token | None = None

    @property
    def key(self) -> str:
        """Return under what name its calls are counted."""
        if self.token is not None:
            return f"api:{self.token.digest}"
        return f"api:{self.kind}:{self.user.pk if self.user else ''}"

    @property
    def maker(self) -> Maker:
        """Return the caller as the maker of tokens; with `admin` it hands on machines' scopes."""
        owner = owner_of(self.token) if self.token else self.name
        machines = MACHINE_SCOPES if "admin" in self.scopes else frozenset()
        return Maker(self.name, owner, self.scopes | machines)


def caller_of(request: HttpRequest) -> Caller:
    """Find out who calls; raises ProblemError where nobody may know."""
    if "Authorization" in request.headers:
        token = check_token(bearer(request.headers["Authorization"]), "")
        scopes = powers([token])[token.pk]
        return Caller("token", f"{MACHINE_PREFIX}{token.name}", scopes, token=token)
    if isinstance(request.user, User):
        if request.method not in READING and check_csrf(request) is not None:
            detail = "Send the session's CSRF token as X-CSRFToken, or a bearer token."
            raise ProblemError(403, detail, field="X-CSRFToken")
        user = request.user
        return Caller("person", user.get_username(), SCOPES[role_of(user)], user=user)
    if reads_anonymously(request):
        return Caller("anonymous", "", SCOPES["viewer"])
    raise ProblemError(401, REMEDY, headers={"WWW-Authenticate": CHALLENGE})


def admit(request: HttpRequest, scope: str, *, gate: RequestGate, most: int) -> Caller:
    """Let in whoever may do ``scope`` (empty: anybody known) and does not call too often."""
    caller = caller_of(request)
    if scope and scope not in caller.scopes:
        raise _refused(caller, scope)
    try:
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        left = gate.left(hot, {caller.key: 1}, now_s=time.time())
    except (RedisError, StoreUnavailable):
        # Without Redis nobody counts; what the database knows can be told all the same.
        return caller
    if left[caller.key] < 0:
        detail = f"More than {most:,} requests in a minute. Ask less often, or for more at once."
        raise ProblemError(429, detail, headers={"Retry-After": "60"})
    return caller


def _refused(caller: Caller, scope: str) -> ProblemError:
    if caller.token is not None:
        reason = f"This needs a token of scope `{scope}`; this one has `{caller.token.scope}`."
        if scope in caller.token.grants:
            reason = (
                f"This needs scope `{scope}`, which the role of {owner_of(caller.token)}, "
                "who made this token, no longer allows."
            )
        return TokenError(403, reason)
    if caller.user is not None:
        needed = next(role for role, scopes in SCOPES.items() if scope in scopes)
        mine = role_of(caller.user)
        return ProblemError(403, f"This needs the role {needed}; yours is {mine}.")
    return ProblemError(401, REMEDY, headers={"WWW-Authenticate": CHALLENGE})


def caller(request: HttpRequest) -> Any:
    """Return who was let in to this request."""
    return request.auth  # type: ignore[attr-defined]


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
