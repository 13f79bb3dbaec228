"""Authentication, throttling and HTTP rules of the API, as django-ninja hooks."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import unquote_to_bytes

from django.contrib.auth.models import User
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import conditional_page
from ninja.throttling import BaseThrottle
from ninja.utils import check_csrf
from redis.exceptions import RedisError

from fleet.access.roles import (
    MACHINE_SCOPES,
    SAFE_METHODS,
    SCOPES,
    effective_scopes,
    owner_of,
    reads_anonymously,
    role_of,
)
from fleet.access.throttling import RequestGate
from fleet.access.tokens import CHALLENGE, MACHINE_PREFIX, Maker, TokenError, bearer, check_token
from fleet.api.ingest import check_announced, check_utf8, too_large
from fleet.models import Token
from fleet.models.problem import ProblemError, problem
from telemetry.store.connection import StoreUnavailable
from telemetry.store.hot import hot_store

# The scope of operations that any authenticated caller may use.
ANY_SCOPE = ""
# The limit of a request body, unless an operation has its own.
DEFAULT_BODY_BYTES = 16_384
BODY_LIMIT_KEY = "x-body-limit-bytes"
REMEDY = "Sign in, or send `Authorization: Bearer <token>`."


@dataclass(frozen=True, slots=True)
class Caller:
    """A person, a token or an anonymous reader; timelines record ``name``."""

    kind: str
    name: str
    scopes: frozenset[str]
    user: User | None = None
    token: Token | None = None

    @property
    def key(self) -> str:
        """The key under which requests are counted."""
        if self.token is not None:
            return f"api:{self.token.digest}"
        return f"api:{self.kind}:{self.user.pk if self.user else ''}"

    @property
    def maker(self) -> Maker:
        """The caller as the maker of tokens; scope `admin` may also grant machine scopes."""
        owner = owner_of(self.token) if self.token else self.name
        machines = MACHINE_SCOPES if "admin" in self.scopes else frozenset()
        return Maker(self.name, owner, self.scopes | machines)


class Permission:
    """The ``auth`` of an operation: identifies the caller; checks scope, size and encoding.

    Raises
    ------
    ProblemError
        401 or 403 for callers that may not, 413 for a body that is too large, 400 for a query or
        body that is not UTF-8.
    """

    def __init__(self, scope: str, most_bytes: int = DEFAULT_BODY_BYTES) -> None:
        self.scope = scope
        self.most_bytes = most_bytes

    def __call__(self, request: HttpRequest) -> Caller:
        caller = identify(request)
        if self.scope and self.scope not in caller.scopes:
            raise _forbidden(caller, self.scope)
        check_announced(request.META.get("CONTENT_LENGTH"), limit=self.most_bytes)
        try:
            if len(request.body) > self.most_bytes:
                raise too_large(self.most_bytes)
        except RequestDataTooBig as error:
            raise too_large(self.most_bytes) from error
        check_utf8("query", unquote_to_bytes(request.META.get("QUERY_STRING", "")))
        check_utf8("body", request.body)
        return caller


def needs(scope: str, *, most_bytes: int = DEFAULT_BODY_BYTES) -> dict[str, Any]:
    """Return the arguments of a route: its authentication, and its security in OpenAPI.

    People need a role with the scope; an empty scope is for any authenticated caller.
    """
    scopes = [scope] if scope else []
    limit = {} if most_bytes == DEFAULT_BODY_BYTES else {BODY_LIMIT_KEY: most_bytes}
    return {
        "auth": Permission(scope, most_bytes),
        "openapi_extra": {"security": [{"bearer": scopes}, {"session": scopes}], **limit},
    }


def identify(request: HttpRequest) -> Caller:
    """Return the caller by token, session or (in the demo) as anonymous; raises ProblemError."""
    if "Authorization" in request.headers:
        token = check_token(bearer(request.headers["Authorization"]), "")
        scopes = effective_scopes([token])[token.pk]
        return Caller("token", f"{MACHINE_PREFIX}{token.name}", scopes, token=token)
    if isinstance(request.user, User):
        if request.method not in SAFE_METHODS and check_csrf(request) is not None:
            detail = "Send the session's CSRF token as X-CSRFToken, or a bearer token."
            who = request.user.get_username()
            raise ProblemError(403, detail, who=who, field="X-CSRFToken")
        user = request.user
        return Caller("person", user.get_username(), SCOPES[role_of(user)], user=user)
    if reads_anonymously(request):
        return Caller("anonymous", "", SCOPES["viewer"])
    raise ProblemError(401, REMEDY, headers={"WWW-Authenticate": CHALLENGE})


def _forbidden(caller: Caller, scope: str) -> ProblemError:
    if caller.token is not None:
        reason = f"This needs a token of scope `{scope}`; this one has `{caller.token.scope}`."
        if scope in caller.token.grants:
            reason = (
                f"This needs scope `{scope}`, which the role of {owner_of(caller.token)}, "
                "who made this token, no longer allows."
            )
        return TokenError(403, reason, who=caller.name)
    if caller.user is not None:
        needed = next(role for role, scopes in SCOPES.items() if scope in scopes)
        mine = role_of(caller.user)
        reason = f"This needs the role {needed}; yours is {mine}."
        return ProblemError(403, reason, who=caller.name)
    return ProblemError(401, REMEDY, headers={"WWW-Authenticate": CHALLENGE})


def caller(request: HttpRequest) -> Any:
    return request.auth  # type: ignore[attr-defined]


class CallerThrottle(BaseThrottle):
    """Requests per caller and minute, counted in Redis for all processes.

    ninja's own throttles read and write a cache without a lock, so that requests at the same
    moment pass together. While Redis does not answer, no request is refused: the database can
    still be read.
    """

    def __init__(self) -> None:
        self._gate = RequestGate("API_REQUESTS_PER_MINUTE")

    def allow_request(self, request: HttpRequest) -> bool:
        key = caller(request).key
        try:
            hot = hot_store()
            return self._gate.left(hot, {key: 1}, now_s=time.time())[key] >= 0
        except (RedisError, StoreUnavailable):
            return True

    def wait(self) -> float:
        return 60.0


def check_query(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse unknown and repeated query parameters; operations declare a schema ``query``."""

    @wraps(operation)
    def checked(request: HttpRequest, **values: Any) -> Any:
        known = list(type(values["query"]).model_fields) if "query" in values else []
        for name, given in request.GET.lists():
            if name not in known:
                names = ", ".join(known) or "none"
                detail = f"{name[:40]!r} is not a parameter of this operation. Known: {names}."
                raise ProblemError(400, detail, field=name[:40])
            if len(given) > 1:
                detail = f"{name}: given {len(given)} times. Give it once."
                raise ProblemError(400, detail, field=name)
        return operation(request, **values)

    return checked


def conditional(run: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Add an ETag to responses of GET, answer 304, and forbid caching of other responses."""

    @wraps(run)
    def answered(request: HttpRequest, **values: Any) -> HttpResponseBase:
        response = run(request, **values)
        if request.method == "GET" and response.status_code == 200:
            response["Cache-Control"] = "private, no-cache"
            patch_vary_headers(response, ["Authorization", "Cookie"])
        else:
            response["Cache-Control"] = "no-store"
        return response

    return conditional_page(answered)


def with_all_methods(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Answer HEAD as GET and OPTIONS by the allowed methods; 405 is a problem document."""

    @wraps(view)
    def answered(request: HttpRequest, **values: Any) -> HttpResponseBase:
        method = request.method
        request.method = "GET" if method == "HEAD" else method
        response = view(request, **values)
        request.method = method
        if not isinstance(response, HttpResponseNotAllowed):
            return response
        allowed = {*response["Allow"].split(", "), "OPTIONS"}
        names = ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))
        if method == "OPTIONS":
            options = HttpResponse(status=204, headers={"Allow": names})
            del options["Content-Type"]
            return options
        return problem(
            405, f"{method} is not supported here. Use one of {names}.", headers={"Allow": names}
        )

    return answered
