"""Console errors are reported, except requests that htmx aborted."""

from tests.console import LEFT, real_errors


def test_an_aborted_request_is_no_error() -> None:
    assert real_errors(["htmx:afterRequest", "htmx:sendAbort", LEFT]) == []
    assert real_errors([LEFT, "htmx:afterRequest", LEFT]) == []


def test_a_failed_request_is_an_error() -> None:
    logged = ["htmx:afterRequest", "htmx:sendError"]

    assert real_errors(logged) == logged
    assert real_errors(["htmx:afterRequest"]) == ["htmx:afterRequest"]


def test_what_comes_between_is_kept() -> None:
    logged = ["htmx:afterRequest", "htmx:sendAbort", "boom", "htmx:afterRequest", "htmx:timeout"]

    assert real_errors(logged) == logged[2:]
