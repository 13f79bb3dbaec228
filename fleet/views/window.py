"""What a page with a window tells its template: which stretch it shows, and whether it moves."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest

from fleet.charts.windows import DEFAULT, Window, WindowError, lengths_within, window_of
from fleet.long_term import history_s


def window_context(
    request: HttpRequest, *, now: datetime, ended_at: datetime | None = None
) -> dict[str, Any]:
    """Return the window that the address asks for; one that cannot be is told, not obeyed.

    Of what is over, since ``ended_at``, the last so many minutes are shown: nothing came after.
    """
    end = ended_at or now
    try:
        window, complaint = window_of(request.GET.dict(), now=end), ""
    except WindowError as error:
        window, complaint = window_of({}, now=end), str(error)
    is_over = ended_at is not None and window.is_live
    return {
        "window": Window(window.start, window.end) if is_over else window,
        "length": window.name,
        "window_error": complaint,
        "frozen": window.frozen,
        # Points by the second are for the shortest window only; longer ones have their own ids.
        "id_suffix": "" if window.name == DEFAULT and not is_over else "-long",
        "lengths": lengths_within(history_s()),
    }
