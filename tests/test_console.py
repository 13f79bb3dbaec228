"""What a page's console says is an error, but for requests that htmx gave up."""

from tests.console import LEFT, bad_of


def test_a_request_given_up_is_no_error() -> None:
    assert bad_of(["htmx:afterRequest", "htmx:sendAbort", LEFT]) == []
    assert bad_of([LEFT, "htmx:afterRequest", LEFT]) == []


def test_a_request_that_failed_is_one() -> None:
    said = ["htmx:afterRequest", "htmx:sendError"]

    assert bad_of(said) == said
    assert bad_of(["htmx:afterRequest"]) == ["htmx:afterRequest"]


def test_what_comes_between_is_kept() -> None:
    said = ["htmx:afterRequest", "htmx:sendAbort", "boom", "htmx:afterRequest", "htmx:timeout"]

    assert bad_of(said) == said[2:]
