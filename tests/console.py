"""Errors on a browser console, without requests that htmx aborted."""

from collections.abc import Sequence

# htmx logs both when a page is left or a newer request replaces one; a page that is gone may not
# log the second.
ABORTED = ("htmx:afterRequest", "htmx:sendAbort")
LEFT = "the page was left"


def real_errors(logged: Sequence[str]) -> list[str]:
    """Drop the errors of aborted requests.

    The first message before another one (``htmx:sendError``, ``htmx:timeout``) is a request that
    failed. Chromium may append the requesting element, after a comma.
    """
    errors: list[str] = []
    for text in logged:
        before = errors[-1].partition(",")[0] if errors else ""
        if before == ABORTED[0] and text.partition(",")[0] in {ABORTED[1], LEFT}:
            errors.pop()
        elif text != LEFT:
            errors.append(text)
    return errors
