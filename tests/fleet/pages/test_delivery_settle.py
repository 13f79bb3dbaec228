"""Failed deliveries: resend under the same key, or drop with a reason."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.models import Alert, Delivery
from tests.fleet.pages.deliveries import dead, hook
from tests.helpers import just_now

__all__ = ["dead", "hook"]


def post(client: Client, delivery: Delivery, **fields: str) -> Any:
    return client.post(f"/notifications/deliveries/{delivery.pk}/settle/", fields)


def test_it_is_sent_again_with_the_same_key(
    client: Client, operator: User, dead: Delivery
) -> None:
    assert post(client, dead, action="again").status_code == 302

    again = Delivery.objects.get()
    assert (again.state, again.n_attempts, again.key) == ("pending", 0, dead.key)
    assert again.handled_by == "olga"


def test_its_end_follows_what_is_over_by_now(
    client: Client, operator: User, dead: Delivery
) -> None:
    Alert.objects.update(resolved_at=just_now())
    post(client, dead, action="again")

    assert list(Delivery.objects.order_by("pk").values_list("kind", flat=True)) == [
        "firing",
        "resolved",
    ]


def test_it_is_dropped_with_a_reason_only(client: Client, operator: User, dead: Delivery) -> None:
    response = post(client, dead, action="drop", note=" ")
    assert response.status_code == 422
    assert list(response.context["form"].errors) == ["note"]
    assert 'aria-describedby="id_note_error"' in response.text

    post(client, dead, action="drop", note="settled by phone")
    dropped = Delivery.objects.get()
    assert (dropped.state, dropped.note) == ("dropped", "settled by phone")


@pytest.mark.parametrize("state", ["pending", "sending", "sent", "dropped"])
def test_only_what_is_dead_can_be_settled(
    client: Client, operator: User, dead: Delivery, state: str
) -> None:
    Delivery.objects.update(state=state, claimed_until=just_now())
    response = post(client, dead, action="again")

    assert response.status_code == 422
    assert "no longer dead" in response.text
