"""Notification pages in a browser: accessibility, width, and the result of a test message."""

from collections.abc import Iterator

import pytest
from django.conf import settings as project
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page, expect
from pytest_django import Settings

from fleet.models import Alert, Delivery, Receiver, Route
from tests.browser.test_accessibility import ASK, AXE
from tests.fleet.notifications.receiver_server import ReceiverServer, serve_receiver
from tests.helpers import just_now

pytestmark = pytest.mark.browser
PAGES = (
    "/notifications/",
    "/notifications/receivers/new/?kind=slack",
    "/notifications/receivers/{receiver}/",
    "/notifications/routes/{route}/",
    "/notifications/deliveries/",
    "/notifications/deliveries/{delivery}/",
)


@pytest.fixture
def hook_server(settings: Settings) -> Iterator[ReceiverServer]:
    settings.NOTIFY_ALLOW = ["127.0.0.0/8"]
    with serve_receiver() as one:
        yield one


@pytest.fixture
def site(fleet: str, hook_server: ReceiverServer) -> str:
    """Let a delivery fail for good; gives the fleet's address."""
    now = just_now()
    receiver = Receiver.objects.create(
        name="hook", kind="webhook", target=hook_server.url, created_at=now
    )
    route = Route.objects.create(name="pages", matchers="severity=page")
    route.receivers.add(receiver)
    dead = Delivery.objects.create(
        receiver=receiver,
        kind="firing",
        group_key="a",
        state="dead",
        created_at=now,
        next_try_at=now,
        body={"title": "[FIRING] llama"},
        last_error="404: no_service",
    )
    dead.alerts.add(Alert.objects.get())
    return fleet


@pytest.fixture
def admin_page(page: Page, site: str, client: Client) -> Page:
    """Sign an administrator in, in the tab."""
    user = User.objects.create_superuser("adam")
    client.force_login(user)
    name = project.SESSION_COOKIE_NAME
    page.context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": site}])
    return page


def address(path: str) -> str:
    return path.format(
        receiver=Receiver.objects.get().pk,
        route=Route.objects.get().pk,
        delivery=Delivery.objects.get().pk,
    )


def test_axe_finds_no_serious_barrier_and_a_phone_does_not_scroll_sideways(
    admin_page: Page, site: str
) -> None:
    admin_page.set_viewport_size({"width": 360, "height": 740})
    admin_page.context.new_cdp_session(admin_page).send("Page.setBypassCSP", {"enabled": True})
    found: dict[str, list[object]] = {}
    for path in PAGES:
        admin_page.goto(site + address(path))
        admin_page.wait_for_function("w => document.documentElement.scrollWidth === w", arg=360)
        admin_page.evaluate(AXE.read_text())
        found[path] = []
        for scheme in ("light", "dark"):
            admin_page.emulate_media(color_scheme=scheme)
            found[path] += admin_page.evaluate(ASK)

    assert found == {path: [] for path in PAGES}


def test_the_answer_to_a_test_is_seen(
    admin_page: Page, site: str, hook_server: ReceiverServer
) -> None:
    admin_page.goto(f"{site}/notifications/")
    admin_page.get_by_role("button", name="Send a test to hook").click()

    expect(admin_page.get_by_text("accepted: 200")).to_be_visible()
    assert hook_server.posts[0].json["kind"] == "test"


def test_matchers_show_what_they_mean_while_they_are_typed(admin_page: Page, site: str) -> None:
    admin_page.goto(f"{site}/notifications/routes/new/")
    admin_page.get_by_label("Matchers").fill("run=nothing")
    expect(admin_page.get_by_text("No alert matches.")).to_be_visible()

    admin_page.get_by_label("Matchers").fill("colour=blue")
    expect(admin_page.locator("#preview .error")).to_contain_text("is not a field")


def test_every_page_links_to_failed_deliveries(admin_page: Page, site: str) -> None:
    admin_page.goto(f"{site}/")
    strip = admin_page.get_by_role("alert").filter(has_text="could not be delivered")
    strip.get_by_role("link", name="Notifications").click()

    expect(admin_page.get_by_role("heading", name="Not delivered")).to_be_visible()
