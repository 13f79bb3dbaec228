"""The log of deliveries: filters and paging."""

from collections.abc import Callable

import pytest

from fleet.models import Alert, Delivery, Receiver
from tests.fleet.pages.deliveries import dead, delivery, hook

Page = Callable[..., str]
HERE = "/notifications/deliveries/"
__all__ = ["dead", "hook"]


def test_it_shows_that_there_is_nothing(page: Page, db: None) -> None:
    assert "Nothing has been sent yet." in page(HERE)


def test_it_lists_how_each_went(page: Page, dead: Delivery, hook: Receiver, alert: Alert) -> None:
    delivery(hook, alert, state="sent")
    delivery(hook, alert, n_attempts=2, last_error="503")
    text = page(HERE)

    for word in ("failed", "404: no_service", "sent", "retrying", "503"):
        assert word in text


@pytest.mark.parametrize(
    ("query", "n"),
    [("state=dead", 1), ("state=sent", 0), ("receiver=hook", 1), ("receiver=x", 0)],
)
def test_it_keeps_only_what_the_address_asks_for(
    page: Page, dead: Delivery, query: str, n: int
) -> None:
    assert page(f"{HERE}?{query}").count('id="delivery-') == n


def test_it_comes_in_pages(page: Page, hook: Receiver, alert: Alert) -> None:
    for _ in range(51):
        delivery(hook, alert, state="sent")

    assert "1 of 2" in page(HERE)
    assert page(f"{HERE}?page=2").count('id="delivery-') == 1


def test_it_gives_htmx_only_the_log(page: Page, dead: Delivery) -> None:
    text = page(HERE, **{"HX-Request": "true", "HX-Target": "log"}).strip()

    assert text.startswith("<section")
