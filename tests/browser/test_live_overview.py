"""The overview updates live, shows its data age, and reconnects."""

import re

import pytest
from playwright.sync_api import Page, expect

from telemetry.store.hot import HotStore

pytestmark = pytest.mark.browser

WITHIN_MS = 3_000
POLL_EVERY_MS = 250
STATE = "#clock"
PIXELS = """() => document.querySelector("#heat-steady canvas")
  .getContext("2d").getImageData(0, 0, 32, 1).data.join()"""


def test_a_core_changes_without_reload_within_three_seconds(page: Page, fleet: str) -> None:
    page.goto(fleet)
    mean = page.locator("#heat-steady .mean")
    expect(mean).to_have_text(re.compile(r"\d+"))
    before = mean.inner_text()

    expect(mean).not_to_have_text(before, timeout=WITHIN_MS)


def test_pixels_of_a_core_change_too(page: Page, fleet: str) -> None:
    page.goto(fleet)
    before = page.evaluate(PIXELS)

    def has_changed() -> bool:
        page.wait_for_timeout(POLL_EVERY_MS)
        return bool(page.evaluate(PIXELS) != before)

    assert any(has_changed() for _ in range(WITHIN_MS // POLL_EVERY_MS))


def test_the_clock_states_that_the_page_is_live(page: Page, fleet: str) -> None:
    page.goto(fleet)

    expect(page.locator(STATE)).to_have_attribute("data-state", "live", timeout=WITHIN_MS)
    before = page.locator("#as-of").inner_text()
    expect(page.locator("#as-of")).not_to_have_text(before, timeout=WITHIN_MS)


def test_a_paused_page_stands_still_and_continues(page: Page, fleet: str) -> None:
    page.goto(fleet)
    expect(page.locator(STATE)).to_have_attribute("data-state", "live", timeout=WITHIN_MS)

    page.locator(STATE).click()
    expect(page.locator(STATE)).to_have_attribute("data-state", "paused")
    still = page.locator("#as-of").inner_text()
    page.wait_for_timeout(2_500)
    assert page.locator("#as-of").inner_text() == still

    page.locator(STATE).click()
    expect(page.locator(STATE)).to_have_attribute("data-state", "live", timeout=WITHIN_MS)


def test_the_number_of_firing_alerts_stands_in_the_title(page: Page, fleet: str) -> None:
    page.goto(fleet)

    expect(page).to_have_title(re.compile(r"^\(1\) "), timeout=WITHIN_MS)
    expect(page.locator("#firing-count")).to_have_text("1")


def test_what_the_viewer_opened_stays_open_while_the_page_moves(page: Page, fleet: str) -> None:
    page.goto(fleet)
    page.locator("#heat-table summary").click()
    page.wait_for_timeout(2_500)

    expect(page.locator("#heat-table")).to_have_attribute("open", "")
    expect(page.locator("#heat-rows td").first).to_be_visible()


def test_pointing_at_a_core_names_it(page: Page, fleet: str) -> None:
    page.goto(fleet)
    expect(page.locator(STATE)).to_have_attribute("data-state", "live", timeout=WITHIN_MS)
    page.locator("#heat-limping canvas").hover()

    expect(page.locator(".tip")).to_have_text(re.compile(r"limping · core \d+ · \d+"))


def test_arrow_keys_walk_over_the_cores(page: Page, fleet: str) -> None:
    page.goto(fleet)
    expect(page.locator(STATE)).to_have_attribute("data-state", "live", timeout=WITHIN_MS)
    page.locator("#heat-steady a").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")

    expect(page.locator("#spoken")).to_have_text(re.compile(r"limping · core 1 · \d+"))


def test_without_javascript_the_page_reads_all_the_same(
    page: Page, fleet: str, hot: HotStore
) -> None:
    browser = page.context.browser
    assert browser is not None
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(fleet)

    expect(plain.locator("#strip")).to_contain_text("1 unacknowledged")
    expect(plain.locator("#heat-steady .mean")).to_have_text(re.compile(r"\d+"))
    expect(plain.locator("#clock")).to_be_hidden()
    plain.context.close()
