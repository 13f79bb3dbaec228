"""One drill: ground truth compared with detection."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Alert, AlertEvent, InjectedFault
from fleet.pages.topics import TOPICS, live_topic

Page = Callable[..., str]
Drilled = Callable[..., InjectedFault]
Noticed = Callable[..., Alert]


def test_it_shows_that_it_was_noticed_and_rightly(
    page: Page, drilled: Drilled, noticed: Noticed
) -> None:
    fault = drilled()
    alert = noticed(fault)

    text = page(f"/drills/{fault.pk}/")

    assert "Started by olga on" in text
    assert "Detected after 6 s. Cause and location correct." in text
    assert f'href="/alerts/{alert.pk}/"' in text
    assert "One core computes slowly" in text
    assert f'data-src="/drills/{fault.pk}/charts/metric?from=' in text


def test_it_shows_other_accused_nodes(page: Page, drilled: Drilled, noticed: Noticed) -> None:
    fault = drilled()
    noticed(fault, cause="hbm_slow")

    text = page(f"/drills/{fault.pk}/")

    assert "but reported as slow HBM" in text


def test_it_shows_that_no_one_noticed(page: Page, drilled: Drilled) -> None:
    text = page(f"/drills/{drilled(ago=timedelta(hours=1)).pk}/")

    assert "Not detected." in text


def test_it_follows_a_fault_that_is_under_way(page: Page, drilled: Drilled) -> None:
    fault = drilled(ago=timedelta(seconds=20))

    text = page(f"/drills/{fault.pk}/")

    assert "Not detected yet." in text
    assert "<progress" in text
    # A chart that still moves is asked for again and again; a frozen one is not.
    assert f'data-src="/drills/{fault.pk}/charts/metric"' in text
    assert f'data-live="drill:{fault.pk}"' in text


def test_an_alert_that_fired_again_notices_a_second_fault(
    page: Page, drilled: Drilled, noticed: Noticed
) -> None:
    first, second = drilled(ago=timedelta(minutes=30)), drilled(ago=timedelta(minutes=20))
    alert = noticed(first)
    AlertEvent.objects.create(
        alert=alert, at=second.starts_at + timedelta(seconds=9), kind=AlertEvent.Kind.REFIRED
    )

    assert "detected after 6 s" in page(f"/drills/{first.pk}/")
    assert "detected after 9 s" in page(f"/drills/{second.pk}/")


def test_a_fault_of_a_whole_run_names_no_node(page: Page, drilled: Drilled) -> None:
    fault = drilled(kind="seq_imbalance", node=None, device=None, magnitude=0.8, injected_by="")

    text = page(f"/drills/{fault.pk}/")

    assert "Started by demo-bot on" in text
    assert "whole run" in text
    assert "charts/metric" not in text


@pytest.mark.parametrize("partial", ["verdict", "answer"])
def test_it_gives_htmx_only_the_partial_it_asks_for(
    client: Client, drilled: Drilled, partial: str
) -> None:
    response = client.get(
        f"/drills/{drilled().pk}/", headers={"HX-Request": "true", "HX-Target": partial}
    )

    assert response.text.strip().startswith("<section")
    assert f'id="{partial}"' in response.text
    assert "HX-Target" in response["Vary"]


def test_the_stream_renders_its_live_parts(drilled: Drilled) -> None:
    fault = drilled(ago=timedelta(seconds=20))

    events = live_topic(TOPICS, f"drill:{fault.pk}", {}).render()

    assert b"not detected yet" in events["verdict"]
    assert b"Ground truth" in events["answer"]


def test_it_asks_the_database_a_few_times(
    client: Client,
    drilled: Drilled,
    noticed: Noticed,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    fault = drilled()
    noticed(fault)

    with django_assert_max_num_queries(10):
        client.get(f"/drills/{fault.pk}/")


def test_only_an_operator_is_offered_to_end_it(page: Page, drilled: Drilled, viewer: User) -> None:
    text = page(f"/drills/{drilled(ago=timedelta(seconds=20)).pk}/")

    assert 'data-role="viewer"' in text
    assert 'class="operator"' in text
