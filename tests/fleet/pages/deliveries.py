"""Receivers, routes and deliveries for page tests."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from fleet.models import Alert, Delivery, Receiver, Route
from tests.helpers import just_now


@pytest.fixture
def admin(client: Client, db: None) -> User:
    """Sign in an administrator."""
    user = User.objects.create_user("adam")
    user.groups.add(Group.objects.get(name="admin"))
    client.force_login(user)
    return user


@pytest.fixture
def hook(db: None) -> Receiver:
    """Make a webhook with a secret, on the default route."""
    made: Receiver = Receiver.objects.create(
        name="hook",
        kind="webhook",
        target="http://127.0.0.1:1/hush/path",
        secret="sesame",
        created_at=just_now(),
    )
    route = Route.objects.create(name="everything", is_default=True)
    route.receivers.add(made)
    return made


@pytest.fixture
def dead(hook: Receiver, alert: Alert) -> Delivery:
    """Make a notification that was given up."""
    return delivery(hook, alert, state="dead", n_attempts=3, last_error="404: no_service")


def delivery(receiver: Receiver, alert: Alert, **fields: Any) -> Delivery:
    """Make a delivery of an alert."""
    now = just_now()
    usual: dict[str, Any] = {"kind": "firing", "group_key": f"alert {alert.pk}", "created_at": now}
    made: Delivery = Delivery.objects.create(
        receiver=receiver, **usual | {"next_try_at": now} | fields
    )
    made.alerts.add(alert)
    return made
