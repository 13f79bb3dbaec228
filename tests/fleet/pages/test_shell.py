"""The frame of every page: navigation, user, live connection."""

import pytest
from django.contrib.auth.models import User
from django.template import Context, Template
from django.test import RequestFactory
from pytest_django import Settings

from fleet.models import Alert
from tests.helpers import NOON


def shown(text: str, path: str = "/", **context: object) -> str:
    """Render a template as a page at some path would."""
    request = RequestFactory().get(path)
    return Template("{% load shell %}" + text).render(Context({"request": request, **context}))


def fire(subject: str, **fields: object) -> None:
    """Fire an alert."""
    Alert.objects.create(
        rule="node_silent",
        severity=Alert.Severity.PAGE,
        subject=subject,
        score=1.0,
        onset_at=NOON,
        fired_at=NOON,
        last_seen_at=NOON,
        **fields,
    )


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


def test_an_anonymous_user_is_redirected_to_sign_in_and_back() -> None:
    assert "?next=/nodes/" in shown("{% signed_in %}", "/nodes/")


def test_who_is_signed_in_is_named() -> None:
    html = shown("{% signed_in %}", user=User(username="alice"), csrf_token="x")

    assert "alice" in html
    assert "Sign out" in html


def test_the_menu_is_marked_on_the_pages_it_holds() -> None:
    links = "{% captured as links %}{% nav_link 'node-list' 'Nodes' 'nodes' %}{% endcaptured %}"
    marked = links + "{% if 'aria-current=\"page\"' in links %}marked{% endif %}"

    assert shown(marked, "/nodes/limping/") == "marked"
    assert shown(marked, "/runs/") == ""


@pytest.mark.django_db
def test_every_page_states_how_many_alerts_are_unacknowledged(settings: Settings) -> None:
    settings.ANONYMOUS_READING = True
    link = "{% nav_link 'alert-list' 'Alerts' 'alerts' %}"

    assert 'id="firing-count"></span>' in shown(link)

    fire("node:limping")
    fire("node:steady", acknowledged_at=NOON, acknowledged_by=User.objects.create(username="eve"))

    assert 'aria-label="1 unacknowledged">1</span>' in shown(link)


@pytest.mark.django_db
def test_anyone_who_may_not_read_learns_no_number_and_follows_nothing(settings: Settings) -> None:
    settings.ANONYMOUS_READING = False
    fire("node:limping")

    assert 'id="firing-count"></span>' in shown("{% nav_link 'alert-list' 'Alerts' 'alerts' %}")
    assert shown("{% head_stream %}") == ""


def test_a_page_with_nothing_live_follows_the_clock(settings: Settings) -> None:
    settings.ANONYMOUS_READING = True

    assert shown("{% head_stream %}") == ' data-live="head"'
