"""From the link in a page to the cause and to acknowledgement in two taps."""

import re
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import Group, User
from playwright.sync_api import Page, ViewportSize, expect

from fleet.alerts.record import Observation
from fleet.charts.frozen import frozen_link
from fleet.formatting import moment
from fleet.models import Alert, Run
from tests.helpers import just_now

pytestmark = pytest.mark.browser

PASSWORD = "a long enough secret"
PHONE: ViewportSize = {"width": 360, "height": 640}


@pytest.fixture
def on_call(page: Page, fleet: str) -> Page:
    """Sign in on a phone, as people on call already are."""
    olga = User.objects.create_user("olga", password=PASSWORD)
    olga.groups.add(Group.objects.get(name="operator"))
    page.set_viewport_size(PHONE)
    page.goto(f"{fleet}/sign-in/")
    page.get_by_label("Name").fill("olga")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{fleet}/")
    return page


def is_visible(page: Page, selector: str) -> bool:
    """Whether an element is wholly on the screen, above the bar and below the head."""
    box = page.locator(selector).first.bounding_box()
    return box is not None and box["y"] >= 0 and box["y"] + box["height"] <= PHONE["height"]


def test_page_link_cause_acknowledge_are_two_taps(on_call: Page, fleet: str, alert: Alert) -> None:
    on_call.goto(fleet + frozen_link(alert, at=just_now()))
    expect(on_call.get_by_role("button", name="Acknowledge")).to_have_count(0)
    on_call.locator("#act").get_by_role("link", name="Open current state").click()
    expect(
        on_call.locator("#act").get_by_role("button", name="Acknowledge", exact=True)
    ).to_be_visible()

    link = fleet + alert.get_absolute_url()
    on_call.set_content(f"<a href='{link}'>llama spends 31.4 % of each step</a>")
    on_call.get_by_role("link").click()
    on_call.wait_for_url("**/alerts/**")
    assert "Core 7 of limping is slow" in on_call.locator("h1.verdict").inner_text()
    on_call.locator("#act").get_by_role("button", name="Acknowledge", exact=True).click()

    expect(on_call.get_by_role("button", name="Unacknowledge")).to_be_visible()
    alert.refresh_from_db()
    assert alert.acknowledged_by == "olga"


def test_verdict_buttons_step_and_chart_need_no_scrolling_and_the_rest_one_tap(
    on_call: Page, fleet: str, alert: Alert
) -> None:
    on_call.goto(f"{fleet}{alert.get_absolute_url()}")
    for part in ("h1.verdict", "#story .sentence", "#now .act", "#say button.primary"):
        assert is_visible(on_call, part)
    on_call.set_viewport_size({"width": 360, "height": 740})
    chart = on_call.locator("figure.chart .chart-body").first.bounding_box()
    pages = on_call.locator("nav.nav").bounding_box()
    assert chart
    assert pages
    assert chart["y"] + chart["height"] <= pages["y"]
    assert on_call.locator("main button.primary:visible").count() == 1
    on_call.wait_for_function(
        "w => document.documentElement.scrollWidth === w", arg=PHONE["width"]
    )

    on_call.get_by_role("button", name="How it is computed").click()
    expect(on_call.locator("#lost-how")).to_be_visible()
    expect(on_call.locator("#lost-how")).to_contain_text("would have ended")
    on_call.keyboard.press("Escape")

    on_call.locator("#changes > summary").click()
    on_call.locator("#annotate-here summary").click()
    on_call.locator("#annotation-text").fill("loader 2.4.1")
    on_call.locator("#annotate").get_by_role("button", name="Annotate").click()
    expect(on_call.locator("#changes .timeline")).to_contain_text("loader 2.4.1")


OVERLAPS = """(part) => {
  const inside = document.querySelector(part).getBoundingClientRect();
  const boxes = [...document.querySelectorAll(`${part} :is(button, summary)`)]
    .filter((one) => one.checkVisibility())
    .map((one) => [one.innerText, one.getBoundingClientRect(), one.scrollWidth > one.clientWidth]);
  return boxes.filter(([, a, isCut]) => isCut || a.right > inside.right
    || boxes.some(([, b]) => b !== a && a.left < b.right && b.left < a.right
      && a.top < b.bottom && b.top < a.bottom)).map(([text]) => text);
}"""


