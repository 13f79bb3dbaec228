"""Every page, in both themes and on a phone: no serious barrier, and nothing sideways."""

from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
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
    "/compiles/",
    "/preflight/",
    "/runs/llama/money/",
    "/runbooks/allreduce_share/",
    "/search?q=l",
    "/sign-in/",
)
# What only those see who have signed in, and may.
BEHIND_A_ROLE = (
    "/annotations/add/",
    "/prices/",
    "/budgets/",
    "/tokens/",
    "/silences/new/",
    "/drills/new/",
    "/notifications/receivers/new/",
    "/notifications/routes/new/",
)
# Where a phone is used to act.
PRESSED = ("/", "/alerts/{alert}/", "/silences/", "/drills/", "/runs/llama/")
# What is too small to press. What stands in a line of words, or lies upon a chart, may be smaller.
SMALL = """[...document.querySelectorAll("button, .btn, .nav a, select, main input")]
  .filter((e) => e.offsetParent && !e.matches(".how, .chart-reset") && !e.closest("dialog"))
  .filter((e) => e.getBoundingClientRect().height < 44 || e.getBoundingClientRect().width < 44)
  .map((e) => e.outerHTML.slice(0, 120))"""
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


@pytest.fixture
def admin(page: Page, fleet: str, client: Client) -> str:
    """Let an admin look; gives the address of the fleet."""
    client.force_login(User.objects.create_superuser("admin"))
    session = client.cookies["trnwatch_session"].value
    page.context.add_cookies([{"name": "trnwatch_session", "value": session, "url": fleet}])
    return fleet


def barriers(page: Page) -> list[object]:
    """Return what axe finds on a page, in light and in dark."""
    # The page's own policy forbids foreign scripts; the debugger may bring one in.
    page.context.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    page.evaluate(AXE.read_text())
    page.emulate_media(color_scheme="light")
    found = page.evaluate(ASK)
    page.emulate_media(color_scheme="dark")
    return [*found, *page.evaluate(ASK)]


def look(page: Page, fleet: str, path: str) -> None:
    """Look at a page once: first as on a phone, then as on a desk, there in both themes."""
    page.set_viewport_size({"width": 360, "height": 740})
    opened(page, fleet, path)

    assert page.evaluate("document.documentElement.scrollWidth") == 360
    if path in PRESSED:
        assert page.evaluate(SMALL) == []
    if path in BEHIND_A_ROLE:
        assert barriers(page) == []
    else:
        page.set_viewport_size({"width": 1280, "height": 900})
        assert barriers(page) == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_no_barrier_and_fits_a_phone(page: Page, fleet: str, path: str) -> None:
    look(page, fleet, path)


@pytest.mark.parametrize("path", BEHIND_A_ROLE)
def test_so_it_is_behind_a_role(page: Page, admin: str, path: str) -> None:
    look(page, admin, path)
