"""What is shown while Redis is away: that it is, and that the page comes back by itself."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.deprecation import MiddlewareMixin

from telemetry.store.hot import StoreUnavailable

AGAIN_S = "5"
WHY = "Redis does not answer. Live figures live there; nothing that was stored for good is lost."


class StoreAwayMiddleware(MiddlewareMixin):
    """Turn a store that cannot be reached into an answer of 503."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Say it as a page, or as JSON to whoever asked for that."""
        if not isinstance(exception, StoreUnavailable):
            return None
        if request.accepts("text/html"):
            response = render(request, "503.html", {"why": WHY}, status=503)
        else:
            body = {"error": {"field": "store", "message": WHY}}
            response = JsonResponse(body, status=503)
        response["Retry-After"] = AGAIN_S
        response["Cache-Control"] = "no-store"
        return response
