"""The tour follows a real incident; without one it says how to get one."""

from collections.abc import Callable
from datetime import timedelta

from django.test import Client
from pytest_django import Settings

from fleet.models import Alert
from tests.helpers import just_now

Fire = Callable[..., Alert]


def test_it_follows_the_newest_whole_incident(client: Client, fired: Fire) -> None:
    over = just_now() - timedelta(minutes=3)
    whole = fired(ago=timedelta(minutes=9), resolved_at=over)
    fired(rule="core_slow", cause="slow_core", subject="node:limping")
    text = client.get("/tour/").text

    assert f'href="{whole.get_absolute_url()}#now"' in text
    assert whole.node is not None
    assert whole.node.get_absolute_url() in text
    assert "What fired, and why" in text
    assert "Live updates are off" not in text


def test_every_step_leads_to_a_page(client: Client, alert: Alert) -> None:
    text = client.get("/tour/").text
    steps = text.partition('<ol class="steps">')[2].partition("</ol>")[0]
    links = [part.partition('"')[0] for part in steps.split('href="')[1:]]

    assert len(links) >= 6
    for link in links:
        assert client.get(link.replace("&amp;", "&")).status_code == 200, link


def test_without_an_incident_a_drill_makes_one(
    client: Client, db: None, settings: Settings
) -> None:
    settings.DEMO = True
    assert "/drills/new/" in client.get("/tour/").text
    settings.DEMO = False
    assert "/drills/new/" not in client.get("/tour/").text


def test_the_overview_of_a_demo_says_so_and_offers_it(
    client: Client, alert: Alert, settings: Settings
) -> None:
    settings.DEMO = True
    text = client.get("/").text
    assert "Simulated fleet" in text
    assert 'href="/tour/"' in text
    settings.DEMO = False
    assert "Simulated fleet" not in client.get("/").text
