"""The list of alerts: open and unacknowledged first, then resolved."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Alert, Run
from tests.helpers import just_now

Page = Callable[..., str]
Fire = Callable[..., Alert]


@pytest.fixture
def resolved(fired: Fire) -> Alert:
    return fired(ago=timedelta(hours=3), resolved_at=datetime.now(UTC) - timedelta(hours=2))


@pytest.fixture
def taken(fired: Fire) -> Alert:
    return fired(
        rule="node_silent",
        cause="node_silent",
        subject="node:steady",
        acknowledged_at=just_now() - timedelta(minutes=2),
        acknowledged_by="olga",
    )


def test_unacknowledged_alerts_come_before_acknowledged_ones(
    page: Page, taken: Alert, alert: Alert
) -> None:
    text = page("/alerts/")

    assert text.index(f'id="alert-{alert.pk}"') < text.index(f'id="alert-{taken.pk}"')
    assert "1 unacknowledged" in text


def test_an_acknowledgement_shows_its_age(page: Page, taken: Alert) -> None:
    text = page("/alerts/")

    assert "Acknowledged by olga" in text
    assert "2 min</time>" in text


def test_what_is_over_states_how_long_it_lasted_and_what_it_cost(
    page: Page, resolved: Alert
) -> None:
    text = page("/alerts/")

    assert "1 h" in text
    assert "$1.43" in text
    assert '<td class="wide">\u2013</td>' in text


@pytest.mark.parametrize(
    ("query", "listed"),
    [
        ("", {"alert", "taken", "resolved"}),
        ("state=firing", {"alert"}),
        ("state=acknowledged", {"taken"}),
        ("state=resolved", {"resolved"}),
        ("rule=node_silent", {"taken"}),
        ("run=llama", {"alert", "taken", "resolved"}),
        ("run=other", set()),
        ("since=1h", {"alert", "taken"}),
        ("since=ages", {"alert", "taken", "resolved"}),
    ],
)
def test_it_keeps_only_what_the_address_asks_for(
    page: Page, alert: Alert, taken: Alert, resolved: Alert, query: str, listed: set[str]
) -> None:
    text = page(f"/alerts/?{query}")
    known = {"alert": alert, "taken": taken, "resolved": resolved}

    assert {name for name, each in known.items() if f'id="alert-{each.pk}"' in text} == listed


def test_what_is_over_comes_in_pages(page: Page, fired: Fire) -> None:
    for i in range(30):
        fired(ago=timedelta(hours=i + 2), resolved_at=just_now() - timedelta(hours=i + 1))
    first, second = page("/alerts/"), page("/alerts/?page=2")

    assert first.count("<tr id=") == 25
    assert 'rel="next" href="?page=2"' in first
    assert second.count("<tr id=") == 5
    assert 'data-live="alerts?page=2"' in second


@pytest.mark.parametrize("number", ["0", "99", "x"])
def test_a_page_that_is_not_there_is_the_nearest(page: Page, alert: Alert, number: str) -> None:
    assert "Open" in page(f"/alerts/?page={number}")


def test_an_empty_list_states_it(page: Page, alive: Run) -> None:
    text = page("/alerts/")

    assert "nothing is wrong" in text
    assert "No resolved alerts yet" in text


@pytest.mark.parametrize("partial", ["open", "resolved"])
def test_it_gives_htmx_only_the_partial_it_asks_for(
    client: Client, alert: Alert, partial: str
) -> None:
    headers = {"HX-Request": "true", "HX-Target": partial}
    response = client.get("/alerts/", headers=headers)

    assert f'id="{partial}"' in response.text
    assert "<html" not in response.text


def test_many_alerts_cost_no_more_queries_than_one(
    client: Client,
    fired: Fire,
    operator: object,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for i in range(40):
        fired(ago=timedelta(hours=i + 2), resolved_at=just_now() - timedelta(hours=i + 1))
        fired(subject=f"run:{i}")

    with django_assert_max_num_queries(10):
        client.get("/alerts/")


def test_it_shows_the_state_at_a_past_time(page: Page, resolved: Alert, fired: Fire) -> None:
    fired(subject="run:later")
    then = int((datetime.now(UTC) - timedelta(minutes=150)).timestamp())
    text = page(f"/alerts/?at={then}")
    opened, over = text.split('id="resolved"')

    assert f'id="alert-{resolved.pk}"' in opened
    assert "<article" not in over
    assert opened.count("<article") == 1
    assert ("Showing data from" in opened, 'data-live="' in opened) == (True, False)
    assert f"at={then}&amp;csv=alerts" in over or f"csv=alerts&amp;at={then}" in over


@pytest.mark.parametrize("path", ["/runs/", "/nodes/", "/rules/"])
def test_a_page_without_a_past_says_that_it_shows_the_present(
    page: Page, alert: Alert, path: str
) -> None:
    then = int(datetime.now(UTC).timestamp()) - 60

    assert "This page shows the present, not" in page(f"{path}?at={then}")
    assert "This page shows the present" not in page(path)


def test_without_a_node_and_a_run_it_says_that_nothing_is_watched(db: None, page: Page) -> None:
    text = page("/alerts/")

    assert "Nothing is watched yet" in text
    assert 'href="/connect/"' in text
    assert "nothing is wrong" not in text
