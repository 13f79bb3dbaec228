"""Preview of what matchers select."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.models import Alert
from tests.fleet.test_anonymous_access import member

Page = Callable[..., str]
HERE = "/notifications/routes/preview"


@pytest.mark.parametrize(
    ("matchers", "shown"),
    [
        ("", "<b>1</b> alert"),
        ("run=llama", "<b>1</b> alert"),
        ("run=other", "No alert matches."),
        ("colour=blue", "is not a field"),
    ],
)
def test_it_shows_which_alerts_are_meant(
    page: Page, alert: Alert, operator: User, matchers: str, shown: str
) -> None:
    assert shown in page(f"{HERE}?matchers={matchers}")


def test_a_viewer_may_not(client: Client, viewer: User) -> None:
    assert client.get(HERE).status_code == 403


def test_it_cannot_be_posted_to(client: Client, db: None) -> None:
    client.force_login(member("admin"))
    assert client.post(HERE).status_code == 405
