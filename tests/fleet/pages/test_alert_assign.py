"""Assigning an alert to a user who may act."""

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from fleet.models import Alert
from tests.helpers import just_now

ACT = {"HX-Request": "true", "HX-Target": "act"}


@pytest.fixture
def omar(db: None) -> User:
    user = User.objects.create_user("omar")
    user.groups.add(Group.objects.get(name="lead"))
    return user


def give(client: Client, alert: Alert, **posted: str) -> tuple[int, str]:
    response = client.post(f"/alerts/{alert.pk}/assign/", posted, headers=ACT)
    alert.refresh_from_db()
    return response.status_code, response.text


def test_the_assignee_owns_it_and_the_timeline_names_the_sender(
    client: Client, alert: Alert, operator: User, omar: User
) -> None:
    assert give(client, alert, to="omar", comment="you know the rack")[0] == 200

    assert (alert.assigned_to, alert.owner, alert.state) == ("omar", "omar", "firing")
    event = alert.events.get(kind="assigned")
    assert (event.by, event.text) == ("olga", "to omar: you know the rack")


@pytest.mark.parametrize("name", ["vera", "missing", ""])
def test_it_cannot_be_assigned_to_a_viewer(
    client: Client, alert: Alert, operator: User, name: str
) -> None:
    User.objects.create_user("vera")

    status, reported = give(client, alert, to=name)
    assert status == 422
    assert "is not an operator" in reported
    assert alert.assigned_to == ""


def test_what_is_over_is_given_to_no_one(
    client: Client, alert: Alert, operator: User, omar: User
) -> None:
    Alert.objects.update(resolved_at=just_now())

    assert give(client, alert, to="omar")[0] == 422


def test_a_comment_too_long_is_refused(
    client: Client, alert: Alert, operator: User, omar: User
) -> None:
    assert "comment: is longer" in give(client, alert, to="omar", comment="x" * 501)[1]
    assert alert.assigned_to == ""
