"""A page that stays open for a shift: memory, elements and listeners do not grow."""

import numpy as np
import pytest
from playwright.sync_api import CDPSession, Page, expect

from fleet.models import Alert

pytestmark = pytest.mark.browser

# Keeps the port to the browser's stream, and of each event the two newest.
LISTEN = """
window.heard = new Map();
const { addEventListener } = MessagePort.prototype;
MessagePort.prototype.addEventListener = function (...rest) {
  window.stream = this;
  addEventListener.call(this, "message", ({ data: [name, data], isTrusted }) => {
    const [before = data] = window.heard.get(name) ?? [];
    if (isTrusted) window.heard.set(name, [data, before]);
  });
  return addEventListener.call(this, ...rest);
};
"""
# Plays n further seconds through that stream: what was heard, in turns; points and clock go on.
PLAY = """async ([from, n]) => {
  for (let second = from; second < from + n; second += 1) {
    for (const [name, texts] of window.heard) {
      if (name === "is-open") continue;
      let data = texts[second % 2];
      if (name === "points") {
        const charts = JSON.parse(data);
        for (const chart of Object.values(charts)) chart.t = chart.t.map((t) => t + second);
        data = JSON.stringify(charts);
      }
      window.stream.dispatchEvent(new MessageEvent("message", { data: [name, data] }));
    }
    if (second % 20 === 0) await new Promise((resolve) => requestAnimationFrame(resolve));
  }
}"""
WARM_UP_S, PLAYED_S = 200, 600
# What may remain after that, as of a chart that was fetched again meanwhile: its last drawing.
# A leak of one element or listener an update is 600 of them.
MOST = (150, 60, 600_000)  # elements, listeners, bytes
PATIENCE = 20


def usage(debugger: CDPSession) -> tuple[int, int, int]:
    """Return the elements, listeners and bytes that the tab holds after garbage collection."""
    for _ in range(3):
        debugger.send("HeapProfiler.collectGarbage")
    metrics = debugger.send("Performance.getMetrics")["metrics"]
    held = {each["name"]: int(each["value"]) for each in metrics}
    return held["Nodes"], held["JSEventListeners"], held["JSHeapUsedSize"]


def test_a_page_that_stays_open_for_a_shift_holds_no_more_than_at_its_start(
    page: Page, fleet: str
) -> None:
    page.add_init_script(LISTEN)
    debugger = page.context.new_cdp_session(page)
    debugger.send("Performance.enable")
    for path in ("/", "/runs/llama/", f"/alerts/{Alert.objects.get().pk}/"):
        page.goto(fleet + path)
        expect(page.locator("figure.chart[data-state=loading]")).to_have_count(0)
        # The page's policy forbids what `wait_for_function` evaluates.
        for _ in range(PATIENCE):
            if page.evaluate("window.heard.has('tick') && window.heard.size > 4"):
                break
            page.wait_for_timeout(500)

        page.evaluate(PLAY, [0, WARM_UP_S])
        before = usage(debugger)
        page.evaluate(PLAY, [WARM_UP_S, PLAYED_S])
        # What is being drawn or fetched is held until it is done; a leak stays.
        for _ in range(PATIENCE):
            more = np.subtract(usage(debugger), before)
            if (more <= MOST).all():
                break
            page.wait_for_timeout(500)
        assert (more <= MOST).all(), (path, more)
