"""Times are readable without JavaScript, and stay the same between live updates."""

from datetime import timedelta

from django.template import Context, Template
from django.utils import timezone

from tests.helpers import NOON, NOON_S

LOAD = "{% load formats %}"


def shown(text: str, **context: object) -> str:
    """Render a template with the time tags loaded."""
    return Template(LOAD + text).render(Context(context))


def test_a_time_is_readable_by_people_and_machines() -> None:
    html = shown("{% at when %}", when=NOON)

    assert 'datetime="2026-03-02T12:00:00Z"' in html
    assert 'title="2026-03-02 12:00:00 UTC"' in html
    assert ">12:00:00</time>" in html


def test_unix_seconds_are_times_too() -> None:
    assert shown("{% at when 'day' %}", when=NOON_S) == shown("{% at when 'day' %}", when=NOON)


def test_how_long_ago_reads_without_javascript() -> None:
    assert ">3\u202fmin</time>" in shown(
        "{% ago when %}", when=timezone.now() - timedelta(seconds=200)
    )


def test_a_live_part_has_fixed_times_so_that_it_changes_only_with_its_data() -> None:
    first = shown("{% ago when %}", when=NOON, live=True)

    assert first == shown("{% ago when %}", when=NOON, live=True)
    assert ">12:00:00</time>" in first


def test_no_time_is_a_dash() -> None:
    assert shown("{% ago when %}{% at when %}", when=None) == "\u2013\u2013"
