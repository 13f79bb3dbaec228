"""Walking time: zooms in the history, steps, comparison, markers, and lines picked in a legend."""

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Locator, Page, expect

from fleet.models import Alert, Annotation, Run
from tests.helpers import just_now

pytestmark = pytest.mark.browser

MOST_SHIFT = 0.02
COMPARE = "Compare with an earlier time"
NAME = """(document.activeElement.ariaLabel || document.activeElement.textContent).trim()"""
SHIFT = """
window.shifted = 0;
window.moved = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    window.shifted += entry.value;
    window.moved.push(...entry.sources.map(({node, previousRect, currentRect}) =>
      `${node?.id || node?.className || node?.nodeName} ${previousRect.y} to ${currentRect.y}`));
  }
}).observe({type: "layout-shift", buffered: true});
"""


@pytest.fixture
def deploy(run: Run) -> Annotation:
    """Note a deploy a minute ago."""
    at = datetime.fromtimestamp(time.time() - 60, UTC)
    return Annotation.objects.create(at=at, kind="deploy", text="loader 2.4.1", run=run)


def shown(page: Page) -> str:
    """Return the stretch that the charts are zoomed to, as the address holds it."""
    found = re.search(r"[?&]zoom=(\d+-\d+)", page.url)
    return found[1] if found else ""


