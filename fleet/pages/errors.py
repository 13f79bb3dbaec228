"""What is shown when something went wrong; the API says it as a problem document."""

import sys

from django.core.exceptions import RequestDataTooBig
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from fleet.models.problem import problem
from fleet.ops import outages
from fleet.pages.middleware import database_away

TOO_MUCH = "The form holds more text than a page takes; where there is a choice, give a file."
FORGED = "The form was too old, or came from elsewhere. Reload the page and try again."


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a request that makes no sense."""
    if isinstance(exception, RequestDataTooBig):
        return _say(request, 400, TOO_MUCH)
    return _say(request, 400, "The address or its values are not understood.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer whoever lacks the role for it."""
    return _say(request, 403, str(exception) or "This is not yours to do.")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Answer a form that did not come from our own page."""
    return _say(request, 403, FORGED)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer for what does not exist."""
    return _say(request, 404, f"Nothing is at {request.path[:200]}.")


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer after a failure of our own; asks neither the database nor Redis.

    Sessions and access ask the database before any view does: if it is away, their error arrives
    here, as the one that is being handled.
    """
    error = sys.exc_info()[1]
    if error is not None and outages.is_outage(error):
        return database_away(request, error)
    if request.path.startswith("/api/"):
        return problem(500, "trnwatch failed. The error is in its log.")
    return HttpResponse(render_to_string("500.html"), status=500)


def _say(request: HttpRequest, status: int, detail: str) -> HttpResponse:
    """Show the page of an error, or send it as a document."""
    if request.path.startswith("/api/"):
        return problem(status, detail)
    # An async view's error is shown by a thread that no request is finished in: what its
    # connection to the database needs at the beginning and the end of one is done here.
    _let_go()
    try:
        return render(request, f"{status}.html", {"detail": detail}, status=status)
    finally:
        _let_go()


def _let_go() -> None:
    """Close this thread's connections that are broken or old, but none amid a transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
