"""The culprit's cell has the strongest colour, on the overview and on its node's page."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from fleet.models import Node
from telemetry.blocks import Block
from telemetry.store.hot import HotStore
from tests.helpers import NOON, block

pytestmark = pytest.mark.browser

SPARES = tuple(f"spare-{i}" for i in range(4))
CULPRIT, DEVICE = 2, 4
# The distance of each cell's colour from that of most cells, by row of the overview's map.
DISTANCES = """() => {
  const group = document.querySelector("[aria-label='no run']");
  const rows = [...group.querySelectorAll(".heatrow")].map((row) => {
    const canvas = row.querySelector("canvas");
    const n = canvas.width;
    const data = canvas.getContext("2d").getImageData(0, 0, n, 1).data;
    return [row.id, Array.from({ length: n }, (_, i) => [...data.slice(4 * i, 4 * i + 3)])];
  });
  const all = rows.flatMap(([, cells]) => cells.map(String));
  const count = (cell) => all.filter((each) => each === cell).length;
  const usual = all.toSorted((a, b) => count(b) - count(a))[0].split(",").map(Number);
  const distance = (cell) => Math.hypot(...cell.map((c, k) => c - usual[k]));
  return rows.map(([id, cells]) => [id, cells.map(distance)]);
}"""
# The colours of the middle of rows of a chart, at its right end, and those of the style sheet.
ROWS = """(n) => {
  const canvas = document.querySelector("#efa-latency-heat canvas");
  const plot = document.querySelector("#efa-latency-heat .u-over").getBoundingClientRect();
  const box = canvas.getBoundingClientRect();
  const zoom = canvas.width / box.width;
  const x = Math.round((plot.right - box.left - plot.width * 0.012) * zoom);
  const y = (row) => Math.round((plot.top - box.top + (plot.height * (row + 0.5)) / n) * zoom);
  const pixel = (row) => [...canvas.getContext("2d").getImageData(x, y(row), 1, 1).data];
  const hex = (byte) => byte.toString(16).padStart(2, "0");
  const inkOf = (row) => `#${pixel(row).slice(0, 3).map(hex).join("")}`;
  const inks = Array.from({ length: n }, (_, row) => inkOf(row));
  const css = getComputedStyle(document.documentElement);
  const ink = (name) => css.getPropertyValue(`--heat-${name}`).trim();
  return [inks, ink("high"), ink("calm")];
}"""


@contextmanager
def reporting(hot: HotStore, *, is_slow: bool) -> Iterator[Event]:
    """Let four more nodes report; an EFA device of one answers late, or does once told."""
    Node.objects.bulk_create(
        Node(
            name=name,
            rank=rank,
            shard="spare/0",
            instance_type="trn1.32xlarge",
            n_cores=32,
            n_devices=16,
            n_efa=8,
            first_seen_at=NOON,
        )
        for rank, name in enumerate(SPARES)
    )
    now_s, ended, broken = int(time.time()), Event(), Event()
    if is_slow:
        broken.set()
    hot.append(report(tick, is_slow=is_slow) for tick in range(now_s - 60, now_s))

    def go_on() -> None:
        newest = now_s - 1
        while not ended.wait(0.5):
            ticks = range(newest + 1, int(time.time()) + 1)
            hot.append(report(tick, is_slow=broken.is_set()) for tick in ticks)
            newest = max(newest, *ticks, 0)

    thread = Thread(target=go_on)
    thread.start()
    try:
        yield broken
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def slow_link(fleet: str, hot: HotStore) -> Iterator[str]:
    """Let one EFA device of four more nodes answer late; gives the address."""
    with reporting(hot, is_slow=True):
        yield fleet


def report(tick: int, *, is_slow: bool) -> Block:
    """Return a second of the nodes, in which one EFA device may answer late."""
    # The same each second: by chance a healthy device stands out a little, too.
    noise = np.random.default_rng(1).permutation(np.linspace(-1, 1, 32)).reshape(4, 8)
    latency = 16.5e-6 * (1 + 0.02 * noise)
    if is_slow:
        latency[CULPRIT, DEVICE] = 144e-6
    return block("spare/0", tick, SPARES, efa_latency_s=latency)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_culprit_has_the_strongest_colour_and_the_first_row(
    page: Page, slow_link: str, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(slow_link)
    expect(page.locator("[aria-label='no run'] .finding")).to_contain_text("EFA 4 of spare-2")

    (first, culprit), *peers = page.evaluate(DISTANCES)

    assert first == f"heat-{SPARES[CULPRIT]}"
    strongest = culprit.pop(DEVICE)
    assert strongest > 100
    assert max(max(cells) for cells in [culprit, *(row[1] for row in peers)]) < strongest / 2


def test_on_its_page_the_culprit_is_the_bright_row_in_the_first_screen_of_a_phone(
    page: Page, slow_link: str
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    node = Node.objects.get(name=SPARES[CULPRIT])
    page.goto(f"{slow_link}{node.get_absolute_url()}")
    chart = page.locator("#efa-latency-heat")
    expect(chart).to_have_attribute("data-state", "drawn")

    expect(page.locator("#standout")).to_contain_text("EFA 4: EFA latency 144")
    inks, high, calm = page.evaluate(ROWS, 8)
    assert inks[0] == high
    assert inks.count(calm) == 7
    box = chart.locator("canvas").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 740 - 54, "above the bar at the foot"
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_a_signal_is_chosen_and_its_rows_are_read_by_keys(page: Page, slow_link: str) -> None:
    page.goto(f"{slow_link}/nodes/{SPARES[CULPRIT]}/")
    page.locator("#map .chart-choices").get_by_text("HBM bandwidth").click()
    page.wait_for_url("**/?signal=hbm#map")
    expect(page.locator("#hbm-heat")).to_have_attribute("data-state", "drawn")
    page.locator("#map .chart-choices").get_by_text("What stands out").click()
    expect(page.locator("#efa-latency-heat")).to_have_attribute("data-state", "drawn")

    page.locator("#efa-latency-heat .chart-body").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#spoken")).to_contain_text("EFA 4")
    expect(page.locator("#spoken")).to_contain_text(re.compile(r"peers 16\.\d"))


def test_the_maps_of_a_node_unfold_when_a_part_begins_to_stand_out(
    page: Page, fleet: str, hot: HotStore
) -> None:
    with reporting(hot, is_slow=False) as break_it:
        page.goto(f"{fleet}/nodes/{SPARES[CULPRIT]}/")
        expect(page.locator("#standout")).to_contain_text("Nothing stands out")
        expect(page.locator("#maps")).not_to_have_attribute("open", "")

        break_it.set()
        expect(page.locator("#maps")).to_have_attribute("open", "", timeout=30_000)
        expect(page.locator("#efa-latency-heat")).to_have_attribute("data-state", "drawn")

        # Who folds them has seen them: they ask no more.
        page.locator("#maps > summary").click()
        expect(page.locator("#maps")).not_to_have_attribute("open", "")
        expect(page.locator("#maps[hx-trigger]")).to_have_count(0)
