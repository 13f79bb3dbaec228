"""Print a trial: `slide.py http://127.0.0.1:8000 TRIAL FILE.pdf`, or FILE.png of the slide.

A PDF is refused unless slide and appendix are an A4 page across each.
"""

import re
import shutil
import sys
from pathlib import Path

from common import CHROMIUMS, give_up, say
from playwright.sync_api import FloatRect, sync_playwright

# A4 landscape at the 96 pixels per inch that browsers assume, and in PDF points.
WIDTH, HEIGHT, MARGIN = 1123, 790, 38
POINTS = (842, 595)
# A trial without a comparison yet has no slide.
MOST_PAGES = 2
PAGE = re.compile(rb"/Type\s*/Page\b")
BOX = re.compile(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)\s*\]")


def main(address: str, trial: str, file: str) -> None:
    """Print, check and write."""
    chromium = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if chromium is None:
        give_up("printing needs chromium; on Debian: apt install chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, chromium_sandbox=False)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, timezone_id="UTC")
        answer = page.goto(f"{address}/trials/{trial}/print/")
        if answer is None or not answer.ok or "/print/" not in page.url:
            give_up(f"{address} shows no trial {trial} to people who are not signed in")
        # The page chooses the sizes at which all of it fits.
        page.wait_for_selector("html[data-fitted]", state="attached")
        if file.endswith(".png"):
            sheet = page.locator(".sheet").first.bounding_box()
            top = sheet["y"] - MARGIN if sheet else 0
            clip = FloatRect(x=0, y=top, width=WIDTH, height=HEIGHT)
            page.screenshot(path=file, full_page=True, clip=clip)
        else:
            Path(file).write_bytes(checked(page.pdf(prefer_css_page_size=True)))
        browser.close()
    say(f"Wrote {file}.")


def checked(pdf: bytes) -> bytes:
    """Return a PDF of at most two A4 pages across; give up on any other."""
    boxes = [tuple(round(float(side)) for side in box) for box in BOX.findall(pdf)]
    if len(PAGE.findall(pdf)) > MOST_PAGES or set(boxes) != {POINTS}:
        give_up(f"the page came out as {len(PAGE.findall(pdf))} of {sorted(set(boxes))} points")
    return pdf


if __name__ == "__main__":
    main(*sys.argv[1:])
