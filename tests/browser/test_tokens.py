"""Tokens in a browser: create by keyboard, copy the secret, confirm a revocation."""

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page, expect

from fleet.models import Token
from tests.helpers import NOON

pytestmark = pytest.mark.browser


@pytest.fixture
def tokens(page: Page, address: str, client: Client) -> Iterator[str]:
    """Let an admin look at the page; gives its address."""
    client.force_login(User.objects.create_superuser("admin"))
    session = client.cookies["trnwatch_session"].value
    page.context.add_cookies([{"name": "trnwatch_session", "value": session, "url": address}])
    yield f"{address}/tokens/"
    page.goto("about:blank")


def test_a_token_is_made_by_keyboard_and_its_secret_is_selected_to_copy(
    page: Page, tokens: str
) -> None:
    page.goto(tokens)
    page.locator("#id_name").focus()
    page.keyboard.type("ci")
    page.keyboard.press("Enter")

    expect(page.locator("#secret")).to_be_focused()
    assert Token.objects.get().created_by == User.objects.get().username
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    expect(page.locator("#toasts")).to_contain_text("Copied")


def test_revoking_asks_twice(page: Page, tokens: str) -> None:
    token, _ = Token.issue("ci", "read", now=NOON)
    page.goto(tokens)
    button = page.get_by_role("button", name="Revoke ci", exact=True)
    expect(button).to_be_hidden()

    page.locator("summary", has_text="Revoke…").click()
    button.click()

    expect(page.locator("#over")).to_contain_text("revoked")
    token.refresh_from_db()
    assert token.revoked_by == "admin"


def test_it_never_scrolls_sideways(page: Page, tokens: str) -> None:
    Token.issue(
        "a-name-that-is-as-long-as-a-name-may-be-and-has-no-place-to-break", "read", now=NOON
    )
    page.goto(tokens)
    page.locator("summary", has_text="Revoke…").click()

    for width in (360, 1280, 2560):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function("w => document.documentElement.scrollWidth === w", arg=width)
