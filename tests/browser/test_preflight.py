"""A preflight in a browser: accessibility and width."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from pytest_django import Settings

from fleet.models import Preflight
from tests.browser.test_accessibility import ASK, AXE
from tests.fleet.pages.preflights import done

pytestmark = pytest.mark.browser


@pytest.fixture
def over(address: str, settings: Settings, page: Page) -> Iterator[str]:
    """Give the address of a preflight that is over, for anybody to read."""
    settings.ANONYMOUS_READING = settings.ALLOW_DRILLS = True
    preflight: Preflight = done()
    yield f"{address}{preflight.get_absolute_url()}"
    # The server goes before the tab does.
    page.goto("about:blank")


def test_axe_finds_no_barrier_in_either_theme_and_a_phone_never_scrolls_sideways(
    page: Page, over: str
) -> None:
    page.goto(over)
    expect(page.locator("#collective")).to_be_visible()
    page.context.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    page.evaluate(AXE.read_text())

    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert page.evaluate(ASK) == []
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_function("document.documentElement.scrollWidth === 360")
