"""The list of drills: every injected fault and whether it was detected."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries, Settings

from fleet.models import Alert, InjectedFault, Run

Page = Callable[..., str]
Drilled = Callable[..., InjectedFault]
DRILLS = "/drills/"


def test_it_shows_ground_truth_next_to_detection(
    page: Page, drilled: Drilled, noticed: Callable[..., Alert]
) -> None:
    fault = drilled()
    noticed(fault)

    text = page(DRILLS)

    assert "<h1>Drills</h1>" in text
    assert f'id="drill-{fault.pk}"' in text
    assert "detected after 6 s" in text
    assert "1 of 1 scored" in text
    assert "100 %" in text


def test_what_no_one_noticed_is_missed(page: Page, drilled: Drilled) -> None:
    drilled(ago=timedelta(hours=2))

    text = page(DRILLS)

    assert "missed" in text
    assert "0 of 1 scored" in text


def test_what_is_under_way_is_not_missed_yet(page: Page, drilled: Drilled) -> None:
    drilled(ago=timedelta(seconds=20))

    text = page(DRILLS)

    assert "not detected yet" in text
    assert "running" in text


def test_a_wrong_cause_and_a_missing_place_are_reported(
    page: Page, drilled: Drilled, noticed: Callable[..., Alert]
) -> None:
    noticed(drilled(), cause="hbm_slow", node=None)

    text = page(DRILLS)

    assert "slow HBM" in text
    assert "0 %" in text


def test_an_alert_of_another_run_notices_nothing(
    page: Page, drilled: Drilled, noticed: Callable[..., Alert]
) -> None:
    other = Run.objects.create(
        name="other",
        model="llama2-7b",
        instance_type="trn1.32xlarge",
        n_nodes=1,
        seq_len=4096,
        global_batch=64,
        usd_per_node_hour=1,
        phase_since=datetime.now(UTC),
        started_at=datetime.now(UTC),
    )
    noticed(drilled(ago=timedelta(hours=2)), run=other, node=None, subject="run:other")

    assert "0 of 1 scored" in page(DRILLS)


def test_the_weather_to_come_stays_a_secret(page: Page, drilled: Drilled) -> None:
    drilled(ago=timedelta(hours=-1), injected_by="")

    assert "No drills." in page(DRILLS)


@pytest.mark.parametrize(
    ("query", "n"), [("by=people", 1), ("by=demo", 1), ("kind=hbm_slow", 0), ("run=llama", 2)]
)
def test_it_keeps_what_the_address_asks_for(
    page: Page, drilled: Drilled, query: str, n: int
) -> None:
    drilled()
    drilled(injected_by="", ago=timedelta(hours=3))

    assert page(f"{DRILLS}?{query}").count('id="drill-') == n


def test_a_filter_without_drills_states_it(page: Page, drilled: Drilled) -> None:
    drilled()

    assert "No drill matches" in page(f"{DRILLS}?kind=hang&run=missing&page=x")


@pytest.mark.parametrize("partial", ["card", "history"])
def test_it_gives_htmx_only_the_partial_it_asks_for(
    client: Client, drilled: Drilled, partial: str
) -> None:
    drilled()
    response = client.get(DRILLS, headers={"HX-Request": "true", "HX-Target": partial})

    assert response.text.strip().startswith('<section class="')
    assert f'id="{partial}"' in response.text
    assert "<html" not in response.text
    assert "HX-Target" in response["Vary"]


def test_it_asks_the_database_as_often_for_many_as_for_one(
    client: Client, drilled: Drilled, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for hours in range(1, 12):
        drilled(ago=timedelta(hours=hours))

    with django_assert_max_num_queries(10):
        client.get(DRILLS)


def test_viewers_see_a_note(page: Page, drilled: Drilled, viewer: User) -> None:
    text = page(DRILLS)

    assert "needs the role operator" in text
    assert 'href="/drills/new/"' not in text


def test_where_drills_are_switched_off_the_page_states_it(
    page: Page, simulated: Run, operator: User, settings: Settings
) -> None:
    settings.ALLOW_DRILLS = False

    text = page(DRILLS)

    assert "TRNWATCH_ALLOW_DRILLS=1" in text
    assert 'href="/drills/new/"' not in text


def test_where_all_runs_are_real_the_page_states_it(
    page: Page, alive: Run, operator: User
) -> None:
    assert "real runs cannot be drilled" in page(DRILLS)
