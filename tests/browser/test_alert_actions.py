"""Alert actions on a phone in two taps, and by keyboard."""

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from playwright.sync_api import Page, expect

from fleet.models import Alert, Silence
from tests.browser.test_accessibility import SMALL, barriers

pytestmark = pytest.mark.browser
PHONE = {"width": 360, "height": 740}


@pytest.fixture
def signed_in(fleet: str, page: Page) -> str:
    """Sign in an operator; gives the address."""
    user = User.objects.create_user("olga")
    user.groups.add(Group.objects.get(name="operator"))
    client = Client()
    client.force_login(user)
    page.context.add_cookies(
        [{"name": name, "value": m.value, "url": fleet} for name, m in client.cookies.items()]
    )
    return fleet


def test_an_alert_is_silenced_in_two_taps(page: Page, signed_in: str, alert: Alert) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(f"{signed_in}/alerts/{alert.pk}/")
    page.locator("#silence > summary").click()
    page.get_by_role("button", name="1 hour").click()

    expect(page.locator("#story")).to_contain_text("silenced by olga")
    expect(page.get_by_role("button", name="End the silence")).to_be_visible()
    assert Silence.objects.get().matchers == "node=limping cause=slow_core"


def test_an_alert_is_acknowledged_in_one_tap_and_unacknowledged(
    page: Page, signed_in: str, alert: Alert
) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(f"{signed_in}/alerts/{alert.pk}/")
    page.locator("#act").get_by_role("button", name="Acknowledge", exact=True).click()
    expect(page.locator("#story")).to_contain_text("olga")

    page.get_by_role("button", name="Unacknowledge").click()
    expect(
        page.locator("#act").get_by_role("button", name="Acknowledge", exact=True)
    ).to_be_visible()


def test_a_button_that_a_refresh_removed_still_leaves_one_panel(
    page: Page, signed_in: str, alert: Alert
) -> None:
    page.goto(f"{signed_in}/alerts/{alert.pk}/")
    # As when the live part is replaced between the request and its response.
    page.evaluate("""() => {
      const remove = ({detail}) => detail.elt.closest("form")?.remove();
      document.body.addEventListener("htmx:beforeSend", remove);
      window.isNested = false;
      const look = () => { window.isNested ||= document.querySelector("#act #act") !== null; };
      new MutationObserver(look).observe(document.body, {childList: true, subtree: true});
    }""")
    page.locator("#say").get_by_role("button", name="Acknowledge").click()

    expect(page.get_by_role("button", name="Unacknowledge")).to_be_visible()
    assert page.evaluate("window.isNested") is False


def test_s_silences_the_alert_and_what_is_typed_survives_the_next_second(
    page: Page, signed_in: str, alert: Alert
) -> None:
    page.goto(f"{signed_in}/alerts/{alert.pk}/")
    page.keyboard.press("s")
    expect(page.locator("#silence-reason")).to_be_visible()
    page.locator("#silence-reason").fill("rack 4 is moved")
    page.wait_for_timeout(2_500)

    expect(page.locator("#silence-reason")).to_have_value("rack 4 is moved")


def test_a_silence_states_what_it_mutes_while_it_is_written(
    page: Page, signed_in: str, alert: Alert
) -> None:
    page.goto(f"{signed_in}/silences/new/?matchers=node%3Dnobody")
    expect(page.locator("#preview")).to_contain_text("Open now: 0 of 1")
    page.locator("#id_matchers").fill("node=~limp.*")
    expect(page.locator("#preview")).to_contain_text("Open now: 1 of 1")
    page.locator("#id_matchers").fill("color=red")
    expect(page.locator("#preview")).to_contain_text("is not a field")


def test_a_silence_ends_from_the_list(page: Page, signed_in: str, alert: Alert) -> None:
    page.goto(f"{signed_in}/silences/new/?alert={alert.pk}")
    page.get_by_role("button", name="Silence", exact=True).click()
    expect(page.locator("#silence")).to_contain_text("active until")
    page.goto(f"{signed_in}/silences/")
    page.get_by_role("button", name="Expire now: silence").click()

    expect(page.locator("#silences")).to_contain_text("no silences")
    expect(page.locator("#over")).to_contain_text("by olga")


def test_the_hand_over_is_copied(page: Page, signed_in: str, alert: Alert) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{signed_in}/hand-over/")
    page.get_by_role("button", name="Copy").click()

    expect(page.locator("#toasts")).to_contain_text("Copied.")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert f"[alert {alert.pk}]" in copied


def test_an_alert_is_marked_false_by_keyboard_and_the_mark_removed(
    page: Page, signed_in: str, alert: Alert
) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(f"{signed_in}/alerts/{alert.pk}/")
    page.keyboard.press("f")
    other = page.get_by_role("button", name="Other", exact=True)
    # This reason needs words: the browser asks for them before anything is sent.
    other.press("Enter")
    comment = page.locator(f"#false-comment-{alert.pk}")
    expect(comment).to_be_focused()
    assert page.evaluate(SMALL) == []
    comment.press_sequentially("it was steady")
    other.press("Enter")

    expect(page.locator("#story")).to_contain_text("Marked false by olga: other, it was steady")
    page.get_by_role("button", name="Remove false mark").click()
    expect(page.locator("#story")).not_to_contain_text("Marked false")
    expect(page.locator("#timeline")).to_contain_text("false mark removed")


@pytest.mark.parametrize("is_open", [True, False])
def test_an_alert_is_marked_false_in_the_list(
    page: Page, signed_in: str, alert: Alert, *, is_open: bool
) -> None:
    if not is_open:
        Alert.objects.update(resolved_at=alert.fired_at)
    page.goto(f"{signed_in}/alerts/")
    page.keyboard.press("j")
    page.keyboard.press("f")
    comment = page.locator(f"#false-comment-{alert.pk}")
    comment.fill("scrape gap")
    # The list is replaced each second; what is typed stays.
    page.wait_for_timeout(2_500)
    assert barriers(page) == []
    comment.press("Tab")
    page.keyboard.press("Enter")

    part = page.locator("#open" if is_open else "#resolved")
    expect(part).to_contain_text("Marked false by olga: noise, scrape gap")
    part.get_by_role("button", name="Remove false mark").click()
    expect(part).not_to_contain_text("Marked false by")
