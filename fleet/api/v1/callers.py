"""Who calls: a machine by its token, a person by the session cookie, or a reader of the demo."""

import time
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja.utils import check_csrf
from redis.exceptions import RedisError

from fleet.access.rights import (
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
from fleet.models import Token
from fleet.problem import ProblemError
from telemetry.store.hot import StoreUnavailable, open_store

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
