"""Dark and light theme, by system preference or by choice, before the first paint."""

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

BACKGROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(245, 246, 248)", "rgb(14, 19, 24)"


def test_the_system_chooses_until_the_viewer_does_for_good(page: Page, fleet: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(fleet)
    assert page.evaluate(BACKGROUND) == DARK
    page.emulate_media(color_scheme="light")
    assert page.evaluate(BACKGROUND) == LIGHT

    page.locator("#theme").click()
    page.locator("#theme").click()
    expect(page.locator("#theme")).to_have_attribute("aria-label", "Theme: dark")
    assert page.evaluate(BACKGROUND) == DARK

    page.goto(f"{fleet}/alerts/")
    assert page.evaluate(BACKGROUND) == DARK


def test_times_are_shown_in_the_zone_of_choice(page: Page, fleet: str) -> None:
    browser = page.context.browser
    assert browser is not None
    there = browser.new_context(timezone_id="Asia/Kolkata").new_page()
    there.goto(fleet)
    expect(there.locator("#zone")).to_have_text("UTC")
    expect(there.locator("#clock")).to_have_attribute("data-state", "live")
    before = there.locator("#as-of").inner_text()
    there.locator("#zone").click()

    expect(there.locator("#zone")).to_have_text("UTC+5:30")
    assert there.locator("#as-of").inner_text()[:2] != before[:2]
    there.context.close()
