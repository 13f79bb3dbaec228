"""Shift handover: open alerts, a note, assignment."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet import alerts
from fleet.models import Alert, HandoverNote
from tests.helpers import just_now

Page = Callable[..., str]
Fire = Callable[..., Alert]
HOUR = timedelta(hours=1)


@pytest.fixture
def omar(db: None) -> User:
    user = User.objects.create_user("omar")
    user.groups.add(Group.objects.get(name="operator"))
    return user


def test_an_empty_shift_states_it(page: Page, db: None) -> None:
    reported = page("/hand-over/")

    assert "no open alerts" in reported
    assert "No alert was resolved." in reported
    assert "No notes yet." in reported


def test_open_alerts_show_their_owner_and_unacknowledged_ones_come_first(
    page: Page, fired: Fire
) -> None:
    now = just_now()
    mine = fired(acknowledged_at=now - 5 * HOUR, acknowledged_by="olga", ago=6 * HOUR)
    free = fired(subject="run:free")

    reported = page("/hand-over/")
    assert reported.index(f'id="alert-{free.pk}"') < reported.index(f'id="alert-{mine.pk}"')
    assert "1 unacknowledged" in reported
    assert "1 without an update" in reported
    assert "no update for" in reported


def test_who_has_had_it_longest_comes_before_the_others(page: Page, fired: Fire) -> None:
    for hours in (1, 3, 2):
        at = just_now() - hours * HOUR
        fired(subject=f"run:{hours}", acknowledged_at=at, acknowledged_by="olga", ago=4 * HOUR)

    held = [alert.pk for alert in Alert.objects.order_by("acknowledged_at")]
    reported = page("/hand-over/")
    assert sorted(held, key=lambda pk: reported.index(f'id="alert-{pk}"')) == held


def test_it_shows_what_is_over_silenced_recurring_and_reported(page: Page, fired: Fire) -> None:
    now = just_now()
    fired(resolved_at=now - HOUR, ago=2 * HOUR, last_seen_at=now - HOUR)
    fired(resolved_at=now - 30 * HOUR, ago=31 * HOUR, last_seen_at=now - 30 * HOUR)
    again = fired(n_firings=3)
    alerts.comment(again, by="olga", text="swapped the cable", now=just_now())
    alerts.silence("run=other", ends_at=now + HOUR, reason="moved", by="olga", now=now)

    reported = page("/hand-over/?hours=8")
    assert "never acknowledged" in reported
    assert "5 times" in reported
    assert "swapped the cable" in reported
    assert "“moved”" in reported


def test_the_newest_resolved_alert_comes_first(page: Page, fired: Fire) -> None:
    now = just_now()
    early, late = (
        fired(subject=f"run:{hours}", resolved_at=now - hours * HOUR, ago=ago * HOUR)
        for hours, ago in ((2, 3), (1, 4))
    )
    reported = page("/hand-over/?hours=8")
    addresses = [f'href="{each.get_absolute_url()}"' for each in (late, early)]
    assert reported.index(addresses[0]) < reported.index(addresses[1])


def test_a_note_is_kept_with_its_shift(client: Client, operator: User, omar: User) -> None:
    response = client.post("/hand-over/", {"text": " watch rack 4 ", "to": "omar", "hours": "12"})

    note = HandoverNote.objects.get()
    assert response["Location"] == "/hand-over/"
    assert (note.by, note.to, note.text) == ("olga", "omar", "watch rack 4")
    assert timedelta(hours=11, minutes=59) < note.at - note.since < timedelta(hours=12, minutes=1)
    assert "watch rack 4" in client.get("/hand-over/").text


def test_the_next_shift_begins_with_the_note(client: Client, operator: User) -> None:
    client.post("/hand-over/", {"text": "quiet"})
    client.post("/hand-over/", {"text": "quiet still"})

    later, earlier = HandoverNote.objects.all()
    assert later.since == earlier.at


def test_the_author_may_assign_their_alerts(
    client: Client, fired: Fire, operator: User, omar: User
) -> None:
    mine, hers = fired(), fired(subject="run:other")
    alerts.acknowledge(mine, by="olga", comment="", now=just_now())
    alerts.acknowledge(hers, by="vera", comment="", now=just_now())

    client.post("/hand-over/", {"text": "yours", "to": "omar", "assigns": "on"})

    mine.refresh_from_db()
    hers.refresh_from_db()
    assert (mine.owner, hers.owner) == ("omar", "vera")
    assert mine.events.filter(kind="assigned", by="olga", text="to omar: shift handover").exists()


@pytest.mark.parametrize(
    ("field", "posted", "shown"),
    [
        ("text", {"text": " "}, "is empty. Write"),
        ("text", {"text": "x" * 5001}, "is longer than 5,000"),
        ("to", {"text": "hm", "to": "missing"}, "is not an operator"),
        ("to", {"text": "hm", "assigns": "on"}, "is empty. Choose"),
    ],
)
def test_an_invalid_note_is_refused_at_its_field_and_stays_in_the_form(
    client: Client, operator: User, field: str, posted: dict[str, str], shown: str
) -> None:
    response = client.post("/hand-over/", posted | {"hours": "12"})
    form = response.context["form"]

    assert response.status_code == 422
    assert list(form.errors) == [field]
    assert shown in form.errors[field][0]
    assert f'aria-invalid="true" aria-describedby="id_{field}_error"' in response.text
    assert form["text"].value() == posted["text"]
    assert 'name="hours" value="12"' in response.text
    assert not HandoverNote.objects.exists()


@pytest.mark.parametrize("part", ["open", "note"])
def test_it_gives_htmx_only_the_part_it_asks_for(page: Page, operator: User, part: str) -> None:
    reported = page("/hand-over/", **{"HX-Request": "true", "HX-Target": part})

    assert reported.strip().startswith("<section")
    assert f'id="{part}"' in reported


@pytest.mark.parametrize("hours", ["0", "x", "9999", ""])
def test_a_shift_that_cannot_be_is_the_usual_one(page: Page, db: None, hours: str) -> None:
    assert "Shift handover" in page(f"/hand-over/?hours={hours}")


def test_it_asks_the_database_the_same_however_much_there_is(
    client: Client,
    fired: Fire,
    operator: User,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for i in range(6):
        fired(subject=f"run:{i}", acknowledged_at=just_now(), acknowledged_by="olga")
        fired(subject=f"run:{i}", resolved_at=just_now())

    with django_assert_max_num_queries(11):
        client.get("/hand-over/?hours=8")
