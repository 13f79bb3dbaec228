"""One support check: blocking operators first, then all with their remedy."""

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.checks.support import check_operators, store_check
from fleet.models import SupportCheck, Trial
from fleet.pages.support import MOST_SHOWN
from tests.fleet.checks.test_support_checks import checked, given
from tests.fleet.pages.conftest import Page
from tests.helpers import NOON

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]


def kept(name: str = "export.txt", report: str = "") -> SupportCheck:
    trial, _ = Trial.objects.get_or_create(
        name="move", defaults={"question": "?", "created_by": "x", "created_at": NOON}
    )
    return store_check(checked(name, report), by="lee", now=NOON, trial=trial)


def test_what_stands_comes_first_then_the_worst(page: Page) -> None:
    text = page(kept().get_absolute_url())

    places = [
        text.index(each)
        for each in (
            "1 of 9 operators is unsupported, 2 unknown.",
            "it is incomplete",
            'id="unsupported-title"',
            "<code>aten::triangular_solve</code>",
            'id="unknown-title"',
            "<code>rl::advantage</code>",
            'id="supported-title"',
            "<code>aten::mm</code>",
        )
    ]
    assert places == sorted(places)


def test_unknown_ones_say_what_to_do(page: Page) -> None:
    text = page(kept().get_absolute_url())

    assert "compile a model of one layer that uses it" in text
    assert "neuron_parallel_compile --command analyze" in text


def test_the_compilers_result_is_shown_as_an_override(page: Page) -> None:
    text = page(kept("export.txt", "result.json").get_absolute_url())

    assert "overrides the published list" in text
    assert "neuronx-cc 2.15.128.0+56dc5a86" in text
    assert "the published list has it, but the report overrides it" in text


def test_all_supported_asks_for_nothing(page: Page) -> None:
    found = check_operators(given("ops.txt", b"aten::add\n"), most_bytes=100)
    text = page(store_check(found, by="lee", now=NOON).get_absolute_url())

    assert "The only operator is supported." in text
    assert "What to do" not in text


def test_many_are_counted_and_some_shown(page: Page) -> None:
    lines = "\n".join(f"aten::strange{i}" for i in range(MOST_SHOWN + 7))
    found = check_operators(given("ops.txt", lines.encode()), most_bytes=100_000)
    text = page(store_check(found, by="lee", now=NOON).get_absolute_url())

    assert "7 more are not shown" in text
    assert text.count("<code>aten::strange") == MOST_SHOWN


def test_it_links_its_trial_and_the_trial_links_it(page: Page) -> None:
    one = kept()

    assert '<a href="/trials/move/">move</a>' in page(one.get_absolute_url())
    text = page("/trials/move/")
    assert f'<a href="{one.get_absolute_url()}">export.txt</a>' in text
    assert "1 of 9 operators is unsupported, 2 unknown." in text


def test_it_stays_within_its_queries(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    path = kept().get_absolute_url()

    with django_assert_max_num_queries(10):
        assert client.get(path).status_code == 200