def drag(page: Page, figure: str, start: float, end: float) -> None:
    """Zoom by dragging over a chart, from one share of its width to another."""
    over = page.locator(f"{figure} .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * start, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, y, steps=4)
    page.mouse.up()


def drawn(page: Page, address: str, figure: str = "#share") -> Locator:
    """Open a page; gives a chart of it once all are drawn."""
    page.goto(address)
    expect(page.locator(figure)).to_have_attribute("data-state", "drawn")
    expect(page.locator("figure.chart[data-state=loading]")).to_have_count(0)
    return page.locator(figure)


def test_back_and_forward_walk_through_zooms_and_the_address_holds_each(
    page: Page, fleet: str
) -> None:
    chart = drawn(page, f"{fleet}/runs/llama/")
    drag(page, "#share", 0.6, 0.98)
    expect(page.locator("#zoomed b")).to_have_text(re.compile(r"\d\d:\d\d:\d\d to .* UTC"))
    first = shown(page)
    page.wait_for_timeout(800)  # a gesture within 0.7 s changes the same entry of the history
    drag(page, "#share", 0.4, 0.9)
    expect(chart).not_to_have_attribute("data-zoom", first)
    second = shown(page)
    assert first != second

    page.go_back()
    expect(chart).to_have_attribute("data-zoom", first)
    page.go_back()
    expect(chart).to_have_attribute("data-zoom", "")
    expect(page.locator("#zoomed")).to_be_hidden()
    page.go_forward()
    page.go_forward()
    expect(chart).to_have_attribute("data-zoom", second)

    page.reload()
    expect(chart).to_have_attribute("data-zoom", second)
    page.keyboard.press("Escape")
    expect(chart).to_have_attribute("data-zoom", "")
    assert not shown(page)
    # The stream feeds the page's own stretch again.
    expect(page.locator("#clock")).to_have_attribute("data-state", "live")


def test_brackets_step_and_z_zooms_out(page: Page, fleet: str) -> None:
    chart = drawn(page, f"{fleet}/runs/llama/")
    drag(page, "#share", 0.7, 0.9)
    start, end = map(int, shown(page).split("-"))
    page.keyboard.press("[")
    expect(chart).not_to_have_attribute("data-zoom", f"{start}-{end}")
    earlier = [int(second) for second in shown(page).split("-")]
    assert end - earlier[1] == pytest.approx((end - start) / 2, abs=1)
    page.keyboard.press("]")
    expect(chart).to_have_attribute("data-zoom", re.compile(rf"{start // 10}\d-"))
    page.keyboard.press("z")
    expect(chart).not_to_have_attribute("data-zoom", re.compile(rf"{start // 10}\d-"))
    wider = [int(second) for second in shown(page).split("-")]
    assert wider[1] - wider[0] == pytest.approx(2 * (end - start), abs=3)

    # A page that is not zoomed has addresses for what lies around it.
    page.keyboard.press("Escape")
    expect(chart).to_have_attribute("data-zoom", "")
    page.keyboard.press("[")
    page.wait_for_url(re.compile(r"from=\d+&to=\d+"))
    expect(page.locator(".frozen")).to_contain_text("Showing data from")
    page.go_back()
    page.keyboard.press("z")
    page.wait_for_url(re.compile("window=1h"))


def test_a_range_is_asked_for_in_the_zone_of_the_page(page: Page, fleet: str) -> None:
    drawn(page, f"{fleet}/runs/llama/")
    page.locator(".from-to summary").click()
    page.get_by_label("From, UTC").fill("2026-03-02T12:00:00")
    page.get_by_label("To, UTC").fill("2026-03-02T12:30:00")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/?from=1772452800&to=1772454600")
    expect(page.locator(".frozen")).to_contain_text("2026-03-02 12:00:00 to 2026-03-02 12:30:00")

    page.goto(f"{fleet}/runs/llama/?from=20&to=10")
    expect(page.locator(".from-to [role=alert]")).to_contain_text("must be later than from")


def test_controls_are_reached_by_keyboard_and_remembered(
    page: Page, fleet: str, deploy: Annotation
) -> None:
    chart = drawn(page, f"{fleet}/runs/llama/")
    reached = []
    page.locator("#time-nav a").first.focus()
    for _ in range(12):
        reached.append(page.evaluate(NAME))
        page.keyboard.press("Tab")
    assert {"15m", "Earlier", "Zoom out", "Markers", COMPARE} <= set(reached)

    body = chart.locator(".chart-body")
    expect(body).to_have_attribute("aria-label", re.compile(r"walk \d+ markers"))
    body.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#spoken")).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
    chart.locator("summary").click()
    expect(chart.locator(".chart-table .timeline")).to_contain_text("deploy: loader 2.4.1")

    page.locator("main").focus()
    page.keyboard.press("m")
    markers = page.get_by_role("button", name="Markers")
    expect(markers).to_have_attribute("aria-pressed", "false")
    expect(body).not_to_have_attribute("aria-label", re.compile("markers"))
    page.reload()
    expect(markers).to_have_attribute("aria-pressed", "false")


def test_enter_on_the_marker_of_an_alert_opens_it(page: Page, fleet: str, alert: Alert) -> None:
    alert.events.create(kind="fired", at=just_now() - timedelta(seconds=20))
    chart = drawn(page, f"{fleet}/runs/llama/")
    chart.locator(".chart-body").focus()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#spoken")).to_contain_text("alert: ")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{alert.get_absolute_url()}")


def test_a_legend_hides_lines_and_a_comparison_is_named_and_kept_in_the_address(
    page: Page, fleet: str
) -> None:
    chart = drawn(page, f"{fleet}/runs/llama/")
    entry = {name: chart.locator(f"[data-series='{name}']") for name in ("waiting", "all-reduce")}
    entry["waiting"].press("Enter")
    expect(entry["waiting"]).to_have_attribute("aria-pressed", "true")
    expect(entry["waiting"]).to_be_focused()
    expect(chart.locator("[data-series][aria-pressed=false]")).to_have_count(2)
    entry["waiting"].click()
    expect(chart.locator("[data-series][aria-pressed=false]")).to_have_count(0)
    entry["all-reduce"].click(modifiers=["Shift"])
    expect(entry["all-reduce"]).to_have_attribute("aria-pressed", "false")
    expect(chart.locator("[data-series][aria-pressed=false]")).to_have_count(1)

    page.get_by_label(COMPARE).select_option("3600")
    expect(chart.locator(".chart-legend")).to_contain_text("no data 1 h before")
    page.reload()
    expect(page.get_by_label(COMPARE)).to_have_value("3600")
    expect(chart.locator(".chart-legend")).to_contain_text("1 h before")
    page.get_by_label(COMPARE).select_option("")
    expect(chart.locator(".chart-legend")).not_to_contain_text("1 h before")


@pytest.fixture
def fleet_of_eight(fleet: str, run: Run) -> str:
    for i in range(7):
        other = Run.objects.get(pk=run.pk)
        other.pk, other.name = None, f"another-run-{i}"
        other._state.adding = True
        other.save()
    return fleet


def test_eight_runs_differ_by_shape_and_shift_nothing_on_a_phone(
    page: Page, fleet_of_eight: str
) -> None:
    page.set_viewport_size({"width": 360, "height": 2400})
    page.add_init_script(SHIFT)
    chart = drawn(page, fleet_of_eight, "#shares")
    shapes = chart.locator(".chart-legend .shape").all_inner_texts()

    assert len(shapes) == len(set(shapes)) == 8
    page.wait_for_timeout(500)
    assert page.evaluate("window.shifted") <= MOST_SHIFT, page.evaluate("window.moved")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_nothing_overflows_a_phone_zoomed_and_compared(
    page: Page, fleet: str, deploy: Annotation
) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    now_s = int(time.time())
    for path in ("/", "/runs/llama/", "/nodes/steady/", Alert.objects.get().get_absolute_url()):
        page.goto(f"{fleet}{path}?zoom={now_s - 90}-{now_s - 10}&compare=3600")
        expect(page.locator("figure.chart[data-state=drawn]").first).to_be_visible()
        expect(page.locator("#zoomed")).to_be_visible()

        assert page.evaluate("document.documentElement.scrollWidth") == 360, path


def test_without_scripts_a_page_has_its_range_and_its_markers(
    page: Page, fleet: str, deploy: Annotation
) -> None:
    context = page.context.browser.new_context(java_script_enabled=False)  # type: ignore[union-attr]
    plain = context.new_page()
    plain.goto(f"{fleet}/runs/llama/")
    expect(plain.locator("#markers")).to_be_hidden()
    expect(plain.locator("#compare")).to_be_hidden()
    plain.locator("#share").get_by_role("link", name="Table").click()
    expect(plain.locator("main .timeline")).to_contain_text("deploy: loader 2.4.1")
    plain.go_back()
    plain.get_by_role("link", name="Earlier").click()
    plain.wait_for_url(re.compile(r"from=\d+&to=\d+"))
    expect(plain.locator(".frozen")).to_be_visible()
    context.close()
