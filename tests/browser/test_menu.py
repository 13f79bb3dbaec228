"""The menu of further pages: mouse, keyboard, and no JavaScript."""

import pytest
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser


def test_it_opens_closes_leads_to_the_keys_and_fits_a_phone(page: Page, fleet: str) -> None:
    page.goto(f"{fleet}/runs/")
    menu, more = page.locator("#pages-more > div"), page.get_by_text("More", exact=True)
    expect(menu).to_be_hidden()

    more.click()
    expect(menu.get_by_role("link", name="Silences")).to_be_visible()
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()

    more.click()
    page.locator("main").click(position={"x": 5, "y": 5})
    expect(menu).to_be_hidden()

    more.click()
    page.get_by_role("button", name="Keyboard shortcuts").click()
    expect(page.locator("#keys")).to_be_visible()
    expect(menu).to_be_hidden()
    page.keyboard.press("Escape")

    # A phone has it at the foot of the page.
    page.set_viewport_size({"width": 360, "height": 740})
    more.click()
    box = menu.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 360
    page.wait_for_function("w => document.documentElement.scrollWidth === w", arg=360)


def test_every_page_follows_the_clock_and_the_alerts(page: Page, fleet: str) -> None:
    page.goto(f"{fleet}/runbooks/allreduce_share/")

    expect(page.locator("#clock")).to_have_attribute("data-state", "live")
    expect(page.locator("#firing-count")).to_have_text("1")
    # The tab says so too.
    assert str(page.locator("#icon").get_attribute("href")).startswith("data:image/svg+xml,")


def test_without_scripts_it_opens_all_the_same(browser: Browser, fleet: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto(fleet)
    plain.get_by_text("More", exact=True).click()
    plain.get_by_role("link", name="Silences").click()

    assert plain.url == f"{fleet}/silences/"
    plain.goto(f"{fleet}/runs/llama/")
    plain.locator("figure#share").get_by_role("link", name="Table").click()
    expect(plain.locator("h1")).to_have_text("Share of llama")
    context.close()
