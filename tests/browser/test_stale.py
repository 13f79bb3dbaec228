"""A page whose data grew old says so, why, and of when they are."""

import time

import pytest
from playwright.sync_api import Page, expect
from pytest_django import Settings

from fleet.models import Node
from telemetry.store.hot import HotStore
from tests.browser.conftest import report

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("width", [360, 1280])
def test_what_is_the_matter_stands_below_the_clock_for_all_to_read(
    page: Page, address: str, settings: Settings, hot: HotStore, steady: Node, width: int
) -> None:
    settings.ANONYMOUS_READING = True
    report(hot, int(time.time()) - 60)
    page.set_viewport_size({"width": width, "height": 740})
    page.goto(address)

    expect(page.locator("#clock-word")).to_contain_text("stale")
    expect(page.locator("#clock-word")).to_be_visible()
    expect(page.locator("#why")).to_be_hidden()
    expect(page.locator("#why")).to_contain_text("No node reports: what you see", timeout=30_000)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # The tab leaves before the server does.
    page.goto("about:blank")
