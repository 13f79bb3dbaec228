"""A page with old data shows the time of the data and the reason."""

import re
import threading
import time

import pytest
from playwright.sync_api import Page, expect
from pytest_django import Settings

from fleet.models import Alert, Node
from telemetry.store.hot import HotStore
from tests.browser.conftest import report

pytestmark = pytest.mark.browser
# What the box of the explanation and the page's own content share on the screen.
COVERED = """() => {
  const box = document.querySelector("#why").getBoundingClientRect();
  return [...document.querySelectorAll("main > :not(#why, .sr-only), header.top > *")]
    .filter((one) => getComputedStyle(one).position !== "fixed")
    .map((one) => [one, one.getBoundingClientRect()])
    .filter(([, at]) => at.height && at.width && at.top < box.bottom && at.bottom > box.top
      && at.left < box.right && at.right > box.left)
    .map(([one]) => one.outerHTML.slice(0, 80));
}"""


def assert_that_it_fits(page: Page) -> None:
    """Check on a phone and on a screen that the explanation lies over nothing."""
    for width in (360, 1280):
        page.set_viewport_size({"width": width, "height": 740})
        expect(page.locator("#why")).to_be_visible(timeout=30_000)
        page.wait_for_function("w => document.documentElement.scrollWidth === w", arg=width)
        assert page.evaluate(COVERED) == []


def test_what_is_wrong_stands_above_the_page_for_all_to_read(
    page: Page, address: str, settings: Settings, hot: HotStore, steady: Node
) -> None:
    settings.ANONYMOUS_READING = True
    report(hot, int(time.time()) - 60)
    page.goto(address)

    expect(page.locator("#clock-word")).to_contain_text("stale")
    expect(page.locator("#clock-word")).to_be_visible()
    expect(page.locator("#why")).to_be_hidden()
    expect(page.locator("#why")).to_contain_text("No nodes are reporting. Showing", timeout=30_000)
    assert_that_it_fits(page)
    # The tab leaves before the server does.
    page.goto("about:blank")


def test_data_that_only_come_late_are_not_called_silence(
    page: Page, address: str, settings: Settings, hot: HotStore, alert: Alert
) -> None:
    settings.ANONYMOUS_READING = True
    report(hot, int(time.time()) - 6)
    page.goto(f"{address}{alert.get_absolute_url()}")
    # Every second brings the data of six seconds ago.
    late = threading.Event()

    def reporting() -> None:
        while not late.wait(0.5):
            report(hot, int(time.time()) - 6)

    thread = threading.Thread(target=reporting)
    thread.start()
    try:
        why = page.locator("#why")
        expect(why).to_have_text(
            re.compile(r"^Data is ([6-9]|1\d)\ss old; all nodes reporting\.$"), timeout=30_000
        )
        expect(why).to_be_visible(timeout=30_000)
        assert_that_it_fits(page)
    finally:
        late.set()
        thread.join()
        page.goto("about:blank")
