"""Bearer tokens at the door: whether a secret is known, lasting, and of the right scope."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from fleet.models import Token
from fleet.models.token import digest
from fleet.problem import ProblemError

SCHEME = "bearer"
CHALLENGE = 'Bearer realm="trnwatch"'
# A token's last use is written down at most this often.
NOTE_USE_EVERY_S = 60.0
# A token that was good is not asked for again so soon; a revoked one closes as late as that.
TRUST_S = 5.0
MAX_TRUSTED = 1_000


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
    """Return the token a secret belongs to, if it may do ``scope`` now."""
    now = now or datetime.now(UTC)
    token = Token.objects.filter(digest=digest(secret)).first()
    if token is None:
        raise TokenError(401, "The token is not known.")
    if token.revoked_at is not None:
        raise TokenError(401, "The token was revoked.")
    if token.expires_at is not None and token.expires_at <= now:
        raise TokenError(401, f"The token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC.")
    if token.scope != scope:
        reason = f"This needs a token of scope `{scope}`; this one has scope `{token.scope}`."
        raise TokenError(403, reason)
    if _is_due(token, now):
        Token.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def _is_due(token: Token, now: datetime) -> bool:
    """Whether the use of a token should be written down again."""
    if token.last_used_at is None:
        return True
    return (now - token.last_used_at).total_seconds() > NOTE_USE_EVERY_S


class TokenBook:
    """Tokens that were good a moment ago, so that the database is not asked for every report."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Trust nobody yet."""
        self._monotonic = monotonic
        self._trusted: dict[tuple[str, str], tuple[float, Token]] = {}

    def check(self, secret: str, scope: str) -> Token:
        """Return the token a secret belongs to, if it may do ``scope``."""
        now_s = self._monotonic()
        key = (digest(secret), scope)
        since_s, token = self._trusted.get(key, (0.0, None))
        if token is not None and now_s - since_s < TRUST_S:
            return token
        self._trusted.pop(key, None)
        token = check_token(secret, scope)
        if len(self._trusted) >= MAX_TRUSTED:
            self._trusted.clear()
        self._trusted[key] = (now_s, token)
        return token
