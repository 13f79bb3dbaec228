"""Nothing jumps: what a page shows late has its room from the first paint on."""

import time

import pytest
from playwright.sync_api import Page, Route, expect

from fleet.models import Alert

pytestmark = pytest.mark.browser

SLOW_S = 0.6
MOST = 0.02
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


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("path", ["/nodes/steady/", "/alerts/{alert}/"])
def test_charts_have_their_room_before_their_script_is_there(
    page: Page, fleet: str, path: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.add_init_script(COUNT)
    page.route("**/main*.js", late)
    page.goto(fleet + path.format(alert=Alert.objects.get().pk))

    expect(page.locator("figure.chart[data-state=drawn]").first).to_be_visible()
    expect(page.locator("figure.chart[data-state=loading]")).to_have_count(0)
    assert page.evaluate("window.shifted") < MOST
