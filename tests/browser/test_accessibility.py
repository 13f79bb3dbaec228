"""Every page, in both themes and on a phone: no serious barrier, and nothing sideways."""

from pathlib import Path

import pytest
from django.conf import settings
from playwright.sync_api import Page, expect

from fleet.models import Alert

pytestmark = pytest.mark.browser

AXE = Path(settings.ROOT) / "node_modules/axe-core/axe.min.js"
PAGES = (
    "/",
    "/nodes/",
    "/nodes/steady/",
    "/runs/",
    "/runs/llama/",
    "/alerts/",
    "/alerts/{alert}/",
    "/silences/",
    "/hand-over/",
    "/drills/",
    "/notifications/",
    "/support/",
    "/trials/",
    "/search?q=l",
    "/sign-in/",
)
ASK = """async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  return found.violations
    .filter(({impact}) => impact === "serious" || impact === "critical")
    .map(({id, nodes}) => [id, ...nodes.slice(0, 4).map(({html}) => html.slice(0, 160))]);
}"""


def opened(page: Page, fleet: str, path: str) -> None:
    """Open a page and wait until its charts are drawn."""
    page.goto(fleet + path.format(alert=Alert.objects.get().pk))
    expect(page.locator("figure.chart[data-state=loading]")).to_have_count(0)


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_no_serious_barrier_in_either_theme(page: Page, fleet: str, path: str) -> None:
    opened(page, fleet, path)
    # The page's own policy forbids foreign scripts; the debugger may bring one in.
    page.context.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    page.evaluate(AXE.read_text())

    page.emulate_media(color_scheme="light")
    assert page.evaluate(ASK) == []
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ASK) == []


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_never_scrolls_sideways(page: Page, fleet: str, path: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    opened(page, fleet, path)

    assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("path", ["/", "/alerts/{alert}/"])
def test_on_a_phone_everything_to_press_is_large_enough(page: Page, fleet: str, path: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    opened(page, fleet, path)
    small = """[...document.querySelectorAll("button, .btn, .nav a")]
      .filter((e) => e.offsetParent && !e.closest("dialog"))
      .filter((e) => e.getBoundingClientRect().height < 24 || e.getBoundingClientRect().width < 24)
      .map((e) => e.outerHTML.slice(0, 120))"""

    assert page.evaluate(small) == []
