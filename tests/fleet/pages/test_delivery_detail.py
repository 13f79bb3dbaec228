"""One delivery: content and attempts, without secrets."""

from collections.abc import Callable

from django.test import Client

from fleet.models import Delivery
from tests.fleet.pages.deliveries import dead, hook

Page = Callable[..., str]
__all__ = ["dead", "hook"]


def test_it_shows_text_key_and_response(page: Page, dead: Delivery) -> None:
    Delivery.objects.update(body={"title": "[FIRING] <b>llama</b>"})
    text = page(f"/notifications/deliveries/{dead.pk}/")

    assert dead.key in text
    assert "404: no_service" in text
    assert "[FIRING] &lt;b&gt;llama&lt;/b&gt;" in text
    assert "sesame" not in text


def test_an_unknown_name_is_not_found(client: Client, db: None) -> None:
    assert client.get("/notifications/deliveries/99/").status_code == 404


def test_it_cannot_be_posted_to(client: Client, dead: Delivery, operator: object) -> None:
    assert client.post(f"/notifications/deliveries/{dead.pk}/").status_code == 405
