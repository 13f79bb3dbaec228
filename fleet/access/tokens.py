"""Bearer tokens at the door: whether a secret is known, lasting, and of the right scope."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import OperationalError
from django.db.models import Q

from fleet.models import Token
from fleet.models.problem import ProblemError
from fleet.models.token import digest
from telemetry.errors import FieldError

SCHEME = "bearer"
CHALLENGE = 'Bearer realm="trnwatch"'
# A token's last use is written down at most this often.
RECORD_USE_EVERY_S = 60.0
# A token that was good is not asked for again so soon; a revoked one closes as late as that.
CACHE_S = 5.0
MAX_CACHED = 1_000
MAX_NAME, MAX_DAYS = 80, 36_500


class TokenError(ProblemError):
    """A door that stays shut: 401 for whoever is not known, 403 for the wrong scope."""

    def __init__(self, status: int, detail: str) -> None:
        """Say no, and how to identify oneself."""
        super().__init__(status, detail, headers={"WWW-Authenticate": CHALLENGE})


def bearer(header: str) -> str:
    """Return the secret of an Authorization header."""
    scheme, _, secret = header.strip().partition(" ")
    if scheme.lower() != SCHEME or not secret.strip():
        raise TokenError(401, "Send `Authorization: Bearer <token>`; create_token makes one.")
    return secret.strip()


def check_token(secret: str, scope: str, *, now: datetime | None = None) -> Token:
    """Return the token a secret belongs to, if it may do ``scope`` now; empty: anything."""
    now = now or datetime.now(UTC)
    token = Token.objects.filter(digest=digest(secret)).first()
    if token is None:
        raise TokenError(401, "The token is not known.")
    if token.revoked_at is not None:
        raise TokenError(401, "The token was revoked.")
    if token.expires_at is not None and token.expires_at <= now:
        raise TokenError(401, f"The token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC.")
    if scope and scope not in token.grants:
        reason = f"This needs a token of scope `{scope}`; this one has scope `{token.scope}`."
        raise TokenError(403, reason)
    _record_use(token, now)
    return token


def _record_use(token: Token, now: datetime) -> None:
    """Write down that a token is in use, once a minute; nobody is refused where that fails."""
    due = now - timedelta(seconds=RECORD_USE_EVERY_S)
    if token.last_used_at is not None and token.last_used_at > due:
        return
    unnoted = Q(last_used_at=None) | Q(last_used_at__lte=due)
    with suppress(OperationalError):
        Token.objects.filter(unnoted, pk=token.pk).update(last_used_at=now)


@dataclass(frozen=True, slots=True)
class Maker:
    """Who makes a token: its name, the person behind it, and the scopes it may hand on."""

    name: str
    owner: str
    scopes: frozenset[str]


# Who can run commands on the machine can do everything anyway.
COMMAND_LINE = Maker("", "", frozenset(Token.Scope.values))


def make_token(
    name: str,
    scope: str,
    *,
    days: int | None = None,
    maker: Maker = COMMAND_LINE,
    now: datetime,
) -> tuple[Token, str]:
    """Make a token that lasts so many days, or for good; its secret is returned this once.

    Raises
    ------
    FieldError
        Where a field cannot be, or the scope is more than the maker may do.
    """
    name = name.strip()
    if not 0 < len(name) <= MAX_NAME:
        raise FieldError("name", f"must have 1 to {MAX_NAME} characters")
    if not name.isprintable():
        raise FieldError("name", "has characters that cannot be printed")
    if scope not in Token.Scope.values:
        raise FieldError("scope", f"must be one of {', '.join(Token.Scope.values)}")
    if scope not in maker.scopes:
        raise FieldError("scope", f"{scope} is more than you may do yourself")
    if days is not None and not 0 < days <= MAX_DAYS:
        raise FieldError("days", f"must be 1 to {MAX_DAYS}, or left out: for good")
    expires_at = None if days is None else now + timedelta(days=days)
    return Token.issue(
        name, scope, now=now, expires_at=expires_at, by=maker.name, owner=maker.owner
    )


def revoke(token: Token, *, by: str, now: datetime) -> bool:
    """Revoke a token for good; False where it was revoked before."""
    held = Token.objects.filter(pk=token.pk, revoked_at=None)
    if not held.update(revoked_at=now, revoked_by=by):
        return False
    token.revoked_at, token.revoked_by = now, by
    return True


class TokenCache:
    """Tokens that were good a moment ago, so that the database is not asked for every report."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Trust nobody yet."""
        self._monotonic = monotonic
        self._cached: dict[tuple[str, str], tuple[float, Token]] = {}

    def check(self, secret: str, scope: str) -> Token:
        """Return the token a secret belongs to, if it may do ``scope``."""
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
        """Whether ``check`` would let a secret through without asking the database."""
        return self._recent(secret, scope) is not None

    def _recent(self, secret: str, scope: str) -> Token | None:
        since_s, token = self._cached.get((digest(secret), scope), (0.0, None))
        return token if self._monotonic() - since_s < CACHE_S else None
