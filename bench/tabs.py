"""What a browser's tab receives of a large fleet: at first, and each second; and pictures."""

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import quote

from django.conf import settings
from playwright.sync_api import Browser, Page

from bench.cost import jump
from bench.fleet import AGE_S, signed_in, web_servers
from bench.pages import PAST, fill, first_of
from bench.start import browser
from bench.table import print_table
from fleet.ops.static_files import collect_if_needed
from telemetry.store.hot import HotStore, open_store

# Where a tab is moved to: `{node}` and `{run}` are of the largest run.
PATHS = {
    "overview": "/",
    "overview, by HBM bandwidth": "/?signal=hbm_bandwidth_bytes_per_s",
    "nodes": "/nodes/",
    "node": "/nodes/{node}/",
    "runs": "/runs/",
    "run": "/runs/{run}/",
    "alerts": "/alerts/",
    "search": "/search?q={node}",
}
SIZES, SCHEMES = ((360, 780), (1280, 900), (2560, 1440)), ("light", "dark")
# What a tab is sent at first is over after this.
SETTLE_S = 6
STREAM = "EventSource"
SHOWN = ("first_bytes", "stream_bytes", "bytes_per_s")


def measure(
    env: Mapping[str, str], *, nodes: int = 1_000, runs: int = 16, seconds: int = 20
) -> dict[str, Any]:
    """Open pages in Chromium; print the bytes of the first load, and of each second after it."""
    hot, folder = open_store(settings.REDIS_URL), Path(settings.DATA_DIR)
    # As `up` does: with hashed names, and compressed.
    collect_if_needed(settings.STATIC_ROOT)
    fill(hot, nodes=nodes, runs=runs, age_s=AGE_S)
    node, run = first_of(nodes)
    pictures = Path(tempfile.mkdtemp(prefix="trnwatch-tabs-"))
    cookie, _, session = signed_in()["Cookie"].partition("=")
    pages = {}
    with live(hot), web_servers(folder, env) as (port, _), browser() as chromium:
        address = f"http://127.0.0.1:{port}"
        kept: list[Any] = [{"name": cookie, "value": session, "url": address}]
        for name, path in PATHS.items():
            context = chromium.new_context(viewport={"width": 1280, "height": 900})
            context.add_cookies(kept)
            page = context.new_page()
            pages[name] = received(page, address + path.format(node=node, run=quote(run)), seconds)
            context.close()
            kb = {kind: each / 1e3 for kind, each in pages[name].items() if kind in SHOWN}
            rows = [(kind, f"{each:.1f} kB") for kind, each in kb.items()]
            print_table(f"{name} of {nodes:,} nodes in {runs} runs, over {seconds} s", rows)
        take_pictures(chromium, address, kept, pictures)
    print_table("Pictures", [("overview", str(pictures))])
    return {"nodes": nodes, "runs": runs, "pages": pages, "pictures": str(pictures)}


@contextmanager
def live(hot: HotStore) -> Iterator[None]:
    """Play the fleet for as long as the block lasts, each second if the machine can."""
    is_over = Event()

    def play_on() -> None:
        while not is_over.is_set():
            now_s = int(time.time())
            jump(hot, now_s)
            hot.note(
                {}, {"watched_at_s": now_s, "listening_since_s": now_s - PAST.total_seconds()}
            )
            hot.publish_tick(now_s)
            is_over.wait(1 - time.time() % 1)

    thread = Thread(target=play_on)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def received(page: Page, address: str, seconds: int) -> dict[str, Any]:
    """Open a page, and count the bytes that its tab receives, by kind of request."""
    kinds: dict[str, str] = {}
    n_bytes: Counter[str] = Counter()
    # The network of a shared worker is not that of its tab.
    page.add_init_script("delete window.SharedWorker")
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    network.on("Network.requestWillBeSent", lambda e: kinds.update({e["requestId"]: e["type"]}))

    def count(event: dict[str, Any], *, of_stream: bool) -> None:
        kind = kinds.get(event["requestId"], "other")
        if (kind == STREAM) == of_stream:
            n_bytes[kind] += event["encodedDataLength"]

    # Bytes as they were sent, compressed; a stream never ends, all else is counted with headers.
    network.on("Network.dataReceived", lambda e: count(e, of_stream=True))
    network.on("Network.loadingFinished", lambda e: count(e, of_stream=False))
    page.goto(address, timeout=120_000)
    page.wait_for_timeout(1e3 * SETTLE_S)
    first = Counter(n_bytes)
    page.wait_for_timeout(1e3 * seconds)
    return {
        "first_bytes": int(first.total() - first[STREAM]),
        "first_by_kind": {kind: int(n) for kind, n in first.items()},
        "stream_bytes": int(first[STREAM]),
        "bytes_per_s": round((n_bytes.total() - first.total()) / seconds),
    }


def take_pictures(chromium: Browser, address: str, cookies: list[Any], folder: Path) -> None:
    """Take pictures of the overview, whole, at each width and colour scheme."""
    for width, height in SIZES:
        for scheme in SCHEMES:
            context = chromium.new_context(
                viewport={"width": width, "height": height},
                color_scheme=scheme,  # type: ignore[arg-type]
            )
            context.add_cookies(cookies)
            page = context.new_page()
            page.goto(address, timeout=120_000)
            page.wait_for_timeout(1e3 * SETTLE_S)
            page.screenshot(path=folder / f"overview-{width}-{scheme}.png", full_page=True)
            context.close()
