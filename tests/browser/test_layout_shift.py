"""No layout shift: late content has its space reserved from the first paint."""

import time

import pytest
from playwright.sync_api import Page, Route, expect

from fleet.models import Alert

pytestmark = pytest.mark.browser

SLOW_S = 0.6
# Takes the parts of each layout of two columns away from behind, as if they had not arrived yet;
# gives those before them that stand elsewhere then.
MOVED = """
() => {
  const moved = [];
  const place = ({left, top, width}) => `${left} ${top} ${width}`;
  for (const layout of document.querySelectorAll("main :is(.cols, .incident-head, .leads)")) {
    const parts = [...layout.children];
    const places = parts.map((part) => place(part.getBoundingClientRect()));
    while (parts.length > 1) {
      parts.pop().remove();
      parts.forEach((part, i) => {
        const now = place(part.getBoundingClientRect());
        if (now !== places[i]) moved.push(part.id || part.className);
      });
    }
  }
  return moved;
}
"""
MOST = 0.02
IN_ONE_COLUMN = "/nodes/steady/"
PATHS = ("/", IN_ONE_COLUMN, "/runs/llama/", "/alerts/{alert}/")
COUNT = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
}).observe({type: "layout-shift", buffered: true});
"""


def late(route: Route) -> None:
    """Let a script come well after the page was painted."""
    time.sleep(SLOW_S)
    route.continue_()


def test_nothing_moves_when_the_script_or_a_later_part_arrives(page: Page, fleet: str) -> None:
    page.add_init_script(COUNT)
    page.route("**/main*.js", late)
    alert, found = Alert.objects.get().pk, {}
    for path in PATHS:
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto(fleet + path.format(alert=alert))
            expect(page.locator("figure.chart[data-state=drawn]").first).to_be_visible()
            expect(page.locator("figure.chart[data-state=loading]")).to_have_count(0)
            shifted = page.evaluate("window.shifted")
            assert (page.locator("main :is(.cols, .incident-head) > *").count() > 1) is (
                path != IN_ONE_COLUMN
            )
            found[path, width] = (shifted < MOST, page.evaluate(MOVED))

    assert found == dict.fromkeys(found, (True, []))
