"""Middleware for static files, and for answers while Redis or the database is unavailable."""

import logging

from django.http import FileResponse, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.deprecation import MiddlewareMixin

from fleet.access.throttling import RateLimiter
from fleet.models.problem import problem
from fleet.ops import outages
from telemetry.store.connection import StoreUnavailable


class WholeFilesMiddleware(MiddlewareMixin):
    """Send static files in one piece: WhiteNoise streams them, and ours are small."""

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        if not isinstance(response, FileResponse):
            return response
        whole = b"".join(response)
        response.close()
        headers = {**response.headers, "Content-Length": str(len(whole))}
        return HttpResponse(whole, status=response.status_code, headers=headers)


RETRY_AFTER_S = "5"
REDIS_UNAVAILABLE = "Redis is not responding. Live data is unavailable; stored data is not lost."
DATABASE_UNAVAILABLE = "The database is not responding. Stored data is not lost."
DATABASE_DAMAGED = (
    "The database file is damaged. The server log names the file and the steps to restore it."
)

log = logging.getLogger(__name__)
log_limiter = RateLimiter(every_s=10.0)


class StoreAwayMiddleware(MiddlewareMixin):
    """Answer 503 while Redis or the database is unavailable."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, StoreUnavailable):
            if request.accepts("text/html"):
                return _unavailable(
                    render(request, "503.html", {"reason": REDIS_UNAVAILABLE}, status=503)
                )
            return _unavailable(_as_json(REDIS_UNAVAILABLE))
        if outages.is_outage(exception):
            return database_away(request, exception)
        return None


def database_away(request: HttpRequest, error: BaseException) -> HttpResponse:
    """Answer 503 without using the database."""
    if log_limiter.is_due():
        log.error("%s", outages.database_advice(error))
    reason = DATABASE_DAMAGED if outages.is_damage(error) else DATABASE_UNAVAILABLE
    if request.path.startswith("/api/"):
        return _unavailable(problem(503, reason))
    if not request.accepts("text/html"):
        return _unavailable(_as_json(reason))
    return _unavailable(
        HttpResponse(render_to_string("database_away.html", {"reason": reason}), status=503)
    )


def _as_json(reason: str) -> HttpResponse:
    return JsonResponse({"error": {"field": "store", "message": reason}}, status=503)


def _unavailable(response: HttpResponse) -> HttpResponse:
    """Add headers: retry soon, do not cache."""
    response["Retry-After"] = RETRY_AFTER_S
    response["Cache-Control"] = "no-store"
    return response
