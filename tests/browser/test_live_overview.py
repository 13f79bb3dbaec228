"""The overview updates live, shows its data age, and reconnects."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from fleet.models import Alert
from telemetry.store.hot import HotStore

pytestmark = pytest.mark.browser

WITHIN_MS = 3_000
STATE = "#clock"


def test_the_overview_changes_without_reload_within_three_seconds(page: Page, fleet: str) -> None:
    page.goto(f"{fleet}/?signal=utilization")
    expect(page).to_have_title(re.compile(r"^\(1\) "), timeout=WITHIN_MS)
    expect(page.locator("#firing-count")).to_have_text("1")
    expect(page.locator(STATE)).to_have_attribute("data-state", "live", timeout=WITHIN_MS)

    mean, clock = page.locator("#heat-steady .mean"), page.locator("#as-of")
    expect(mean).to_have_text(re.compile(r"\d+"))
    figure, shown = mean.inner_text(), clock.inner_text()
    expect(mean).not_to_have_text(figure, timeout=WITHIN_MS)
    expect(clock).not_to_have_text(shown, timeout=WITHIN_MS)


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


def test_what_the_viewer_opened_and_chose_stays_while_the_page_changes(
    page: Page, fleet: str
) -> None:
    page.goto(fleet)
    page.keyboard.press("j")
    page.locator("#heat-table summary").click()
    page.wait_for_timeout(2_500)

    expect(page.locator(".selected")).to_have_count(1)
    expect(page.locator("#heat-table")).to_have_attribute("open", "")
    expect(page.locator("#heat-rows td").first).to_be_visible()


def test_the_slider_shows_the_fleet_at_earlier_minutes_and_keeps_its_focus(
    page: Page, fleet: str
) -> None:
    page.goto(fleet)
    page.locator("#time-at").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**/?at=*")
    first = page.url
    expect(page.locator(STATE)).to_have_attribute("data-state", "off")
    expect(page.locator("#time-at")).to_be_focused()
    expect(page.locator("#shares")).to_have_attribute("data-state", re.compile("drawn|empty"))

    page.keyboard.press("ArrowLeft")
    expect(page).not_to_have_url(first)
    expect(page.locator("#time-at")).to_be_focused()
    shown = re.search(r"at=(\d+)", page.url)
    assert shown is not None
    at = datetime.fromtimestamp(int(shown[1]), UTC)
    expect(page.locator("#when")).to_contain_text(f"{at:%H:%M}")
    # Other pages keep the time, or say that they do not.
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Runs").click()
    page.wait_for_url(f"**/runs/?at={shown[1]}")
    expect(page.get_by_role("note")).to_contain_text("shows the present")
    page.get_by_role("link", name="The fleet at that time").click()
    page.get_by_role("link", name="Live").click()
    expect(page.locator(STATE)).to_have_attribute("data-state", "live", timeout=WITHIN_MS)


def test_a_core_is_named_by_pointer_and_by_arrow_keys(page: Page, fleet: str) -> None:
    page.goto(fleet)
    expect(page.locator(STATE)).to_have_attribute("data-state", "live", timeout=WITHIN_MS)
    page.locator("#heat-limping canvas").hover()
    shown = re.compile(r"limping · device 7 · core 1[45] · \d+")
    expect(page.locator(".tip")).to_have_text(shown)

    # The culprit has the first row.
    page.locator("#heat-steady a").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#spoken")).to_have_text(re.compile(r"limping · device 0 · core 1 · \d+"))


def test_a_core_leads_to_its_device_by_click_and_by_enter(page: Page, fleet: str) -> None:
    page.goto(fleet)
    expect(page.locator(STATE)).to_have_attribute("data-state", "live", timeout=WITHIN_MS)
    names = page.locator(".heatrow > a.mono")
    expect(names).to_have_count(2)
    # However many nodes: one tab stop.
    expect(page.locator(".heatrow > a.mono[tabindex='0']")).to_have_count(1)
    names.first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".heatrow > a.mono[tabindex='0']:focus")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{fleet}/nodes/steady/devices/1/")

    page.goto(fleet)
    box = page.locator("#heat-limping canvas").bounding_box()
    assert box is not None
    page.locator("#heat-limping canvas").click(position={"x": box["width"] - 2, "y": 5})
    page.wait_for_url(f"{fleet}/nodes/limping/devices/15/")


def test_a_long_acknowledgement_stays_within_a_phone(page: Page, fleet: str, alert: Alert) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=23, minutes=55)
    Alert.objects.filter(pk=alert.pk).update(
        acknowledged_at=long_ago, acknowledged_by="a.rather.long.name@example.com"
    )
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto(fleet)
    expect(page.locator(".alert-line").first).to_contain_text("a.rather.long.name")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_without_javascript_the_page_reads_all_the_same(
    page: Page, fleet: str, hot: HotStore
) -> None:
    browser = page.context.browser
    assert browser is not None
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(f"{fleet}/?signal=utilization")

    expect(plain.locator("#strip")).to_contain_text("1 of 1 open")
    expect(plain.locator("#heat-steady .mean")).to_have_text(re.compile(r"\d+"))
    expect(plain.locator("#clock")).to_be_hidden()
    plain.context.close()