def test_buttons_on_a_phone_stand_apart_before_and_after_acknowledgement(
    on_call: Page, fleet: str, alert: Alert
) -> None:
    Run.objects.update(labels={"slurm_job_id": "4711"})
    on_call.set_viewport_size({"width": 360, "height": 780})
    on_call.goto(f"{fleet}{alert.get_absolute_url()}")
    for button in ("Acknowledge", "Unacknowledge"):
        expect(
            on_call.locator("#act").get_by_role("button", name=button, exact=True)
        ).to_have_count(1)
        for part in ("#act", "#now"):
            assert on_call.evaluate(OVERLAPS, part) == []
        copy = on_call.get_by_role("button", name="Copy commands").bounding_box()
        steps = on_call.locator("#next-steps > summary").bounding_box()
        assert copy
        assert steps
        assert copy["y"] == pytest.approx(steps["y"], abs=1)
        pages = on_call.locator("nav.nav > a").first.bounding_box()
        assert pages
        assert copy["y"] + copy["height"] < pages["y"]
        if button == "Acknowledge":
            on_call.locator("#act").get_by_role("button", name=button, exact=True).click()


def test_one_key_copies_the_link_that_is_frozen(on_call: Page, fleet: str, alert: Alert) -> None:
    on_call.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=fleet)
    on_call.goto(f"{fleet}{alert.get_absolute_url()}")
    expect(on_call.locator("figure.chart[data-state=loading]")).to_have_count(0)
    on_call.keyboard.press("t")
    expect(on_call.locator(".toast")).to_contain_text("Link copied")
    link = on_call.evaluate("navigator.clipboard.readText()")

    assert urlsplit(link).path == alert.get_absolute_url()
    assert "&at=" in link
    on_call.goto(link)
    expect(on_call.locator(".frozen")).to_contain_text("Showing data from")
    expect(on_call.locator("figure.chart[data-state=error]")).to_have_count(0)


def test_j_a_and_s_answer_from_the_list(on_call: Page, fleet: str, alert: Alert) -> None:
    on_call.set_viewport_size({"width": 1280, "height": 800})
    on_call.goto(f"{fleet}/alerts/")
    on_call.keyboard.press("j")
    on_call.keyboard.press("a")
    expect(on_call.locator("#open")).to_contain_text("Acknowledged by olga")
    on_call.keyboard.press("s")
    on_call.wait_for_url(f"**/silences/new/?alert={alert.pk}")


def test_without_scripts_it_can_be_read_and_acknowledged(
    page: Page, fleet: str, on_call: Page, alert: Alert
) -> None:
    context = page.context.browser.new_context(  # type: ignore[union-attr]
        java_script_enabled=False, storage_state=on_call.context.storage_state(), viewport=PHONE
    )
    plain = context.new_page()
    plain.goto(f"{fleet}{alert.get_absolute_url()}")
    assert "Core 7 of limping is slow" in plain.locator("h1.verdict").inner_text()
    plain.locator("#act").get_by_role("button", name="Acknowledge", exact=True).click()
    expect(plain.locator("#story")).to_contain_text("Acknowledged by olga")
    context.close()


def test_the_legend_of_a_record_reads_as_its_text_does(
    page: Page, fleet: str, alert: Alert
) -> None:
    now_s = int(just_now().timestamp())
    figure = {"metric": "core_utilization_ratio", "value": 0.65, "unit": "ratio"}
    place = (alert.rule, alert.subject, "page", alert.cause, "limping", 7)
    figures = {"culprit": figure}
    seen = Observation(now_s - 60, now_s - 90, *place, 1.0, 1.0, figures).json()
    alert.onset_at = alert.fired_at = moment(now_s - 90)
    alert.worst, alert.latest, alert.resolved_at = seen, seen, moment(now_s - 30)
    alert.save()

    page.goto(f"{fleet}{alert.get_absolute_url()}")
    legend = page.locator("#culprit .chart-legend")
    expect(legend).to_contain_text(re.compile(r"core 7\s*65\.0\s%.*at .*\d\d:\d\d:\d\d"))
    page.locator("#culprit .u-over").hover(position={"x": 2, "y": 30})
    expect(legend).not_to_contain_text("65.0")


def test_what_is_opened_stays_open_while_someone_else_answers(
    on_call: Page, fleet: str, alert: Alert
) -> None:
    on_call.goto(f"{fleet}{alert.get_absolute_url()}")
    expect(on_call.locator("#clock")).to_have_attribute("data-state", "live")
    on_call.locator("#more-answers > summary").click()
    Alert.objects.update(acknowledged_by="ben", acknowledged_at=just_now())
    expect(on_call.get_by_role("button", name="Unacknowledge")).to_be_visible()

    expect(on_call.locator("#more-answers")).to_have_attribute("open", "")
