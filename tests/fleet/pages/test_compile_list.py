"""Compile cache of the fleet: unplanned recompilations, cost, reason."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries, Settings

from fleet.models import CompileEvent, Run
from fleet.runs.compiles import store_compiles
from telemetry.compiles import HIT, MISS, Compile

Page = Callable[..., str]
COMPILES = "/compiles/"


@pytest.fixture
def now_s() -> float:
    return datetime.now(UTC).timestamp()


def asked(module: str, outcome: str = MISS, *, at_s: float, **more: Any) -> Compile:
    seconds = {} if outcome == HIT else {"seconds": 1800.0}
    return Compile(module, outcome, at_s=at_s, **{"process": "p", **seconds, **more})


@pytest.fixture
def recompiled(run: Run, now_s: float) -> Run:
    """Let a run compile a graph, find it, and compile it again with other flags."""
    Run.objects.update(started_at=datetime.now(UTC) - timedelta(days=2))
    run.refresh_from_db()
    cache = "/fsx/cache"
    store_compiles(
        run,
        [
            asked("MODULE_1+a", at_s=now_s - 90_000, flags="-O1", cache=cache),
            asked("MODULE_1+a", HIT, at_s=now_s - 80_000, cache=cache),
            asked("MODULE_1+b", at_s=now_s - 7_200, flags="-O2", cache=cache),
        ],
    )
    return run


def test_it_shows_what_was_lost_and_what_changed(page: Page, recompiled: Run) -> None:
    text = page(COMPILES)

    assert "<h1>Compile cache</h1>" in text
    assert "flags: -O1 became -O2" in text
    # Half an hour of four nodes at $21.50.
    assert "$43.0" in text
    assert "33 %" in text
    assert "previous: found in the cache" in text


def test_without_an_accident_the_page_states_it(page: Page, run: Run, now_s: float) -> None:
    store_compiles(run, [asked("MODULE_1+a", at_s=now_s - 100)])

    assert "no unplanned compiles" in page(COMPILES)


def test_an_empty_fleet_states_where_compiles_come_from(page: Page, db: None) -> None:
    assert "import_log" in page(COMPILES)


def test_processes_without_a_shared_cache_are_warned_of(
    page: Page, run: Run, now_s: float
) -> None:
    place = "/var/tmp/neuron-compile-cache"
    store_compiles(
        run,
        [
            asked("MODULE_1+a", at_s=now_s - 4_000 + n, process=f"n{n}", cache=place)
            for n in range(3)
        ],
    )
    text = page(COMPILES)

    assert "does not share a compile cache" in text
    assert "3 processes compiled the same graphs;" in text
    assert "local to each node" in text
    assert "NEURON_COMPILE_CACHE_URL" in text


@pytest.mark.parametrize(
    ("query", "is_listed"),
    [
        ("?team=LLM", True),
        ("?team=others", False),
        ("?run=llama", True),
        ("?since=24h", True),
        ("?since=24h&what=failed", False),
        ("?what=compiled", True),
        ("?what=nonsense", True),
    ],
)
def test_it_lists_what_is_asked_for(
    page: Page, recompiled: Run, query: str, *, is_listed: bool
) -> None:
    text = page(COMPILES + query)

    assert ("flags: -O1 became -O2" in text) == is_listed
    assert ("No compile matches" in text) != is_listed


def test_long_ago_is_listed_only_when_asked_for(page: Page, recompiled: Run) -> None:
    CompileEvent.objects.update(at=datetime.now(UTC) - timedelta(days=60))

    assert "flags: -O1" not in page(COMPILES)
    assert "flags: -O1 became -O2" in page(f"{COMPILES}?since=ever")


def test_many_continue_another_page(page: Page, recompiled: Run, now_s: float) -> None:
    store_compiles(recompiled, [asked("MODULE_1+c", at_s=now_s - n) for n in range(60)])

    assert "1 of 3" in page(COMPILES)
    assert 'rel="prev"' in page(f"{COMPILES}?page=2&what=compiled")


@pytest.mark.parametrize("part", ["sums", "events", "by-run"])
def test_it_gives_htmx_only_the_part_it_asks_for(page: Page, recompiled: Run, part: str) -> None:
    text = page(COMPILES, **{"HX-Request": "true", "HX-Target": part})

    assert text.strip().startswith("<section")
    assert f'id="{part}"' in text
    assert "<html" not in text


def test_it_asks_few_questions(
    client: Client, recompiled: Run, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    client.get(COMPILES)
    with django_assert_num_queries(7):
        client.get(COMPILES)


def test_anonymous_users_must_sign_in(client: Client, db: None, settings: Settings) -> None:
    settings.ANONYMOUS_READING = False

    assert client.get(COMPILES).status_code == 302


def test_what_was_announced_has_a_list_of_its_own_and_cost_nothing(
    page: Page, run: Run, now_s: float
) -> None:
    store_compiles(run, [asked("MODULE_7+a", at_s=now_s - 100, is_planned=True)])

    text = page(f"{COMPILES}?what=announced")

    assert "Compiles: planned" in text
    assert "MODULE_7+a" in text
    assert "no unplanned compiles" in page(COMPILES)
