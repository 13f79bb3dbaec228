"""Whether a request comes from somebody we know, by its header alone: asked before its body."""

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

# What anybody may send in a body: forms of people who sign in are far smaller.
ANONYMOUS_BYTES = 65_536


class ClientCheck:
    """Asks the database in a thread of its own, so that the event loop is free to listen."""

    def __init__(self, tokens: TokenCache) -> None:
        """Share the book of tokens that were good a moment ago."""
        self._tokens = tokens
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="identify")

    async def check(self, headers: Mapping[str, str], scope: str = "") -> None:
        """Let through a token that may do ``scope``; with no scope, any token or session.

        Raises
        ------
        ProblemError
            401 or 403 for anybody else, 503 while the database is away.
        """
        header, cookies = headers.get("authorization", ""), headers.get("cookie", "")
        loop = asyncio.get_running_loop()
        if scope or header:
            secret = bearer(header)
            if not self._tokens.trusts(secret, scope):
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

    Django decides later who may do what; it may then also give the session a new key, which must
    not happen here.
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
