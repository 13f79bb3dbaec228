"""What a page may say on its console: nothing wrong, but for requests that it gave up."""

from collections.abc import Sequence

# What htmx says, one right after the other, when a page is left or a newer request takes over;
# of a page that is gone the second may not be heard any more.
GIVEN_UP = ("htmx:afterRequest", "htmx:sendAbort")
LEFT = "the page was left"


def bad_of(said: Sequence[str]) -> list[str]:
    """Keep what is wrong of all that a console said as an error: a request given up is not.

    The same first words before others (``htmx:sendError``, ``htmx:timeout``) are: a request
    that failed. Chromium may name the element that asked after them, behind a comma.
    """
    bad: list[str] = []
    for text in said:
        before = bad[-1].partition(",")[0] if bad else ""
        if before == GIVEN_UP[0] and text.partition(",")[0] in {GIVEN_UP[1], LEFT}:
            bad.pop()
        elif text != LEFT:
            bad.append(text)
    return bad
