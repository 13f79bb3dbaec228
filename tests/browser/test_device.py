"""Notifications of this browser: states of the panel, from the button to what is shown."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from pytest_django import Settings

from fleet.models import Delivery, Receiver
from tests.browser.test_accessibility import ASK, AXE
from tests.certificates import Authority
from tests.fleet.notifications.push_browser import PushBrowser
from tests.fleet.notifications.receiver_server import ReceiverServer, serve_receiver, status
from tests.helpers import just_now

pytestmark = pytest.mark.browser
# Subscribing needs the vendor's service, which tests do not reach: this takes its place.
SUBSCRIBES = """subscription => {
  const made = { ...subscription, toJSON: () => subscription };
  made.unsubscribe = async () => { localStorage.removeItem("subscribed"); return true; };
  const subscribe = async () => { localStorage.setItem("subscribed", "yes"); return made; };
  PushManager.prototype.subscribe = subscribe;
  PushManager.prototype.getSubscription = async () => localStorage.getItem("subscribed") && made;
}"""
# Chromium without a window shows no notifications, and a tap cannot be made: these record both.
WORKS = """async ({ message, taps }) => {
  const seen = { shown: [], opened: [], focused: [] };
  const show = async (title, options) => seen.shown.push({ title, ...options });
  self.registration.showNotification = show;
  self.clients.openWindow = async (url) => seen.opened.push(url);
  WindowClient.prototype.focus = async function () { seen.focused.push(this.url); };
  self.dispatchEvent(new PushEvent("push", { data: JSON.stringify(message) }));
  for (const data of taps) {
    const notification = { data, close() {} };
    const tap = new ExtendableEvent("notificationclick");
    self.dispatchEvent(Object.assign(tap, { notification }));
  }
  while (seen.opened.length + seen.focused.length < taps.length) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return seen;
}"""

# A browser that says what its old address was, and one that does not.
MOVES = """async ({ old, made }) => {
  const shown = [], seen = [];
  self.registration.showNotification = async (title) => shown.push(title);
  self.fetch = async (address, { body }) => {
    seen.push([address, [...body.keys()]]);
    return new Response(null, { status: 204 });
  };
  self.registration.pushManager.subscribe = async ({ applicationServerKey }) => {
    seen.push(applicationServerKey);
    return { toJSON: () => made };
  };
  const known = { options: { applicationServerKey: "key" }, toJSON: () => old };
  for (const oldSubscription of [known, null]) {
    const change = new ExtendableEvent("pushsubscriptionchange");
    self.dispatchEvent(Object.assign(change, { oldSubscription }));
  }
  while (!shown.length || seen.length < 2) await new Promise((resolve) => setTimeout(resolve, 20));
  return { seen, shown };
}"""


@pytest.fixture
def push_service(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ReceiverServer]:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    settings.NOTIFY_ALLOW = ["localhost"]
    with serve_receiver(tls=authority.serving("localhost")) as one:
        one.answers = [status(201)]
        yield one


@pytest.fixture
def subscribing(page: Page, admin: str, push_service: ReceiverServer) -> PushBrowser:
    """Let the browser of the tab subscribe at the push service; gives its keys."""
    browser = PushBrowser()
    page.context.grant_permissions(["notifications"], origin=admin)
    subscription = {"endpoint": push_service.url, "keys": browser.keys}
    page.add_init_script(f"({SUBSCRIBES})({json.dumps(subscription)})")
    return browser


def barriers(page: Page) -> list[object]:
    """List what axe finds on a phone, in both themes."""
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_function("w => document.documentElement.scrollWidth === w", arg=360)
    page.evaluate(AXE.read_text())
    found: list[object] = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found += page.evaluate(ASK)
    return found


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ("", "Notifications are blocked for this site. To undo that"),
        ("delete window.PushManager", "This browser has no push notifications."),
        (
            "Object.defineProperty(window, 'isSecureContext', { value: false })",
            "Browsers allow notifications only over https://",
        ),
    ],
    ids=["denied", "unsupported", "insecure"],
)
def test_what_stands_in_the_way_is_said(page: Page, admin: str, lacks: str, words: str) -> None:
    page.context.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    # What is not granted is denied.
    page.context.grant_permissions([], origin=admin)
    page.add_init_script(lacks)
    page.goto(f"{admin}/notifications/")
    panel = page.locator("#device")

    expect(panel.get_by_text(words)).to_be_visible()
    expect(panel.get_by_role("button")).to_have_count(0)
    assert barriers(page) == []


def test_what_the_browser_refuses_is_said(page: Page, admin: str) -> None:
    page.context.grant_permissions(["notifications"], origin=admin)
    page.add_init_script(
        "PushManager.prototype.subscribe = async () => { throw new Error('no service'); }"
    )
    page.goto(f"{admin}/notifications/")
    page.get_by_role("button", name="Notify me on this device").press("Enter")

    expect(page.get_by_text("The browser refused: no service")).to_be_visible()
    expect(page.get_by_role("button", name="Notify me on this device")).to_be_enabled()


def test_from_the_button_to_the_notification_and_back(
    page: Page, admin: str, subscribing: PushBrowser, push_service: ReceiverServer
) -> None:
    page.goto(f"{admin}/notifications/")
    panel = page.locator("#device")
    expect(panel.get_by_label("Name")).to_have_value("Chrome on Linux")
    panel.get_by_role("button", name="Notify me on this device").click()
    expect(panel.get_by_text("Alerts arrive on this device.")).to_be_visible()

    panel.get_by_role("button", name="Send a test").click()
    expect(page.get_by_text("accepted: 201")).to_be_visible()
    message = subscribing.read(push_service.posts[0].body)
    assert "tests whether trnwatch reaches admin: Chrome on Linux" in message["text"]

    [worker] = page.context.service_workers
    other = "https://trnwatch.example"
    taps = [f"{other}/alerts/7/?a=1", f"{other}/notifications/"]
    seen = worker.evaluate(WORKS, {"message": message, "taps": taps})
    [shown] = seen["shown"]
    assert (shown["title"], shown["body"]) == (message["title"], message["text"])
    assert (shown["tag"], shown["renotify"], shown["data"]) == ("test", True, message["url"])
    assert seen["opened"] == [f"{admin}/alerts/7/?a=1"]
    assert seen["focused"] == [f"{admin}/notifications/"]

    subscription = {"endpoint": push_service.url, "keys": subscribing.keys}
    renewed = worker.evaluate(MOVES, {"old": subscription, "made": subscription})
    names = ["old_endpoint", "old_auth", "endpoint", "p256dh", "auth"]
    assert renewed["seen"] == ["key", ["/notifications/devices/renew/", names]]
    assert renewed["shown"] == ["No more alerts on this device"]

    panel.get_by_role("button", name="Stop").click()
    expect(panel.get_by_role("button", name="Notify me on this device")).to_be_visible()
    assert not Receiver.objects.exists()


def test_a_device_that_fails_or_is_off_says_so(
    page: Page, admin: str, subscribing: PushBrowser, push_service: ReceiverServer
) -> None:
    page.context.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    page.goto(f"{admin}/notifications/")
    page.get_by_role("button", name="Notify me on this device").click()
    panel = page.locator("#device")
    expect(panel.get_by_text("Alerts arrive on this device.")).to_be_visible()
    assert barriers(page) == []

    now, device = just_now(), Receiver.objects.get()
    Receiver.objects.update(last_failed_at=now, last_error="403: BadJwtToken")
    dead = {"state": "dead", "created_at": now, "next_try_at": now, "group_key": "a"}
    Delivery.objects.create(receiver=device, kind="firing", **dead)
    page.reload()
    expect(panel.get_by_text("Notifications to this device fail:")).to_contain_text("BadJwtToken")
    assert barriers(page) == []

    page.get_by_role("button", name=f"Switch off {device}").click()
    expect(panel.get_by_text("No alerts arrive on this device until")).to_be_visible()
