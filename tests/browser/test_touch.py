"""Touch: two fingers zoom charts, one finger pans; a tap chooses a core, then its device."""

import re

import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect

pytestmark = pytest.mark.browser

DRAWN = "figure.chart[data-state=drawn]"


def drag(page: Page, *fingers: tuple[float, float], y: float) -> None:
    """Put fingers down at the first place of each, move them to the second, and lift them."""
    session = page.context.new_cdp_session(page)

    def touch(kind: str, share: float) -> None:
        points = [{"x": a + (b - a) * share, "y": y, "id": i} for i, (a, b) in enumerate(fingers)]
        session.send(
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": [] if kind == "touchEnd" else points},
        )

    touch("touchStart", 0.0)
    for share in (0.3, 0.6, 1.0):
        touch("touchMove", share)
    touch("touchEnd", 1.0)


def drawn(page: Page, address: str) -> tuple[Locator, FloatRect]:
    """Open a node's page; gives the chart of its memory and where that is."""
    page.goto(address)
    over = page.locator("#memory .u-over")
    expect(page.locator("#memory")).to_have_attribute("data-state", "drawn")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    return over, box


def zoomed(page: Page) -> list[int]:
    """Return the stretch that the chart is zoomed to."""
    zoom = page.locator("#memory").get_attribute("data-zoom") or ""
    return [int(second) for second in zoom.split("-")] if zoom else []


def test_two_fingers_zoom_one_moves_and_one_reads_what_is_not_zoomed(
    page: Page, fleet: str
) -> None:
    over, box = drawn(page, f"{fleet}/nodes/steady/")
    middle, y = box["x"] + box["width"] * 0.9, box["y"] + 40
    drag(page, (middle - 20, middle - 60), (middle + 20, middle + 60), y=y)
    start, end = zoomed(page)
    assert 200 < end - start < 450
    n_charts = page.locator(DRAWN).count()
    expect(page.locator(f"figure[data-zoom='{start}-{end}']")).to_have_count(n_charts)

    drag(page, (box["x"] + 100, box["x"] + 160), y=y)
    after = zoomed(page)
    assert after[0] < start
    assert after[1] - after[0] == pytest.approx(end - start, abs=2)

    page.locator("#memory").get_by_role("button", name="Reset zoom").click()
    expect(page.locator("figure[data-zoom='']")).to_have_count(n_charts)
    expect(page.get_by_role("button", name="Reset zoom")).to_have_count(0)

    place = box["x"] + box["width"] * 0.97
    over.evaluate("over => { over.matches = () => true; }")
    drag(page, (place - 10, place), y=y)
    assert zoomed(page) == []
    expect(over.locator(".chart-tip")).to_contain_text("device 0")


def test_a_tap_on_a_core_shows_a_link_to_its_device(page: Page, fleet: str) -> None:
    browser = page.context.browser
    assert browser is not None
    phone = browser.new_context(
        has_touch=True, is_mobile=True, viewport={"width": 360, "height": 740}
    ).new_page()
    phone.goto(fleet)
    canvas = phone.locator("#heat-limping canvas")
    canvas.scroll_into_view_if_needed()
    canvas.tap()
    link = phone.locator("a.tip")
    expect(link).to_have_text(re.compile("limping · device [78] · core 1[4-7]"))
    box = link.bounding_box()
    assert box is not None
    assert box["height"] >= 44
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    link.tap()
    phone.wait_for_url(re.compile(f"{fleet}/nodes/limping/devices/[78]/"))

    phone.goto(f"{fleet}/nodes/limping/")
    phone.locator("#map summary").get_by_text("Heat maps").tap()
    over = phone.locator("#core-heat[data-state=drawn] .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    over.tap(position={"x": box["width"] * 0.97, "y": box["height"] - 2})
    over.locator(".chart-tip a").tap()
    phone.wait_for_url(f"{fleet}/nodes/limping/devices/15/?window=15m")
    phone.context.close()
