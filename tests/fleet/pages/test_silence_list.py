"""The list of silences: end and reason, oldest first."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet import alerts
from fleet.models import Alert, Silence
from tests.helpers import just_now

Page = Callable[..., str]
HOUR = timedelta(hours=1)


def silence(matchers: str, *, ago: timedelta = HOUR, lasts: timedelta = 2 * HOUR) -> Silence:
    now = just_now()
    made = alerts.silence(matchers, ends_at=now + 99 * HOUR, reason="known", by="olga", now=now)
    Silence.objects.filter(pk=made.pk).update(starts_at=now - ago, ends_at=now - ago + lasts)
    return Silence.objects.get(pk=made.pk)


def test_it_shows_when_nothing_is_silenced(page: Page, db: None) -> None:
    reported = page("/silences/")

    assert "no silences" in reported
    assert "No expired silences." in reported


def test_it_shows_matches_creator_end_and_reason(page: Page, alert: Alert) -> None:
    silence("run=llama")

    reported = page("/silences/")
    assert "run=llama" in reported
    assert "“known”" in reported
    assert "olga" in reported
    assert "Silences 1 open alert:" in reported
    assert f'href="/alerts/{alert.pk}/"' in reported


def test_the_oldest_comes_first_and_is_flagged(page: Page, db: None) -> None:
    silence("run=young", lasts=HOUR + timedelta(minutes=20))
    silence("run=old", ago=30 * HOUR, lasts=40 * HOUR)

    reported = page("/silences/")
    assert reported.index("run=old") < reported.index("run=young")
    assert (
        reported.index("run=old")
        < reported.index("older than a day")
        < reported.index("run=young")
    )
    assert reported.index("run=young") < reported.index("expires soon")


def test_one_that_mutes_everything_states_it(page: Page, db: None) -> None:
    silence("")

    assert "silences everything" in page("/silences/")


def test_what_is_over_is_listed_with_the_person_who_ended_it(page: Page, db: None) -> None:
    alerts.expire(silence("run=llama"), by="omar", now=just_now())

    reported = page("/silences/")
    assert "no silences" in reported
    assert ", by omar" in reported


@pytest.mark.parametrize("part", ["silences", "over"])
def test_it_gives_htmx_only_the_part_it_asks_for(page: Page, db: None, part: str) -> None:
    reported = page("/silences/", **{"HX-Request": "true", "HX-Target": part})

    assert reported.strip().startswith("<section")
    assert f'id="{part}"' in reported
    assert "<h1>" not in reported


def test_it_asks_the_database_for_all_silences_at_once(
    client: Client,
    alert: Alert,
    viewer: User,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for i in range(5):
        silence(f"run=~llama|{i}")

    with django_assert_max_num_queries(8):
        client.get("/silences/")
