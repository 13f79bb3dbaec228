"""All failed deliveries at once, of one receiver or of all."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.models import Alert, Delivery, Receiver
from tests.fleet.pages.deliveries import dead, delivery, hook

HERE = "/notifications/deliveries/settle/"
__all__ = ["dead", "hook"]


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"action": "again"}, "pending"),
        ({"action": "drop", "note": "a trial"}, "dropped"),
        ({"action": "drop", "note": ""}, "dead"),
        ({"action": "again", "receiver": "99"}, "dead"),
    ],
)
def test_all_of_them_go_the_same_way(
    client: Client,
    operator: User,
    dead: Delivery,
    hook: Receiver,
    alert: Alert,
    fields: dict[str, str],
    state: str,
) -> None:
    delivery(hook, alert, state="dead")
    assert client.post(HERE, fields).status_code == 302

    assert set(Delivery.objects.values_list("state", flat=True)) == {state}
