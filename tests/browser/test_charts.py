"""Charts in a browser: drawing, live updates, linked zoom, keyboard, no layout shift."""

import re

import pytest
from playwright.sync_api import Page, Route, expect

pytestmark = pytest.mark.browser

DRAWN = "figure.chart[data-state=drawn]"


def test_every_chart_of_a_run_is_drawn_has_its_figures_as_a_table_and_shares_a_cursor(
    page: Page, fleet: str
) -> None:
    page.goto(f"{fleet}/runs/llama/")
    n_charts = page.locator("figure.chart").count()
    assert n_charts >= 5
    expect(page.locator(DRAWN)).to_have_count(n_charts)

    over = page.locator("#share .u-over")
    over.scroll_into_view_if_needed()
    over.hover(position={"x": 20, "y": 30})
    cursor = page.locator("#phases .u-cursor-x")
    expect(cursor).to_have_css("transform", re.compile(r"matrix\(1, 0, 0, 1, \d"))

    figure = page.locator("#phases")
    figure.locator("summary").click()
    expect(figure.locator("table th").first).to_have_text("UTC")
    expect(figure.locator("tbody tr").first).to_be_visible()


def test_the_shares_move_without_a_reload_and_are_read_by_arrow_keys(
    page: Page, fleet: str
) -> None:
    page.goto(fleet)
    legend = page.locator("#shares .chart-legend")
    expect(legend).to_contain_text("llama")
    expect(legend).to_contain_text(re.compile(r"\d+\.\d"))

    expect(page.locator("#shares")).to_have_attribute("data-state", "drawn")
    page.locator("#shares .chart-body").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#spoken")).to_have_text(re.compile(r"\d\d:\d\d:\d\d UTC, llama \d+"))


def test_drawing_uses_reserved_space_only(page: Page, fleet: str) -> None:
    def hold(route: Route) -> None:
        page.wait_for_timeout(400)
        route.continue_()

    page.route("**/overview/shares*", hold)
    page.goto(fleet, wait_until="domcontentloaded")
    loading = page.locator("#shares .chart-body").bounding_box()
    expect(page.locator("#shares")).to_have_attribute("data-state", "drawn")

    assert page.locator("#shares .chart-body").bounding_box() == loading


def test_a_chart_that_fails_states_it_and_tries_again(page: Page, fleet: str) -> None:
    answers = iter(["no JSON"])

    def fail_once(route: Route) -> None:
        if body := next(answers, ""):
            route.fulfill(body=body)
        else:
            route.continue_()

    page.route("**/overview/shares*", fail_once)
    page.goto(fleet)
    expect(page.locator("#shares .chart-note")).to_contain_text("Could not read")

    page.locator("#shares").get_by_role("button", name="Try again").click()
    expect(page.locator("#shares")).to_have_attribute("data-state", "drawn")


def test_a_window_without_data_is_shown_as_empty(page: Page, fleet: str) -> None:
    page.goto(f"{fleet}/nodes/steady/?from=1000000&to=1000900")

    expect(page.locator("figure.chart .chart-note").first).to_have_text(
        "No data in this time range."
    )


def test_the_charts_of_a_node_are_drawn_fed_by_the_stream_and_zoomed_together(
    page: Page, fleet: str
) -> None:
    page.goto(f"{fleet}/nodes/steady/")
    page.locator("#map summary").get_by_text("Heat maps").click()
    n_charts = page.locator("figure.chart").count()
    assert n_charts >= 5
    # What is above may still be on its way: a drag begins once nothing moves any more.
    expect(page.locator(DRAWN)).to_have_count(n_charts)

    over = page.locator(f"{DRAWN}[data-chart=lines] .u-over")
    expect(over.first).to_be_visible()
    over.first.scroll_into_view_if_needed()
    box = over.first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.85, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + 30, steps=4)
    page.mouse.up()
    mine = over.first.locator("xpath=ancestor::figure")
    expect(mine).to_have_attribute("data-zoom", re.compile(r".+"))
    zoom = mine.get_attribute("data-zoom")
    expect(page.locator(f"figure[data-zoom='{zoom}']")).to_have_count(n_charts)
    over.first.dblclick()
    expect(page.locator("figure[data-zoom='']")).to_have_count(n_charts)

    # The stream feeds the heat map column by column. A chart that is fetched again each five
    # seconds never gets this far; an overloaded machine may make it fetch once more.
    fed_often = re.compile(r"^([89]|\d\d+)$")
    expect(page.locator("#core-heat")).to_have_attribute("data-fed", fed_often, timeout=60_000)


