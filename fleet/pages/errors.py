"""Error pages, for API paths as problem documents; middleware for outages."""

import logging
import sys

from django.core.exceptions import RequestDataTooBig
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.deprecation import MiddlewareMixin

from fleet.access.audit import explain
from fleet.access.roles import SAFE_METHODS
from fleet.access.throttling import RateLimiter
from fleet.models.problem import problem
from fleet.ops import outages
from telemetry.store.connection import StoreUnavailable

RETRY_AFTER_S = 5
REDIS_UNAVAILABLE = "Redis is not responding. Live data is unavailable; stored data is not lost."
DATABASE_UNAVAILABLE = (
    "The database is not responding. Stored data is not lost. The server log names the cause."
)
DISK_FULL = "The disk of the database is full. Stored data is not lost. Free some space."
DATABASE_DAMAGED = (
    "The database file is damaged. The server log names the file and the steps to restore it."
)

log = logging.getLogger(__name__)
log_limiter = RateLimiter(every_s=10.0)
TOO_MUCH = "The form contains too much text. Upload a file instead if the form allows it."
FORGED = "The form has expired or was sent from another site. Go back, reload and try again."
ONLY_FORMS = "This address only receives forms. Open the page that contains the form."
TITLES = {
    400: "Bad request",
    403: "Permission denied",
    404: "Page not found",
    405: "Method not allowed",
}


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, RequestDataTooBig):
        return _error_page(request, 400, TOO_MUCH)
    return _error_page(request, 400, "The address or its parameters are not valid.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    reason = str(exception) or "Your role does not allow this."
    explain(request, 403, why=reason)
    return _error_page(request, 403, reason)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    explain(request, 403, why=f"CSRF: {reason}")
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
        return database_unavailable(request, error)
    if request.path.startswith("/api/"):
        return problem(500, "Internal error. The cause is in the server log.")
    detail = (
        "trnwatch could not render this page. Monitoring and alerts continue. "
        "The cause is in the server log."
    )
    return _without_stores("Internal error", 500, detail)


def _error_page(request: HttpRequest, status: int, detail: str) -> HttpResponse:
    if request.path.startswith("/api/"):
        return problem(status, detail)
    # After sign-in, return to the page whose form was refused: the form's address shows nothing.
    is_form = request.method not in SAFE_METHODS
    back = request.headers.get("Referer", "/") if is_form else request.get_full_path()
    context = {"title": TITLES[status], "status": status, "detail": detail, "back": back}
    # Errors of async views are rendered in a thread without request signals, so its database
    # connections are checked here before and after.
    _close_old_connections()
    try:
        return render(request, "error.html", context, status=status)
    finally:
        _close_old_connections()


def _close_old_connections() -> None:
    """Close broken or expired connections of this thread that are not in a transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


class ErrorPageMiddleware(MiddlewareMixin):
    """Answer 503 while Redis or the database is unavailable, and 405 with a page."""

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        if not isinstance(response, HttpResponseNotAllowed) or not request.accepts("text/html"):
            return response
        page = _error_page(request, 405, ONLY_FORMS)
        page["Allow"] = response["Allow"]
        return page

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, StoreUnavailable):
            if request.accepts("text/html"):
                context = {
                    "title": "Redis unavailable",
                    "status": 503,
                    "detail": REDIS_UNAVAILABLE,
                    "reloads": RETRY_AFTER_S,
                }
                return _unavailable(render(request, "error.html", context, status=503))
            return _unavailable(_as_json(REDIS_UNAVAILABLE))
        if outages.is_outage(exception):
            return database_unavailable(request, exception)
        return None


def database_unavailable(request: HttpRequest, error: BaseException) -> HttpResponse:
    """Answer 503 without using the database."""
    if log_limiter.is_due():
        log.error("%s", outages.database_advice(error))
    reason = DATABASE_UNAVAILABLE
    if outages.is_damage(error):
        reason = DATABASE_DAMAGED
    elif outages.is_disk_full(error):
        reason = DISK_FULL
    if request.path.startswith("/api/"):
        return _unavailable(problem(503, reason))
    if not request.accepts("text/html"):
        return _unavailable(_as_json(reason))
    return _unavailable(_without_stores("Database unavailable", 503, reason))


def _without_stores(title: str, status: int, detail: str) -> HttpResponse:
    context = {"title": title, "status": status, "detail": detail, "reloads": status == 503}
    return HttpResponse(render_to_string("error_without_stores.html", context), status=status)


def _as_json(reason: str) -> HttpResponse:
    return JsonResponse({"error": {"field": "store", "message": reason}}, status=503)


def _unavailable(response: HttpResponse) -> HttpResponse:
    """Add headers: retry soon, do not cache."""
    response["Retry-After"] = str(RETRY_AFTER_S)
    response["Cache-Control"] = "no-store"
    return response
