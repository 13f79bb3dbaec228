"""Preview of what matchers select."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User

from fleet.models import Alert

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
