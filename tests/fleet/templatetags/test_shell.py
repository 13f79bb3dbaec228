"""The frame of every page: where we are, who we are, what we follow."""

from django.contrib.auth.models import User
from django.template import Context, Template
from django.test import RequestFactory


def shown(text: str, path: str = "/", **context: object) -> str:
    """Render a template as a page at some path would."""
    request = RequestFactory().get(path)
    return Template("{% load shell %}" + text).render(Context({"request": request, **context}))


def test_the_page_we_are_on_is_marked_and_so_is_what_lies_above_it() -> None:
    assert 'aria-current="page"' in shown(
        "{% nav_link 'node-list' 'Nodes' 'nodes' %}", "/nodes/x/"
    )
    assert "aria-current" not in shown("{% nav_link 'overview' 'Fleet' 'fleet' %}", "/nodes/")


def test_a_page_that_does_not_exist_is_not_linked() -> None:
    assert shown("{% nav_link 'no-such-page' 'Trials' 'x' %}") == ""


def test_a_page_follows_its_topic() -> None:
    assert shown("{% live_stream 'overview' %}") == ' data-live="overview"'
    assert 'data-live="nodes?state=silent"' in shown("{% live_stream 'nodes' 'state=silent' %}")


def test_a_page_frozen_in_time_follows_nothing() -> None:
    assert shown("{% live_stream 'overview' %}", frozen="12:00 to 12:15") == ""


def test_a_stranger_is_shown_the_way_in_and_back() -> None:
    assert "?next=/nodes/" in shown("{% signed_in %}", "/nodes/")


def test_who_is_signed_in_is_named() -> None:
    html = shown("{% signed_in %}", user=User(username="alice"), csrf_token="x")

    assert "alice" in html
    assert "Sign out" in html
