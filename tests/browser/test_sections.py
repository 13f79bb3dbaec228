"""Long pages on a phone: links to their sections, and panels that open one by one."""

import re

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from fleet.models import Alert

pytestmark = pytest.mark.browser

PHONE: ViewportSize = {"width": 360, "height": 740}
RUN_LINKS = [
    *("Summary", "What stands out", "Charts", "Inputs", "Cost"),
    *("Layout", "Similar runs", "Nodes"),
]


def test_a_phone_sees_folded_panels_and_opens_them_one_by_one(page: Page, fleet: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"{fleet}/runs/llama/")
    links = page.get_by_role("navigation", name="Sections").get_by_role("link")
    assert links.all_inner_texts() == RUN_LINKS
    fold, layout = page.get_by_role("button", name="Layout"), page.locator("#layout dl")
    expect(layout).to_be_hidden()

    fold.click()
    expect(fold).to_have_attribute("aria-expanded", "true")
    expect(layout).to_be_visible()
    fold.press("Enter")
    expect(layout).to_be_hidden()

    # A link of the bar opens what it leads to, below the bar; every section is really there.
    links.get_by_text("Layout").click()
    expect(layout).to_be_visible()
    expect(page.locator("#layout")).to_be_in_viewport()
    bar = page.get_by_role("navigation", name="Sections").bounding_box()
    box = page.locator("#layout").bounding_box()
    assert bar
    assert box
    assert bar["y"] + bar["height"] <= box["y"]
    for link in links.all():
        expect(page.locator(link.get_attribute("href") or "")).to_be_visible()


def test_a_link_to_a_row_of_a_folded_panel_opens_that_panel(page: Page, fleet: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"{fleet}/nodes/steady/#device-0")

    expect(page.locator("#device-0")).to_be_in_viewport()
    expect(page.locator("#links")).to_be_hidden()


def test_a_panel_that_was_opened_stays_open_while_the_page_changes(page: Page, admin: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"{admin}/alerts/{Alert.objects.get().pk}/#timeline")
    timeline = page.locator("#timeline ul")
    expect(timeline).to_be_visible()
    expect(page.locator("#facts dl").first).to_be_hidden()

    page.locator("#act").get_by_role("button", name="Acknowledge", exact=True).click()
    expect(timeline).to_contain_text(re.compile("acknowledged", re.IGNORECASE))
    expect(timeline).to_be_visible()


def test_a_wide_screen_shows_every_panel_and_nothing_to_fold(page: Page, fleet: str) -> None:
    page.goto(f"{fleet}/runs/llama/")

    expect(page.locator("#layout dl")).to_be_visible()
    expect(page.locator(".fold:visible, .sections:visible")).to_have_count(0)


def test_without_scripts_everything_is_shown(page: Page, fleet: str) -> None:
    browser = page.context.browser
    assert browser
    plain = browser.new_context(viewport={"width": 360, "height": 740}, java_script_enabled=False)
    tab = plain.new_page()
    tab.goto(f"{fleet}/runs/llama/")

    expect(tab.locator("#layout dl")).to_be_visible()
    expect(tab.locator(".fold:visible")).to_have_count(0)
    plain.close()
