"""One silence: matches, end, history."""

from collections.abc import Callable
from datetime import timedelta

from django.contrib.auth.models import User

from fleet import alerts
from fleet.models import Alert, Silence
from tests.helpers import just_now

Page = Callable[..., str]
HOUR = timedelta(hours=1)


def made(matchers: str = "run=llama") -> Silence:
    now = just_now()
    return alerts.silence(matchers, ends_at=now + HOUR, reason="known", by="olga", now=now)


def test_it_shows_the_whole_page(page: Page, alert: Alert, operator: User) -> None:
    silence = made()

    reported = page(silence.get_absolute_url())
    assert "run=llama" in reported
    assert "“known”" in reported
    assert f'href="/alerts/{alert.pk}/"' in reported
    assert "created: until" in reported
    assert "Expire now" in reported


def test_what_is_over_offers_nothing_more(page: Page, db: None) -> None:
    silence = made()
    alerts.expire(silence, by="omar", now=just_now())

    reported = page(silence.get_absolute_url())
    assert "expired" in reported
    assert "omar</span> ended early" in reported
    assert "Expire now" not in reported


def test_it_gives_htmx_only_the_part_it_asks_for(page: Page, db: None) -> None:
    reported = page(made().get_absolute_url(), **{"HX-Request": "true", "HX-Target": "silence"})

    assert reported.strip().startswith('<div class="cols" id="silence"')
