"""The change log: who changed the configuration, from the rows that record it."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.access.people import change_role, create_person, reset_password, set_active
from fleet.models import (
    Annotation,
    Budget,
    ConfigurationChange,
    Node,
    Run,
    Silence,
    SilenceEvent,
    Token,
)
from fleet.runs.limits import set_limits
from tests.helpers import just_now

Page = Callable[..., str]


def changed(text: str, *, by: str = "olga", ago_s: float = 0.0) -> None:
    at = just_now() - timedelta(seconds=ago_s)
    ConfigurationChange.objects.create(at=at, by=by, text=text)


@pytest.fixture
def several(alive: Run, steady: Node) -> None:
    """Change one thing of each kind that viewers may see, the first the latest."""
    now = just_now()
    changed("created receiver pager", ago_s=10)
    silence = Silence.objects.create(
        matchers="run=llama",
        reason="planned",
        by="vera",
        starts_at=now,
        ends_at=now + timedelta(hours=1),
    )
    at = now - timedelta(seconds=20)
    SilenceEvent.objects.create(silence=silence, at=at, kind="created", by="vera")
    for kind, text, ago_s in (("deploy", "loader 2.4.1", 30), ("checkpoint", "took 2 s", 35)):
        at = now - timedelta(seconds=ago_s)
        Annotation.objects.create(run=alive, at=at, kind=kind, text=text, by="ci")
    at = now - timedelta(seconds=40)
    Node.objects.filter(pk=steady.pk).update(retired_at=at, retired_by="olga")


def test_limits_of_runs_and_roles_are_changes(client: Client, admin: User, alive: Run) -> None:
    now = just_now()
    set_limits(alive.name, {"node_idle-idle_s": 5.0}, by="olga", now=now)
    user, _ = create_person("new", "viewer", by="admin", now=now)
    change_role(user, "operator", by="admin", now=now)
    set_active(user, is_active=False, by="", now=now)
    reset_password(user, by="admin", now=now)

    text = client.get("/changes/").text.replace("\u202f", " ")
    for each in (
        "llama: Node idle for 5 min instead of 10 min",
        "account new created with role viewer",
        "role of new: operator instead of viewer",
        "account new disabled",
        "password of new reset",
    ):
        assert each in text
    assert "command line" in text
    # Each once: the marker on the run's charts is no further change.
    assert "5 changes" in text
    assert "4\u202fchanges" in client.get("/changes/?kind=people").text
    # Who may not see accounts sees no changes of them.
    client.force_login(User.objects.create_user("vera"))
    assert "account new" not in client.get("/changes/").text


def test_changes_of_all_kinds_are_listed_the_newest_first(page: Page, several: None) -> None:
    text = page("/changes/")
    words = (
        "created receiver pager",
        "silence created, run=llama",
        "deploy on llama: loader 2.4.1",
        "node steady retired",
    )
    places = [text.index(each) for each in words]

    assert places == sorted(places)
    assert "4 changes" in text
    assert "took 2 s" not in text
    assert 'href="/nodes/steady/"' in text


@pytest.mark.parametrize(
    ("query", "total"),
    [
        ("kind=silences", "1 change<"),
        ("who=olga", "2 changes"),
        ("kind=retirements&who=olga", "1 change<"),
        ("kind=silences&who=olga", "0 changes"),
        # An unknown kind is none.
        ("kind=gossip", "4 changes"),
        ("who=someone", "0 changes"),
    ],
)
def test_it_filters_by_kind_and_person(page: Page, several: None, query: str, total: str) -> None:
    assert total in page(f"/changes/?{query}")


def test_a_filter_that_nothing_matches_leads_to_all(page: Page, several: None) -> None:
    assert "No change matches the filter" in page("/changes/?who=someone")


def test_without_changes_it_states_that(page: Page, db: None) -> None:
    assert "No change is recorded." in page("/changes/")


def test_it_has_pages_that_keep_the_filter(page: Page, db: None) -> None:
    for i in range(51):
        changed(f"created receiver r{i:02d}", ago_s=i)
    first = page("/changes/?who=olga")
    second = page("/changes/?who=olga&page=2")

    assert "created receiver r49" in first
    assert "created receiver r50" not in first
    assert "?who=olga&amp;page=2" in first
    assert "created receiver r50" in second
    assert "created receiver r49" not in second


@pytest.fixture
def secret(db: None) -> None:
    now = just_now()
    Token.issue("grafana", "read", now=now, by="anna")
    Token.objects.update(revoked_at=now)
    Budget.objects.create(
        team="vision",
        usd=900,
        starts_at=now,
        ends_at=now + timedelta(days=9),
        set_by="lea",
        set_at=now,
    )


def test_an_admin_sees_tokens_and_budgets(page: Page, secret: None, admin: User) -> None:
    text = page("/changes/")

    assert "token grafana of scope read created" in text
    assert "token grafana of scope read revoked" in text
    assert "command line" in text
    assert "budget of $900 for vision set" in text
    assert "withdrawn" not in text


def test_others_do_not(page: Page, secret: None, viewer: User) -> None:
    text = page("/changes/")

    assert "0 changes" in text
    for word in ("grafana", "budget of", "anna", "lea<", ">tokens<"):
        assert word not in text


def test_what_people_wrote_is_no_markup(page: Page, db: None) -> None:
    changed("<script>alert(1)</script>")
    assert "<script>alert(1)" not in page("/changes/")


def test_the_menu_leads_there(page: Page, db: None) -> None:
    assert 'href="/changes/" data-page="changes" aria-current="page"' in page("/changes/")


def test_the_number_of_queries_does_not_grow(
    client: Client, db: None, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for i in range(30):
        changed(f"created receiver r{i}")
    with django_assert_max_num_queries(16):
        client.get("/changes/")
