"""Keyboard shortcuts work as the help describes."""

import re

import pytest
from playwright.sync_api import Page, expect

from fleet.models import Alert
from tests.browser.test_accessibility import ASK, AXE

pytestmark = pytest.mark.browser


PAGES = {
    "n": "/nodes/",
    "r": "/runs/",
    "a": "/alerts/",
    "f": "/",
    "t": "/trials/",
    "c": "/compiles/",
}


def test_the_skip_link_and_the_help_by_keyboard(page: Page, fleet: str) -> None:
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
    page.keyboard.press("/")
    field = page.locator("#search")
    expect(field).to_be_focused()
    field.press_sequentially("gn?")
    assert page.url.partition("#")[0].rstrip("/") == fleet
    expect(field).to_have_value("gn?")
    page.keyboard.press("Escape")
    expect(field).to_be_hidden()


def test_the_palette_finds_by_keyboard_touch_and_without_a_mouse(
    page: Page, fleet: str, alert: Alert
) -> None:
    # An EFA alert fires.
    Alert.objects.update(rule="step_slow", cause="network", device=4)
    page.goto(fleet)
    dialog, field = page.locator("#palette"), page.locator("#search")
    options = dialog.get_by_role("option")

    # Without a text: what is open, pages and runs.
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    expect(dialog.get_by_role("group").first).to_have_attribute("aria-label", "Open alerts")
    page.keyboard.press("Control+k")
    expect(dialog).to_be_hidden()

    page.keyboard.press("/")
    page.keyboard.type("efa")
    expect(options.first).to_have_attribute("href", f"/alerts/{alert.pk}/")
    expect(field).to_have_attribute("aria-expanded", "true")
    expect(dialog.get_by_role("option", selected=True)).to_have_count(1)

    # Arrows walk through all groups and round; the field keeps the focus.
    field.fill("limping 3")
    expect(options.first).to_have_text(re.compile("Device 3 of limping"))
    field.press("ArrowDown")
    assert field.get_attribute("aria-activedescendant") == options.nth(1).get_attribute("id")
    field.press("ArrowUp")
    field.press("ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    expect(field).to_be_focused()

    # Results are one tab stop with the field.
    field.press("Tab")
    expect(dialog.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()

    # Narrow and dark: it fits, and a tap opens.
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme="dark")
    page.locator("a.find").click()
    field.fill("efa")
    expect(options.first).to_have_attribute("href", f"/alerts/{alert.pk}/")
    box = dialog.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    page.context.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    page.evaluate(AXE.read_text())
    assert page.evaluate(ASK) == []

    # Enter before the results came opens the first of them.
    field.fill("")
    field.press_sequentially("limping")
    field.press("Enter")
    page.wait_for_url(f"{fleet}/alerts/{alert.pk}/")


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
