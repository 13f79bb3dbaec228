"""Debian's Chromium shows a page."""

import pytest
from playwright.sync_api import Page


@pytest.mark.browser
def test_the_browser_shows_a_page(page: Page) -> None:
    page.set_content("<h1>Nothing is wrong.</h1>")

    assert page.locator("h1").inner_text() == "Nothing is wrong."
