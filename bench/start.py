"""The first minute of `make up`: a picture each second, when a chart moves, what is said."""

import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Page, sync_playwright

from bench.installation import ROOT
from bench.table import print_table
from tests.conftest import CHROMIUM
from tests.fleet.ops.installation import environment
from tests.helpers import free_port

FILMED_S = 60
PAGES = {"overview": "/", "nodes": "/nodes/", "alerts": "/alerts/", "trials": "/trials/"}
# The sentences that say what is known: the notice above a page, the progress, sums, empty tables.
SENTENCES = "#why:not([hidden]), .demo, .strip > div, .empty, .stale-why:not([hidden])"
# A chart moves once data are live, it has a value, and its picture is another than before.
CHART = """() => {
    const canvas = document.querySelector("#shares canvas");
    const shown = [...document.querySelectorAll("#shares .chart-legend em")];
    const has = shown.some((each) => /\\d/.test(each.textContent));
    const live = document.getElementById("clock")?.dataset.state === "live";
    return live && has && canvas ? canvas.toDataURL() : "";
}"""


def measure(_: Mapping[str, str]) -> dict[str, Any]:
    """Film a first start and a second one; print the times and every sentence once."""
    pictures = Path(tempfile.mkdtemp(prefix="trnwatch-start-"))
    with tempfile.TemporaryDirectory(prefix="trnwatch bench ") as name:
        folder = Path(name, "data")
        folder.mkdir(mode=0o700)
        starts = {which: film(folder, pictures / which) for which in ("first", "second")}
    for which, figures in starts.items():
        times = [(key, str(value)) for key, value in figures.items() if key != "sentences"]
        said = [
            (f"{each['at_s']:.0f} s, {each['page']}", each["text"])
            for each in figures["sentences"]
        ]
        print_table(f"The {which} start", [*times, *said])
    return {"bench": "start", "pictures": str(pictures), "starts": starts}


def film(folder: Path, pictures: Path) -> dict[str, Any]:
    """Start on a data folder and look at its pages for a minute."""
    pictures.mkdir(parents=True)
    port = free_port()
    env = environment(folder, PORT=str(port), TRNWATCH_DEMO="1")
    # The browser of who starts trnwatch runs already.
    with browser() as chromium, (pictures / "console").open("wb") as console:
        began_s = time.monotonic()
        up = subprocess.Popen(
            [sys.executable, "manage.py", "up"], cwd=ROOT, env=env, stdout=console, stderr=console
        )
        try:
            wait_for_page(f"http://127.0.0.1:{port}/", up)
            first_page_s = time.monotonic() - began_s
            seen = watch(chromium, f"http://127.0.0.1:{port}", pictures, began_s=began_s)
            return {"first_page_s": round(first_page_s, 1), "cpu_s": cpu_s(up.pid), **seen}
        finally:
            up.terminate()
            up.wait()


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, chromium_sandbox=False)
        yield chromium
        chromium.close()


def wait_for_page(address: str, up: subprocess.Popen[bytes]) -> None:
    """Wait until a page is answered; a start that failed ends the benchmark."""
    while True:
        try:
            with urllib.request.urlopen(address, timeout=60):
                return
        except (urllib.error.URLError, OSError):
            if up.poll() is not None:
                sys.exit("`manage.py up` ended before its first page.")
            time.sleep(0.05)


def watch(chromium: Browser, address: str, pictures: Path, *, began_s: float) -> dict[str, Any]:
    """Take the pictures; gives when the chart was live and moved, and when a sentence was seen.

    The chart of the overview has a point each five seconds: so much later it may move.
    """
    said: dict[tuple[str, str], float] = {}
    live_s, moved_s, drawn = None, None, ""
    tabs = {name: chromium.new_page() for name in PAGES}
    tabs["overview"].goto(address)
    while (at_s := time.monotonic() - began_s) < FILMED_S:
        for name, tab in tabs.items():
            if name != "overview":
                tab.goto(address + PAGES[name])
            for text in sentences(tab):
                said.setdefault((name, text), at_s)
            tab.screenshot(path=pictures / f"{at_s:04.1f}-{name}.png")
            # Looked at between the other pages too: the chart is what is timed.
            now_drawn = str(tabs["overview"].evaluate(CHART))
            if moved_s is None and drawn and now_drawn and now_drawn != drawn:
                moved_s = round(time.monotonic() - began_s, 1)
            if live_s is None and now_drawn:
                live_s = round(time.monotonic() - began_s, 1)
            drawn = now_drawn or drawn
        time.sleep(max(0.0, 1 - (time.monotonic() - began_s - at_s)))
    rows = [{"at_s": round(s, 1), "page": page, "text": text} for (page, text), s in said.items()]
    return {"first_live_chart_s": live_s, "first_moving_chart_s": moved_s, "sentences": rows}


def sentences(tab: Page) -> list[str]:
    texts = tab.locator(SENTENCES).all_inner_texts()
    return [" ".join(text.split()) for text in texts if text.strip()]


def cpu_s(pid: int) -> float:
    """Sum up the CPU seconds of a process, its children, and those of them that ended."""
    up = psutil.Process(pid)
    spent = [each.cpu_times() for each in (up, *up.children(recursive=True))]
    total = sum(s.user + s.system + s.children_user + s.children_system for s in spent)
    return round(total, 1)
