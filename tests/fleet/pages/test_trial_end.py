"""Ending a trial from its page."""

import pytest
from django.test import Client

from fleet.models import Trial
from tests.fleet.test_anonymous_access import member
from tests.helpers import NOON


@pytest.fixture
def trial(db: None, redis_url: str) -> Trial:
    """Start a trial without arms."""
    return Trial.objects.create(name="bakeoff", question="?", created_by="ada", created_at=NOON)


def test_a_lead_ends_it_once(client: Client, trial: Trial) -> None:
    client.force_login(member("lead"))

    first = client.post("/trials/bakeoff/end/", follow=True)
    ended_at = Trial.objects.get().ended_at
    second = client.post("/trials/bakeoff/end/", follow=True)

    assert "Later steps are ignored" in first.text
    assert "has already ended" in second.text
    assert ended_at is not None
    assert Trial.objects.get().ended_at == ended_at
