"""Take docs/screenshot.png of a trnwatch that runs: `screenshot.py http://127.0.0.1:8000`."""

import shutil
import sys

from common import CHROMIUMS, ROOT, give_up, say
from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1440, 900
# Long enough for the charts to fill and a few ticks to arrive.
SETTLE_MS = 5_000


def main(address: str) -> None:
    """Photograph the overview in the dark theme."""
    chromium = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if chromium is None:
        give_up("a screenshot needs chromium; on Debian: apt install chromium-headless-shell")
    target = ROOT / "docs" / "screenshot.png"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, chromium_sandbox=False)
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark", timezone_id="UTC"
        )
        page.goto(address)
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=target)
        browser.close()
    say(f"Wrote {target.relative_to(ROOT)}.")


if __name__ == "__main__":
    main(sys.argv[1])
