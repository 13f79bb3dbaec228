"""Bearer tokens: create, check, cache and revoke them."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import OperationalError
from django.db.models import Q

from fleet.access import audit
from fleet.models import Token
from fleet.models.problem import ProblemError
from fleet.models.token import digest
from telemetry.errors import FieldError

SCHEME = "bearer"
CHALLENGE = 'Bearer realm="trnwatch"'
# Prefix of a token's name on timelines; user names have no spaces.
MACHINE_PREFIX = "token "
# The last use of a token is stored at most this often.
RECORD_USE_EVERY_S = 60.0
# A valid token is not checked again for so long; a revoked one works for so long.
CACHE_S = 5.0
MAX_CACHED = 1_000
MAX_NAME, MAX_DAYS = 80, 36_500


class TokenError(ProblemError):
    """A refused token: 401 if it is unknown or invalid, 403 if it has the wrong scope."""

    def __init__(self, status: int, detail: str, *, who: str = "") -> None:
        super().__init__(status, detail, headers={"WWW-Authenticate": CHALLENGE}, who=who)


def bearer(header: str) -> str:
    scheme, _, secret = header.strip().partition(" ")
    if scheme.lower() != SCHEME or not secret.strip():
        raise TokenError(401, "Send `Authorization: Bearer <token>`; create_token makes one.")
    return secret.strip()


def check_token(secret: str, scope: str, *, now: datetime | None = None) -> Token:
    """Return the token of a secret if it is valid and grants ``scope`` (empty: any scope)."""
    now = now or datetime.now(UTC)
    token = Token.objects.filter(digest=digest(secret)).first()
    if token is None:
        raise TokenError(401, "The token is not known.")
    who = f"{MACHINE_PREFIX}{token.name}"
    if token.revoked_at is not None:
        raise TokenError(401, "The token was revoked.", who=who)
    if token.expires_at is not None and token.expires_at <= now:
        reason = f"The token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC."
        raise TokenError(401, reason, who=who)
    if scope and scope not in token.grants:
        reason = f"This needs a token of scope `{scope}`; this one has scope `{token.scope}`."
        raise TokenError(403, reason, who=who)
    due = now - timedelta(seconds=RECORD_USE_EVERY_S)
    if token.last_used_at is None or token.last_used_at <= due:
        unnoted = Q(last_used_at=None) | Q(last_used_at__lte=due)
        # A token stays valid where its use cannot be recorded.
        with suppress(OperationalError):
            Token.objects.filter(unnoted, pk=token.pk).update(last_used_at=now)
    return token


@dataclass(frozen=True, slots=True)
class Maker:
    name: str
    owner: str
    scopes: frozenset[str]


# Users who can run commands on the machine have every right.
COMMAND_LINE = Maker("", "", frozenset(Token.Scope.values))


def make_token(
    name: str, scope: str, *, days: int | None = None, maker: Maker = COMMAND_LINE, now: datetime
) -> tuple[Token, str]:
    """Create a token that expires after ``days`` (None: never); return it and its secret.

    Raises FieldError if a field is invalid, or the maker may not grant the scope.
    """
    name = name.strip()
    if not 0 < len(name) <= MAX_NAME:
        raise FieldError("name", f"must have 1 to {MAX_NAME} characters")
    if not name.isprintable():
        raise FieldError("name", "has characters that cannot be printed")
    if scope not in Token.Scope.values:
        raise FieldError("scope", f"must be one of {', '.join(Token.Scope.values)}")
    if scope not in maker.scopes:
        raise FieldError("scope", f"you may not grant {scope}")
    if days is not None and not 0 < days <= MAX_DAYS:
        raise FieldError("days", f"must be 1 to {MAX_DAYS}, or empty for no expiry")
    expires_at = None if days is None else now + timedelta(days=days)
    token, secret = Token.issue(
        name, scope, now=now, expires_at=expires_at, by=maker.name, owner=maker.owner
    )
    until = f"until {expires_at:%Y-%m-%d}" if expires_at else "without expiry"
    audit.note("token_create", "ok", who=maker.name, detail=f"{token}, number {token.pk}, {until}")
    return token, secret


def revoke(token: Token, *, by: str, now: datetime) -> bool:
    """Revoke a token permanently; return False if it was already revoked."""
    valid = Token.objects.filter(pk=token.pk, revoked_at=None)
    if not valid.update(revoked_at=now, revoked_by=by):
        return False
    token.revoked_at, token.revoked_by = now, by
    audit.note("token_revoke", "ok", who=by, detail=f"{token}, number {token.pk}")
    return True


class TokenCache:
    """Recently valid tokens, so that not every report needs a query."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._cached: dict[tuple[str, str], tuple[float, Token]] = {}

    def check(self, secret: str, scope: str) -> Token:
        if (token := self._recent(secret, scope)) is not None:
            return token
        now_s, key = self._monotonic(), (digest(secret), scope)
        self._cached.pop(key, None)
        token = check_token(secret, scope)
        if len(self._cached) >= MAX_CACHED:
            self._cached.clear()
        self._cached[key] = (now_s, token)
        return token

    def has(self, secret: str, scope: str) -> bool:
        """Whether ``check`` would accept a secret without a query."""
        return self._recent(secret, scope) is not None

    def _recent(self, secret: str, scope: str) -> Token | None:
        since_s, token = self._cached.get((digest(secret), scope), (0.0, None))
        return token if self._monotonic() - since_s < CACHE_S else None
