"""Error pages; for API paths the same errors as problem documents."""

import sys

from django.core.exceptions import RequestDataTooBig
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from fleet.models.problem import problem
from fleet.ops import outages
from fleet.pages.middleware import database_away

TOO_MUCH = "The form contains too much text. Upload a file instead if the form allows it."
FORGED = "The form has expired or was sent from another site. Reload the page and try again."


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, RequestDataTooBig):
        return _error_page(request, 400, TOO_MUCH)
    return _error_page(request, 400, "The address or its parameters are not valid.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _error_page(request, 403, str(exception) or "Your role does not allow this.")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _error_page(request, 403, FORGED)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _error_page(request, 404, f"There is no page at {request.path[:200]}.")


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer an unhandled exception without using the database or Redis.

    Session and access middleware query the database before any view. If it is unavailable, their
    error arrives here as the current exception.
    """
    error = sys.exc_info()[1]
    if error is not None and outages.is_outage(error):
        return database_away(request, error)
    if request.path.startswith("/api/"):
        return problem(500, "Internal error. The cause is in the server log.")
    return HttpResponse(render_to_string("500.html"), status=500)


def _error_page(request: HttpRequest, status: int, detail: str) -> HttpResponse:
    if request.path.startswith("/api/"):
        return problem(status, detail)
    # Errors of async views are rendered in a thread without request signals, so its database
    # connections are checked here before and after.
    _close_old_connections()
    try:
        return render(request, f"{status}.html", {"detail": detail}, status=status)
    finally:
        _close_old_connections()


def _close_old_connections() -> None:
    """Close broken or expired connections of this thread that are not in a transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
