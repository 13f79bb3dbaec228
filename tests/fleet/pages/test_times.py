"""Times are readable without JavaScript, and stay the same between live updates."""

import re
from datetime import timedelta

import pytest
from django.template import Context, Template
from django.utils import timezone

from fleet.formatting import written
from tests.helpers import NOON, NOON_S

LOAD = "{% load formats %}"


def shown(text: str, **context: object) -> str:
    """Render a template with the time tags loaded."""
    return Template(LOAD + text).render(Context(context))


def test_a_time_is_readable_by_people_and_machines() -> None:
    html = shown("{% at when %}", when=NOON)

    assert 'datetime="2026-03-02T12:00:00Z"' in html
    assert 'title="2026-03-02 12:00:00 UTC"' in html
    assert f">{written(NOON)}</time>" in html


@pytest.mark.parametrize("form", ["clock", "minute"])
def test_a_time_has_its_date_unless_it_is_today(form: str) -> None:
    now = timezone.now()
    dated = re.compile(rf">\d+ {now:%b}( \d{{4}})? \d\d:")

    today = shown("{% at when form %}", when=now, form=form)
    assert not dated.search(today)
    assert dated.search(shown("{% at when form %}", when=now - timedelta(days=365), form=form))


def test_a_range_names_its_dates_and_the_zone() -> None:
    html = shown("{% period start end %}", start=NOON_S - 86_400, end=NOON_S)

    assert ">2026-03-01 12:00:00</time> to " in html
    assert html.endswith(">2026-03-02 12:00:00</time> <span data-zone>UTC</span>")


def test_unix_seconds_are_times_too() -> None:
    assert shown("{% at when 'day' %}", when=NOON_S) == shown("{% at when 'day' %}", when=NOON)


def test_how_long_ago_reads_without_javascript() -> None:
    assert ">3\u202fmin</time>" in shown(
        "{% ago when %}", when=timezone.now() - timedelta(seconds=200)
    )


def test_a_live_part_has_fixed_times_so_that_it_changes_only_with_its_data() -> None:
    first = shown("{% ago when %}", when=NOON, live=True)

    assert first == shown("{% ago when %}", when=NOON, live=True)
    assert f">{written(NOON)}</time>" in first


def test_no_time_is_a_dash() -> None:
    assert shown("{% ago when %}{% at when %}", when=None) == "\u2013\u2013"
