"""What is shown while Redis or the database is away; the page comes back by itself."""

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
    """Send files in one piece: WhiteNoise reads them bit by bit; ours are small enough."""

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        """Replace a file that would be streamed by its content."""
        if not isinstance(response, FileResponse):
            return response
        whole = b"".join(response)
        response.close()
        headers = {**response.headers, "Content-Length": str(len(whole))}
        return HttpResponse(whole, status=response.status_code, headers=headers)


AGAIN_S = "5"
WHY = "Redis does not answer. Live figures live there; nothing that was stored for good is lost."
WHY_DATABASE = "The database does not answer. Nothing that was stored is lost."
WHY_DAMAGED = "The database file is damaged. The log of trnwatch names it and says what to do."

log = logging.getLogger(__name__)
complaints = RateLimiter(every_s=10.0)


class StoreAwayMiddleware(MiddlewareMixin):
    """Turn a store that cannot be reached into an answer of 503."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Say it as a page, or as JSON to whoever asked for that."""
        if isinstance(exception, StoreUnavailable):
            if request.accepts("text/html"):
                return _later(render(request, "503.html", {"why": WHY}, status=503))
            return _later(_as_json(WHY))
        if outages.is_outage(exception):
            return database_away(request, exception)
        return None


def database_away(request: HttpRequest, error: BaseException) -> HttpResponse:
    """Answer while the database is away, without asking it for anything."""
    if complaints.is_due():
        log.error("%s", outages.database_advice(error))
    why = WHY_DAMAGED if outages.is_damage(error) else WHY_DATABASE
    if request.path.startswith("/api/"):
        return _later(problem(503, why))
    if not request.accepts("text/html"):
        return _later(_as_json(why))
    return _later(HttpResponse(render_to_string("database_away.html", {"why": why}), status=503))


def _as_json(why: str) -> HttpResponse:
    return JsonResponse({"error": {"field": "store", "message": why}}, status=503)


def _later(response: HttpResponse) -> HttpResponse:
    """Ask whoever gets this answer to come again, and nobody to keep it."""
    response["Retry-After"] = AGAIN_S
    response["Cache-Control"] = "no-store"
    return response
