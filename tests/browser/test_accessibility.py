"""Every page, narrow and wide, light and dark: axe finds no violation, and nothing overflows."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.conf import settings
from playwright.sync_api import Page, expect

from fleet.alerts import acknowledge
from fleet.models import Alert, Node
from tests.fleet.samples import requested, taken

pytestmark = pytest.mark.browser

AXE = Path(settings.ROOT) / "node_modules/axe-core/axe.min.js"
PAGES = (
    "/",
    "/?at={at}",
    "/nodes/",
    "/nodes/steady/",
    "/nodes/steady/devices/3/",
    "/nodes/steady/samples/{sample}/",
    "/problem-nodes/",
    "/tour/",
    "/runs/",
    "/compare-runs/?run=llama",
    "/runs/llama/",
    "/alerts/",
    "/alerts/{alert}/",
    "/alerts/{alert}/post-mortem/",
    "/silences/",
    "/hand-over/",
    "/changes/",
    "/drills/",
    "/support/",
    "/trials/",
    "/compiles/",
    "/rules/",
    "/preflight/",
    "/runs/llama/money/",
    "/runs/llama/workers/",
    "/runbooks/allreduce_share/",
    "/runbooks/input-tiers/",
    "/docs/operations/",
    "/search?q=l",
    "/connect/",
    "/sign-in/",
)
# What only those see who have signed in, and may; those of notifications are in
# test_notifications.py.
BEHIND_A_ROLE = (
    "/account/",
    "/annotations/add/",
    "/prices/",
    "/budgets/",
    "/people/",
    "/tokens/",
    "/silences/new/",
    "/drills/new/",
    "/notifications/routes/new/",
)
# Where a phone is used to act.
PRESSED = ("/", "/alerts/{alert}/", "/silences/", "/drills/", "/runs/llama/")
# What is too small to press. What stands in a line of words, or lies upon a chart, may be smaller.
SMALL = """[...document.querySelectorAll("button, .btn, .nav a, select, main input")]
  .filter((e) => e.offsetParent && !e.closest("dialog"))
  .filter((e) => !e.matches(".how, .chart-reset, [data-series]"))
  .filter((e) => e.getBoundingClientRect().height < 44 || e.getBoundingClientRect().width < 44)
  .map((e) => e.outerHTML.slice(0, 120))"""
ASK = """async () => {
  // The size of what is pressed is a rule of WCAG 2.2, which axe leaves out unless asked.
  const rules = {"target-size": {enabled: true}};
  const found = await axe.run(document, {resultTypes: ["violations"], rules});
  const start = ({html}) => html.slice(0, 160);
  const barriers = found.violations.map(({id, nodes}) => [id, ...nodes.slice(0, 4).map(start)]);
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  const twice = ids.filter((id, i) => ids.indexOf(id) < i).map((id) => ["id twice", id]);
  return [...twice, ...barriers];
}"""


def open_on_phone(page: Page, address: str) -> None:
    """Open a page at the size of a phone and wait until its charts are drawn."""
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(address)
    expect(page.locator("figure.chart[data-state=loading]")).to_have_count(0)


def barriers(page: Page) -> list[object]:
    """Return what axe finds on a page: dark and narrow, light and wide."""
    # The page's own policy forbids foreign scripts; the debugger may bring one in.
    page.context.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    page.evaluate(AXE.read_text())
    page.emulate_media(color_scheme="dark")
    found = page.evaluate(ASK)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")
    return [*found, *page.evaluate(ASK)]


def test_no_page_has_a_barrier_and_each_fits_a_phone(page: Page, fleet: str) -> None:
    alert, found = Alert.objects.get().pk, {}
    steady, at = Node.objects.get(name="steady"), int(time.time()) - 10
    sample = taken(steady, now=datetime.now(UTC)).pk
    requested(steady, now=datetime.now(UTC))
    Alert.objects.update(victims=[f"pretrain-{i:02d}" for i in range(12)])
    for path in PAGES:
        open_on_phone(page, fleet + path.format(alert=alert, sample=sample, at=at))
        too_wide = page.evaluate("document.documentElement.scrollWidth") - 360
        too_small = page.evaluate(SMALL) if path in PRESSED else []
        found[path] = (too_wide, too_small, barriers(page))

    assert found == dict.fromkeys(PAGES, (0, [], []))


def test_a_long_name_fits_a_phone(page: Page, fleet: str) -> None:
    by = "the demonstration account of the fleet"
    acknowledge(Alert.objects.get(), by=by, comment="", now=datetime.now(UTC))
    open_on_phone(page, f"{fleet}/hand-over/?hours=8")

    expect(page.locator("#open")).to_contain_text(by)
    assert page.evaluate("document.documentElement.scrollWidth") == 360

    open_on_phone(page, fleet + Alert.objects.get().get_absolute_url())
    tag = page.locator("#story .tag").filter(has_text=by).bounding_box()
    panel = page.locator("#story").bounding_box()
    assert tag is not None
    assert panel is not None
    assert tag["x"] + tag["width"] <= panel["x"] + panel["width"]


def test_no_page_behind_a_role_has_a_barrier_on_a_phone(page: Page, admin: str) -> None:
    found = {}
    for path in BEHIND_A_ROLE:
        open_on_phone(page, admin + path)
        too_wide = page.evaluate("document.documentElement.scrollWidth") - 360
        found[path] = (too_wide, barriers(page))

    assert found == dict.fromkeys(BEHIND_A_ROLE, (0, []))
