"""Who may send large bodies: clients with a token or a session, checked outside Django."""

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import DatabaseError, close_old_connections
from django.http import parse_cookie

from fleet.access.tokens import CHALLENGE, TokenCache, bearer
from fleet.api.ingest import check_sender, store_unavailable
from fleet.models.problem import ProblemError

# The largest body of an unidentified client; the sign-in form is far smaller.
ANONYMOUS_BYTES = 65_536


@contextmanager
def own_connection() -> Iterator[None]:
    """Use the database in a thread of ours, which has its own connection."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


class ClientCheck:
    """Checks tokens and sessions; queries run in one thread, so that the event loop stays free."""

    def __init__(self, tokens: TokenCache) -> None:
        self._tokens = tokens
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="identify")

    async def check(self, headers: Mapping[str, str], scope: str = "") -> None:
        """Accept a token with ``scope``; without a scope, any token or session.

        Raises
        ------
        ProblemError
            401 or 403 for other clients, 503 while the database is unavailable.
        """
        header, cookies = headers.get("authorization", ""), headers.get("cookie", "")
        loop = asyncio.get_running_loop()
        try:
            if scope or header:
                secret = bearer(header)
                if not self._tokens.has(secret, scope):
                    check = own_connection()(check_sender if scope else TokenCache.check)
                    await loop.run_in_executor(self._thread, check, self._tokens, secret, scope)
                return
            key = parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME, "")
            if bool(key) and await loop.run_in_executor(self._thread, _is_signed_in, key):
                return
        except DatabaseError as error:
            raise store_unavailable(error) from error
        detail = (
            f"Only authenticated clients may send more than {ANONYMOUS_BYTES:,} bytes. "
            "Sign in, or send `Authorization: Bearer <token>`."
        )
        raise ProblemError(401, detail, headers={"WWW-Authenticate": CHALLENGE})


@own_connection()
def _is_signed_in(key: str) -> bool:
    """Whether a session belongs to an active user; unlike Django, never rotates its key."""
    try:
        user_id = import_module(settings.SESSION_ENGINE).SessionStore(key).get(SESSION_KEY)
        return user_id is not None and User.objects.filter(pk=user_id, is_active=True).exists()
    except (ValueError, ValidationError):
        return False
