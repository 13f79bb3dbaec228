"""Keyboard shortcuts work as the help describes."""

import re

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


PAGES = {
    "n": "/nodes/",
    "r": "/runs/",
    "a": "/alerts/",
    "f": "/",
    "t": "/trials/",
    "c": "/compiles/",
}


def test_the_skip_link_the_help_and_the_search_by_keyboard(page: Page, fleet: str) -> None:
    page.goto(fleet)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()

    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    for key in page.locator("#keys .keys-pages kbd").all_inner_texts():
        expect(page.locator(f"#keys .keys-pages span:has(kbd:text-is('{key}'))")).to_have_count(1)
    expect(page.locator("#keys .keys-pages")).to_contain_text("compile cache")
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()

    # Letters that are typed into a field are only letters.
    page.locator("#search").press_sequentially("gn?")
    assert page.url.partition("#")[0].rstrip("/") == fleet
    expect(page.locator("#search")).to_have_value("gn?")
    page.locator("#search").fill("")
    page.keyboard.press("Escape")

    page.keyboard.press("/")
    page.keyboard.type("limp")
    expect(page.locator("#results a").first).to_contain_text("limping")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{fleet}/nodes/limping/")


def test_suggestions_of_the_search_are_one_tab_stop(page: Page, fleet: str) -> None:
    page.goto(fleet)
    field = page.get_by_role("combobox", name="Find a node, run or alert")
    field.fill("l")
    found = page.locator("#results")
    options = found.get_by_role("option")
    expect(options).to_have_count(3)
    expect(field).to_have_attribute("aria-expanded", "true")

    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowDown"):
        field.press(key)
    expect(field).to_be_focused()
    expect(found.get_by_role("option", selected=True)).to_have_text(options.nth(1).inner_text())
    assert field.get_attribute("aria-activedescendant") == options.nth(1).get_attribute("id")

    address = options.nth(1).get_attribute("href")
    field.press("Tab")
    expect(page.locator("#results")).to_be_hidden()
    assert not page.evaluate("document.activeElement.closest('.search')")
    expect(field).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Shift+Tab")
    field.press("ArrowDown")
    field.press("ArrowDown")
    field.press("Enter")
    page.wait_for_url(f"{fleet}{address}")


def test_g_and_a_letter_go_to_a_page(page: Page, fleet: str) -> None:
    page.goto(f"{fleet}/search")
    for key, path in PAGES.items():
        page.keyboard.press("g")
        page.keyboard.press(key)

        page.wait_for_url(f"{fleet}{path}")


def test_j_and_k_choose_and_enter_opens(page: Page, fleet: str) -> None:
    page.goto(f"{fleet}/nodes/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator(".selected")).to_have_count(1)
    chosen = page.locator(".selected a").first.inner_text()

    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/nodes/{chosen}/"))


def test_t_freezes_the_page_in_a_link(page: Page, fleet: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{fleet}/nodes/steady/")
    expect(page.locator("figure.chart[data-state=drawn]").first).to_be_visible()
    page.keyboard.press("t")
    expect(page.locator(".toast")).to_contain_text("Link copied")
    link = page.evaluate("navigator.clipboard.readText()")

    page.goto(link)
    expect(page.locator(".frozen")).to_be_visible()
    expect(page.locator("#clock")).to_have_attribute("data-state", "off")
