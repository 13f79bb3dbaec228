"""The notifications page: first steps, failures, routes."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Alert, Delivery, Receiver, Route, SenderHeartbeat
from tests.fleet.pages.deliveries import admin, dead, delivery, hook
from tests.helpers import just_now

Page = Callable[..., str]
HERE = "/notifications/"
__all__ = ["admin", "dead", "hook"]


def test_it_shows_how_to_begin(page: Page, db: None) -> None:
    text = page(HERE)

    assert "No receiver yet" in text
    assert "This needs an administrator." in text


def test_an_administrator_begins_with_any_kind(page: Page, admin: User) -> None:
    text = page(HERE)

    for kind in ("webhook", "slack", "pagerduty", "alertmanager", "email"):
        assert f"/notifications/receivers/new/?kind={kind}" in text


def test_what_was_not_delivered_comes_first(page: Page, dead: Delivery) -> None:
    text = page(HERE)

    assert "Not delivered" in text
    assert "404: no_service" in text
    assert text.index("Not delivered") < text.index("Receivers")


@pytest.mark.parametrize("path", ["/", "/nodes/", "/alerts/"])
def test_every_page_reports_it(page: Page, dead: Delivery, path: str) -> None:
    assert "1 notification could not be delivered" in page(path)


def test_no_one_outside_is_notified(client: Client, dead: Delivery) -> None:
    text = client.get("/sign-in/", headers={"X-Forwarded-For": "192.0.2.1"}).text

    assert "could not be delivered" not in text


def test_every_page_reports_when_no_one_sends(page: Page, hook: Receiver, alert: Alert) -> None:
    delivery(hook, alert, next_try_at=just_now() - timedelta(minutes=2))

    assert "no sender is running" in page("/")


def test_a_sender_that_was_heard_of_is_named_as_running(page: Page, hook: Receiver) -> None:
    assert "sender not running" in page(HERE)
    now = just_now()
    SenderHeartbeat.objects.create(name="a", started_at=now, seen_at=now)

    assert "sender running" in page(HERE)


def test_secrets_and_paths_of_addresses_are_never_shown(
    page: Page, hook: Receiver, admin: User
) -> None:
    text = page(HERE)

    assert "http://127.0.0.1:1/…" in text
    assert "hush" not in text
    assert "sesame" not in text


def test_a_stored_service_that_is_no_longer_sent_to_is_reported(
    page: Page, hook: Receiver
) -> None:
    hook.kind, hook.target = "apprise", "mailto://u:T0PSECRET@gmail.com?smtp=127.0.0.1"
    hook.save()
    text = page(HERE)
    assert "Nothing is sent to it, because its address is not an address of" in text
    assert "T0PSECRET" not in text


def test_a_route_states_what_it_takes(page: Page, hook: Receiver, alert: Alert) -> None:
    Route.objects.create(name="nodes", matchers="rule=node_silent")
    text = page(HERE)

    assert "matches 0 of the alerts" in text
    assert "matches 1 of the alerts" in text
    assert "no receiver" in text


def test_what_no_route_means_is_reported(page: Page, hook: Receiver, alert: Alert) -> None:
    Route.objects.update(is_default=False, matchers="rule=node_silent")

    assert "no route matches" in page(HERE)


def test_a_route_that_cannot_be_read_is_reported(page: Page, hook: Receiver) -> None:
    Route.objects.update(is_default=False, matchers="colour=blue")

    assert "It matches every alert, because" in page(HERE)


def test_a_viewer_sees_no_buttons_of_administrators(
    page: Page, hook: Receiver, viewer: User
) -> None:
    assert "/notifications/receivers/new/" not in page(HERE)
    assert "Switch" not in page(HERE)


@pytest.mark.parametrize("part", ["dead", "receivers", "log"])
def test_it_gives_htmx_only_the_partial_it_asks_for(page: Page, dead: Delivery, part: str) -> None:
    text = page(HERE, **{"HX-Request": "true", "HX-Target": part}).strip()

    assert f'id="{part}"' in text
    assert "<html" not in text


def test_many_deliveries_cost_no_more_queries_than_one(
    page: Page,
    dead: Delivery,
    hook: Receiver,
    alert: Alert,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for i in range(20):
        delivery(hook, alert, state="sent")
        Route.objects.create(name=f"route {i}", matchers="severity=page").receivers.add(hook)
    with django_assert_max_num_queries(11):
        page(HERE)


def test_what_waits_for_a_receiver_being_tried_is_not_called_forsaken(
    page: Page, hook: Receiver, alert: Alert
) -> None:
    long_ago = just_now() - timedelta(minutes=2)
    delivery(hook, alert, n_attempts=3)
    delivery(hook, alert, kind="resolved", next_try_at=long_ago)

    assert "no sender is running" not in page("/")
