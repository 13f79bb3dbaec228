"""A frozen page is the same an hour later, whatever happened since."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from fleet.charts.frozen import frozen_link
from fleet.models import Alert, AlertEvent, Annotation, InjectedFault, Node, Run
from fleet.runs.prices import with_prices
from tests.helpers import just_now

pytestmark = pytest.mark.browser

HOUR = timedelta(hours=1)
# What a reader sees: text, titles and addresses, and what can be pressed. After midnight a time
# has its date, because it is no longer today's.
SEEN = """() => {
  const main = document.querySelector("main").cloneNode(true);
  for (const drawn of main.querySelectorAll(".uplot")) drawn.remove();
  for (const time of main.querySelectorAll("time[data-form=clock], time[data-form=minute]"))
    time.textContent = time.textContent.replace(/^\\d+ [A-Z][a-z]+ /, "");
  return main.innerHTML.replace(/>\\s*</g, ">\\n<");
}"""


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the server's clock go ahead by an hour when called."""
    now = timezone.now

    def ahead() -> datetime:
        return now() + HOUR

    return lambda: monkeypatch.setattr(timezone, "now", ahead)


def happen(alert: Alert) -> None:
    """Let people and trnwatch do within the hour what they may do."""
    at = just_now() + timedelta(minutes=5)
    for kind, by in (("acknowledged", "olga"), ("commented", "olga"), ("resolved", "")):
        AlertEvent.objects.create(alert=alert, at=at, kind=kind, by=by, text="swapped the cable")
    changed = {"acknowledged_at": at, "acknowledged_by": "olga", "resolved_at": at}
    Alert.objects.filter(pk=alert.pk).update(**changed, cause="efa_latency", last_seen_at=at)
    Annotation.objects.create(at=at, kind="note", text="cable swapped", run=alert.run)
    InjectedFault.objects.update(ends_at=at)
    assert alert.run is not None
    tariff = with_prices(alert.run, [(at, 1.0, "cut")], now=at)
    over = {"phase": "finished", "finished_at": at + timedelta(minutes=9)}
    Run.objects.update(heard_at=at, tariff=tariff, **over)
    Node.objects.update(first_seen_at=just_now() - 2 * HOUR)


@pytest.mark.parametrize("of", ["alert", "run", "node"])
def test_a_frozen_page_is_the_same_an_hour_later(
    page: Page, fleet: str, run: Run, alert: Alert, later: Callable[[], None], of: str
) -> None:
    # Reports of the last seconds may still be on their way.
    now_s, ago = int(time.time()) - 5, timedelta(seconds=40)
    alert.onset_at, alert.fired_at = alert.onset_at - ago, alert.fired_at - ago
    alert.save()
    Annotation.objects.create(at=just_now(), kind="compile", text="compiles", run=alert.run)
    InjectedFault.objects.create(
        run=run,
        node=alert.node,
        kind="slow_core",
        magnitude=1.4,
        injected_by="olga",
        starts_at=just_now() - timedelta(seconds=50),
        ends_at=just_now() + timedelta(seconds=600),
    )
    alert.events.create(kind="fired", at=alert.fired_at, snapshot=alert.snapshot)
    window = f"?from={now_s - 100}&to={now_s}"
    path = {
        "alert": frozen_link(alert, at=datetime.fromtimestamp(now_s, UTC)),
        "run": f"/runs/llama/{window}",
        "node": f"/nodes/limping/{window}",
    }[of]
    page.clock.install()
    page.goto(fleet + path)
    expect(page.locator("figure.chart[data-state=drawn]").first).to_be_visible()
    expect(page.locator("figure.chart[data-state=loading]")).to_have_count(0)
    before = page.evaluate(SEEN)
    sources = [figure.get_attribute("data-src") for figure in page.locator("figure.chart").all()]
    data = [page.request.get(f"{fleet}{source}").json() for source in sources]

    page.clock.fast_forward("01:00:00")
    assert page.evaluate(SEEN) == before

    happen(alert)
    later()
    page.reload()
    expect(page.locator("figure.chart[data-state=drawn]").first).to_be_visible()
    expect(page.locator("figure.chart[data-state=loading]")).to_have_count(0)
    now, then = page.evaluate(SEEN).splitlines(), before.splitlines()
    assert [(a, b) for a, b in zip(now, then, strict=True) if a != b] == []
    assert [page.request.get(f"{fleet}{source}").json() for source in sources] == data