def test_a_cell_of_a_heat_map_and_a_bar_lead_to_their_pages(page: Page, fleet: str) -> None:
    page.goto(f"{fleet}/nodes/steady/")
    page.locator("#map summary").get_by_text("Heat maps").click()
    expect(page.locator("#core-heat")).to_have_attribute("data-state", "drawn")
    page.locator("#core-heat .chart-body").focus()
    for key in ("ArrowLeft", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator("#spoken")).to_have_text(
        re.compile(r"^core 3, device 1 of steady, \d\d:\d\d:\d\d UTC")
    )
    page.keyboard.press("Enter")
    page.wait_for_url(f"{fleet}/nodes/steady/devices/1/?window=15m")

    page.goto(f"{fleet}/runs/llama/")
    over = page.locator("#workers[data-state=drawn] .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    over.click(position={"x": box["width"] * 0.75, "y": box["height"] - 5})
    page.wait_for_url(f"{fleet}/nodes/limping/?window=15m")


# The labels that charts write, as text and box in pixels of the canvas.
WATCHED = """() => {
  window.written = [];
  const { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const { width } = this.measureText(text);
    const left = x - { center: width / 2, right: width }[this.textAlign] || x;
    written.push([text, left, y - 8, left + width, y]);
    return fillText.call(this, text, x, y);
  };
}"""


def test_labels_of_events_close_together_do_not_overlap(page: Page, fleet: str) -> None:
    def answer(route: Route) -> None:
        t = list(range(0, 900, 10))
        # A hang of 250 s, and what happens around it.
        long = [250 if second == 600 else 10 for second in t]
        kinds = ("alert", "drill", "checkpoint", "deploy", "compile", "restart")
        events = [
            [at, f"{kind}: what happened", kind, None, ""]
            for at, kind in zip((340, 352, 360, 395, 412, 470), kinds, strict=True)
        ]
        route.fulfill(
            json={
                "t": t,
                "series": [{"label": "compute", "values": long, "role": "compute"}],
                "unit": "s",
                "window": [0, 900],
                "every_s": 10,
                "limit": 11,
                "shade": [[350, 600, "began"]],
                "marks": [[10, "before 10 s", "peers"], [10.5, "usual 10.5 s", "threshold"]],
                "events": events,
            }
        )

    page.add_init_script(f"({WATCHED})()")
    page.route("**/charts/phases*", answer)
    page.goto(f"{fleet}/runs/llama/")
    expect(page.locator("#phases")).to_have_attribute("data-state", "drawn")
    page.evaluate("written.length = 0")
    with page.expect_response("**/charts/phases*"):
        page.evaluate("document.dispatchEvent(new CustomEvent('live:resumed'))")
    page.wait_for_function("written.some(([text]) => text === 'began')")

    written = page.evaluate("written")
    notes = ("began", "limit", "before", "usual", "↑", "happened", "alert")
    shown = [each for each in written if any(note in each[0] for note in notes)]
    assert {"began", "↑ 250\u202fs"} <= {text for text, *_ in shown}
    for i, (text, left, top, right, bottom) in enumerate(shown):
        for other, left_2, top_2, right_2, bottom_2 in shown[i + 1 :]:
            apart = left >= right_2 or left_2 >= right or top >= bottom_2 or top_2 >= bottom
            assert apart or text == other, (text, other)
