"""The schedule in a browser: the slider updates the page and the address."""

import re

import pytest
from playwright.sync_api import Page, expect

from fleet.trials.schedule import update_observed_runs
from telemetry.store.hot import HotStore
from tests.browser.test_accessibility import ASK, AXE
from tests.fleet.trials.arms import let_train, trial_of_two
from tests.fleet.trials.conftest import LATER

pytestmark = pytest.mark.browser


@pytest.fixture
def schedule(fleet: str, hot: HotStore) -> str:
    """Let a trial's arms train, and give the address of its schedule."""
    trial_of_two()
    let_train()
    update_observed_runs(hot, now=LATER)
    return f"{fleet}/trials/bakeoff/schedule/"


def test_the_slider_moves_the_answer_the_chart_and_the_address(page: Page, schedule: str) -> None:
    page.goto(f"{schedule}?porting_usd=9000")
    expect(page.locator("#dollars")).to_have_attribute("data-state", "drawn")
    expect(page.locator(".answer")).to_contain_text("over 14\u202fdays it saves")

    page.get_by_role("slider", name="Days to train").fill("30")

    expect(page.locator("#days")).to_have_value("30")
    expect(page.locator(".answer")).to_contain_text("over 30\u202fdays it saves")
    expect(page).to_have_url(re.compile(r"days=30.*porting_usd=9000"))
    expect(page.locator("#dollars")).to_have_attribute("data-src", re.compile("days=30"))
    expect(page.locator("#dollars")).to_have_attribute("data-state", "drawn")


def test_the_field_moves_the_slider_and_a_mistake_is_mended_in_place(
    page: Page, schedule: str
) -> None:
    page.goto(schedule)

    page.locator("#days").fill("7")
    expect(page.get_by_role("slider", name="Days to train")).to_have_value("7")
    expect(page.locator(".answer")).to_contain_text("over 7\u202fdays")

    page.locator("#porting_usd").fill("-5")
    expect(page.locator("#schedule")).to_contain_text("porting_usd: give dollars")
    page.locator("#porting_usd").fill("5")
    expect(page.locator(".answer")).to_contain_text("over 7\u202fdays")


def test_every_chart_is_drawn_and_reads_as_a_table_and_the_trial_has_the_answer(
    page: Page, schedule: str
) -> None:
    for by in ("saved", "days", "tokens"):
        page.goto(f"{schedule}?by={by}")
        expect(page.locator("#dollars")).to_have_attribute("data-state", "drawn")
        page.locator("#dollars summary").click()

        rows = page.locator("#dollars .chart-table tbody tr")
        expect(rows).to_have_count(57)
        expect(rows.last).to_contain_text("tokens" if by == "tokens" else "day 14.00")

    page.goto(schedule.removesuffix("schedule/"))
    expect(page.locator("#schedule-summary")).to_contain_text("over 14\u202fdays it saves")


def test_it_has_no_serious_barrier_and_fits_a_phone(page: Page, schedule: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(schedule)
    expect(page.locator("#dollars")).to_have_attribute("data-state", "drawn")
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.context.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    page.evaluate(AXE.read_text())

    assert wide <= 0
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ASK) == []
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ASK) == []
