"""One delivery: content and attempts, without secrets."""

from collections.abc import Callable

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
