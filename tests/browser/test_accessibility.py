"""Every page, in both themes and on a phone: no serious barrier, nothing sideways, no complaint."""

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
    "/search?q=l",
    "/sign-in/",
    "/no-such-page/",
)
ASK = """async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  return found.violations
    .filter(({impact}) => impact === "serious" || impact === "critical")
    .map(({id, nodes}) => `${id}: ${nodes.map(({html}) => html.slice(0, 160)).slice(0, 4).join(" | ")}`);
}"""


def opened(page: Page, fleet: str, path: str) -> None:
    """Open a page and wait until its charts are drawn."""
    page.goto(fleet + path.format(alert=Alert.objects.get().pk))
    expect(page.locator("figure.chart[data-state=loading]")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", [path for path in PAGES if path != "/no-such-page/"])
def test_axe_finds_no_serious_barrier(page: Page, fleet: str, path: str, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    opened(page, fleet, path)
    # The page's own policy forbids foreign scripts; the debugger may bring one in.
    page.context.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    page.evaluate(AXE.read_text())

    assert page.evaluate(ASK) == []


@pytest.mark.parametrize("path", [path for path in PAGES if path != "/no-such-page/"])
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
