"""What a page with a window tells its template: which stretch it shows, and whether it moves."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest

from fleet.charts.windows import DEFAULT, LENGTHS, WindowError, window_of


def window_context(request: HttpRequest, *, now: datetime) -> dict[str, Any]:
    """Return the window that the address asks for; one that cannot be is told, not obeyed."""
    try:
        window, complaint = window_of(request.GET.dict(), now=now), ""
    except WindowError as error:
        window, complaint = window_of({}, now=now), str(error)
    return {
        "window": window,
        "window_error": complaint,
        "frozen": window.frozen,
        # Points by the second are for the shortest window only; longer ones have their own ids.
        "id_suffix": "" if window.name == DEFAULT else "-long",
        "lengths": list(LENGTHS),
    }
