"""Identify a client by the headers of a request, before its body is read."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import DatabaseError, close_old_connections
from django.http import parse_cookie

from fleet.access.tokens import CHALLENGE, TokenCache, bearer
from fleet.api.ingest_service import store_unavailable
from fleet.models.problem import ProblemError

# The largest body of an unidentified client; the sign-in form is far smaller.
ANONYMOUS_BYTES = 65_536


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
        if scope or header:
            secret = bearer(header)
            if not self._tokens.has(secret, scope):
                await loop.run_in_executor(self._thread, _check_token, self._tokens, secret, scope)
            return
        key = parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME, "")
        if not key or not await loop.run_in_executor(self._thread, _is_signed_in, key):
            detail = (
                f"A body above {ANONYMOUS_BYTES:,} bytes is read from known clients only. "
                "Sign in, or send `Authorization: Bearer <token>`."
            )
            raise ProblemError(401, detail, headers={"WWW-Authenticate": CHALLENGE})


def _check_token(tokens: TokenCache, secret: str, scope: str) -> None:
    close_old_connections()
    try:
        tokens.check(secret, scope)
    except DatabaseError as error:
        raise store_unavailable() from error
    finally:
        close_old_connections()


def _is_signed_in(key: str) -> bool:
    """Whether a session belongs to an active user.

    Permissions are checked later by Django, which may also rotate the session key; that must not
    happen here.
    """
    close_old_connections()
    try:
        held = import_module(settings.SESSION_ENGINE).SessionStore(key).get(SESSION_KEY)
        return held is not None and User.objects.filter(pk=held, is_active=True).exists()
    except (ValueError, ValidationError):
        return False
    except DatabaseError as error:
        raise store_unavailable() from error
    finally:
        close_old_connections()
