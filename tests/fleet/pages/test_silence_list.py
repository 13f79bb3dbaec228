"""The list of silences: what is muted until when and why, the oldest first."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet import alerts
from fleet.models import Alert, Silence
from tests.parts import just_now

Page = Callable[..., str]
HOUR = timedelta(hours=1)


def silence(matchers: str, *, ago: timedelta = HOUR, lasts: timedelta = 2 * HOUR) -> Silence:
    now = just_now()
    made = alerts.silence(matchers, ends_at=now + 99 * HOUR, reason="known", by="olga", now=now)
    Silence.objects.filter(pk=made.pk).update(starts_at=now - ago, ends_at=now - ago + lasts)
    return Silence.objects.get(pk=made.pk)


def test_it_says_when_nothing_is_silenced(page: Page, db: None) -> None:
    told = page("/silences/")

    assert "no silences" in told
    assert "No expired silences." in told


def test_it_shows_what_is_muted_by_whom_until_when_and_why(page: Page, alert: Alert) -> None:
    silence("run=llama")

    told = page("/silences/")
    assert "run=llama" in told
    assert "“known”" in told
    assert "olga" in told
    assert "Silences 1 open alert:" in told
    assert f'href="/alerts/{alert.pk}/"' in told


def test_the_oldest_comes_first_and_is_flagged(page: Page, db: None) -> None:
    silence("run=young", lasts=HOUR + timedelta(minutes=20))
    silence("run=old", ago=30 * HOUR, lasts=40 * HOUR)

    told = page("/silences/")
    assert told.index("run=old") < told.index("run=young")
    assert told.index("run=old") < told.index("older than a day") < told.index("run=young")
    assert told.index("run=young") < told.index("expires soon")


def test_one_that_mutes_everything_says_so(page: Page, db: None) -> None:
    silence("")

    assert "silences everything" in page("/silences/")


def test_what_is_over_is_listed_with_whoever_ended_it(page: Page, db: None) -> None:
    alerts.expire(silence("run=llama"), by="omar", now=just_now())

    told = page("/silences/")
    assert "no silences" in told
    assert ", by omar" in told


@pytest.mark.parametrize("part", ["silences", "over"])
def test_it_gives_htmx_only_the_part_it_asks_for(page: Page, db: None, part: str) -> None:
    told = page("/silences/", **{"HX-Request": "true", "HX-Target": part})

    assert told.strip().startswith("<section")
    assert f'id="{part}"' in told
    assert "<h1>" not in told


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


def test_it_can_only_be_read(client: Client, operator: User) -> None:
    assert client.post("/silences/").status_code == 405
