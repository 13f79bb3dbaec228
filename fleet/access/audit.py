"""The audit log: who signed in, was refused, or changed an account or token; a JSON line each."""

import json
import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db import DatabaseError, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

from fleet.access.throttling import network_of
from fleet.models.problem import ProblemError
from telemetry.units import MINUTE_S

log = logging.getLogger("trnwatch.audit")
# Outcomes that clients can cause without end: equal ones of a minute share a line, and so many
# different ones are written per kind. At worst that is some 10 MB a day.
LINES_PER_MINUTE = 20
# Longer parts of a line are cut: accounts have 150 characters at most.
LONGEST_PART = 200
OUTCOMES = {401: "refused", 403: "refused", 429: "throttled"}
# Where a request holds what is known of its refusal: status, who and why.
REFUSAL = "trnwatch.refusal"

# The address of the client whose request is being answered; empty on the command line, where the
# database alone keeps who changed what.
client: ContextVar[str] = ContextVar("client", default="")


@dataclass(slots=True)
class _Minute:
    """Lines of one kind: when their minute began, how often each came, and how many more did."""

    began_s: float
    entries: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)
    n_again: dict[tuple[str, ...], int] = field(default_factory=dict)
    n_others: int = 0


class Journal:
    """Writes lines; equal ones of a minute once, and then how often they came. Thread-safe."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._write, self._monotonic, self._now = write, monotonic, now
        self._lock = Lock()
        self._minutes: dict[tuple[str, str], _Minute] = {}

    def add(self, entry: dict[str, str], *, is_counted: bool = True) -> None:
        """Write an entry: ``who``, ``address``, ``what``, ``outcome``, ``detail``."""
        with self._lock:
            self._end_minutes()
            kind = entry["what"], entry["outcome"]
            key = entry["who"], network_of(entry["address"]), entry["detail"]
            if not is_counted:
                self._line(entry)
                return
            minute = self._minutes.setdefault(kind, _Minute(self._monotonic()))
            if key in minute.entries:
                minute.n_again[key] = minute.n_again.get(key, 0) + 1
            elif len(minute.entries) >= LINES_PER_MINUTE:
                minute.n_others += 1
            else:
                minute.entries[key] = entry
                self._line(entry)

    def flush(self) -> None:
        """Write what was counted in minutes that are over."""
        if self._minutes:
            with self._lock:
                self._end_minutes()

    def _end_minutes(self) -> None:
        now_s = self._monotonic()
        for kind, minute in list(self._minutes.items()):
            if now_s - minute.began_s < MINUTE_S:
                continue
            del self._minutes[kind]
            for key, n_again in minute.n_again.items():
                self._line(minute.entries[key], n_again=n_again)
            if minute.n_others:
                what, outcome = kind
                others = {"who": "", "address": "", "what": what, "outcome": outcome}
                detail = "others in the same minute, not listed"
                self._line(others | {"detail": detail}, n_again=minute.n_others)

    def _line(self, entry: dict[str, str], **more: int) -> None:
        # As ASCII: control characters are escaped, so no field can begin a line.
        at = self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._write(json.dumps({"at": at, **entry, **more}))


journal = Journal(lambda line: log.info("%s", line))


def note(
    what: str,
    outcome: str,
    *,
    who: str,
    detail: str = "",
    address: str | None = None,
    is_counted: bool = False,
) -> None:
    """Add a line, after the open transaction if there is one.

    Parameters
    ----------
    address : the client; by default that of the request being answered
    is_counted : whether clients can cause this without end
    """
    address = client.get() if address is None else address
    if not address:
        return
    entry = {"who": who, "address": address, "what": what, "outcome": outcome, "detail": detail}
    entry = {name: text[:LONGEST_PART] for name, text in entry.items()}
    transaction.on_commit(lambda: journal.add(entry, is_counted=is_counted))


def note_refusal(
    status: int, *, who: str, address: str, request: str, why: str, what: str = "request"
) -> None:
    """Add a line about a refused request, such as ``POST /people/``."""
    entry = {"who": who, "address": address, "what": what, "outcome": OUTCOMES[status]}
    detail = f"{request}: {status} {why}".strip()
    entry = {name: text[:LONGEST_PART] for name, text in (entry | {"detail": detail}).items()}
    journal.add(entry)


def explain(request: HttpRequest, status: int, *, who: str = "", why: str = "") -> None:
    """Keep what is known of a refusal for its line, which the middleware adds."""
    request.META[REFUSAL] = (status, who, why)


def explain_problem(request: HttpRequest, error: ProblemError) -> None:
    explain(request, error.status, who=error.who, why=str(error))


def known_account(name: str) -> str:
    """Return the name of an account; nothing if there is none.

    People type passwords into the field of the name.
    """
    # PostgreSQL refuses to look for text with a NUL.
    return name if "\0" not in name and User.objects.filter(username=name).exists() else ""


class AuditMiddleware(MiddlewareMixin):
    """Adds a line for each refused request; it comes first, to see the answers of the others."""

    def process_request(self, request: HttpRequest) -> None:
        client.set(request.META.get("REMOTE_ADDR", ""))

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        client.set("")
        journal.flush()
        status, who, why = request.META.get(REFUSAL, (response.status_code, "", ""))
        # Who is not signed in is asked to sign in: that is no refusal.
        if status in OUTCOMES and (status != 401 or "Authorization" in request.headers):
            match = request.resolver_match
            note_refusal(
                status,
                who=who or _who(request),
                address=request.META.get("REMOTE_ADDR", ""),
                request=f"{request.method} {request.path}",
                why=why,
                what="sign_in" if match and match.url_name == "sign-in" else "request",
            )
        return response


def _who(request: HttpRequest) -> str:
    """Return the name of the authenticated caller."""
    caller: Any = getattr(request, "auth", None)
    if caller is not None:
        return str(caller.name)
    try:
        return str(getattr(request, "user", AnonymousUser()).get_username())
    except DatabaseError:
        return ""
