"""Many visible tabs of one browser are live over HTTP/1.1, which allows six connections."""

import pytest
from playwright.sync_api import Page, expect

from fleet.models import Alert
from fleet.pages import live
from tests.browser.conftest import NODES

pytestmark = pytest.mark.browser

WITHIN_MS = 30_000
STATE = "#clock"


def opened(page: Page, *addresses: str) -> list[Page]:
    """Open each page in a window of its own, and wait until it is live."""
    tabs = [page, *(page.context.new_page() for _ in addresses[1:])]
    for tab, address in zip(tabs, addresses, strict=True):
        # The browser never answers where all its connections are taken.
        tab.goto(address, timeout=WITHIN_MS, wait_until="domcontentloaded")
        is_shown_as(tab, "live")
    return tabs


def is_shown_as(tab: Page, state: str) -> None:
    expect(tab.locator(STATE)).to_have_attribute("data-state", state, timeout=WITHIN_MS)


def is_going_on(tab: Page) -> None:
    """Wait for the next second of data."""
    shown = tab.locator("#as-of").inner_text()
    expect(tab.locator("#as-of")).not_to_have_text(shown, timeout=WITHIN_MS)
    is_shown_as(tab, "live")


def followed() -> int:
    """Count what the server sends, by topic and stream."""
    return sum(hub.n_watchers for hub in live._hubs.values())


def follows(page: Page, n: int) -> None:
    """Wait until the server sends so many topics."""
    for _ in range(WITHIN_MS // 250):
        if followed() == n:
            return
        page.wait_for_timeout(250)
    assert followed() == n


def test_ten_visible_tabs_load_and_are_live(page: Page, fleet: str) -> None:
    lists = ("/", "/nodes/", "/runs/", "/alerts/", "/alerts/?state=open", "/silences/")
    details = (*(f"/nodes/{name}/" for name in NODES), f"/alerts/{Alert.objects.get().pk}/")
    tabs = opened(page, *(f"{fleet}{path}" for path in (*lists, "/runs/llama/", *details)))

    for tab in tabs:
        assert tab.evaluate("document.visibilityState") == "visible"
        is_going_on(tab)
    follows(page, len(tabs))
    for tab in tabs[1:]:
        tab.close()
    follows(page, 1)


def test_a_tab_that_pauses_hangs_or_closes_takes_nothing_from_the_others(
    page: Page, fleet: str
) -> None:
    _, paused, hung = opened(page, f"{fleet}/alerts/", f"{fleet}/runs/", f"{fleet}/nodes/")
    follows(page, 3)

    paused.locator(STATE).click()
    is_shown_as(paused, "paused")
    follows(page, 2)
    # As a tab that crashed, or that the browser froze: it says no more that it is there.
    hung.evaluate("() => { for (let id = setTimeout(() => {}); id; id -= 1) clearTimeout(id) }")
    follows(page, 1)
    is_going_on(page)

    paused.locator(STATE).click()
    is_going_on(paused)
    hung.close()
    paused.close()
    follows(page, 1)
    is_going_on(page)
    page.goto("about:blank")
    follows(page, 0)


def test_a_browser_without_shared_workers_has_a_stream_per_tab(page: Page, fleet: str) -> None:
    page.add_init_script("delete window.SharedWorker")
    with page.expect_request("**/live?*"):
        opened(page, f"{fleet}/alerts/")
    is_going_on(page)


def test_a_worker_that_cannot_start_is_replaced_by_an_own_stream(page: Page, fleet: str) -> None:
    page.add_init_script(
        "const { SharedWorker: Shared } = window;"
        "window.SharedWorker = function (_, options) { return new Shared('/missing.js', options) }"
    )
    with page.expect_request("**/live?*"):
        opened(page, f"{fleet}/alerts/")
    is_going_on(page)
