"""Preview of what a silence mutes."""

from collections.abc import Callable
from datetime import timedelta

from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Alert
from tests.helpers import just_now

Page = Callable[..., str]


def test_it_lists_what_is_open_and_what_it_would_have_muted(
    page: Page, fired: Callable[..., Alert], operator: User
) -> None:
    fired(subject="run:open")
    fired(subject="run:over", resolved_at=just_now())
    fired(subject="run:old", resolved_at=just_now(), ago=timedelta(days=8))

    reported = page("/silences/preview?matchers=rule=allreduce_share")
    assert "Open now: 1 of 1" in reported
    assert "in the last 7 days: 1 of 1" in reported
    assert "llama spent 31.4 % of each step in all-reduce" in reported


def test_a_long_list_is_cut(page: Page, fired: Callable[..., Alert], operator: User) -> None:
    for i in range(15):
        fired(subject=f"run:{i}", resolved_at=just_now())

    assert "and 3 more" in page("/silences/preview?matchers=severity=page")


def test_what_cannot_be_read_is_reported(page: Page, operator: User) -> None:
    assert "is not a field" in page("/silences/preview?matchers=color=red")
    assert "is invalid" in page("/silences/preview?matchers=run=~(")


def test_it_asks_the_database_the_same_however_many_there_are(
    client: Client,
    fired: Callable[..., Alert],
    operator: User,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for i in range(12):
        fired(subject=f"run:{i}")

    with django_assert_max_num_queries(6):
        client.get("/silences/preview?matchers=severity=page")
