"""State by shape and word as well as colour; share bars have text."""

import math

import pytest
from django.template import Context, Template

from fleet.models import Run
from fleet.pages.templatetags.marks import STATES, spread_bar, tag


def bar(transfer: float | None, wait: float | None) -> str:
    """Render a share bar."""
    template = Template("{% load marks %}{% share_bar transfer wait 0.25 %}")
    return template.render(Context({"transfer": transfer, "wait": wait}))


@pytest.mark.parametrize("state", STATES)
def test_a_state_has_a_name_and_a_shape(state: str) -> None:
    html = tag(state)

    assert state.replace("_", " ") in html
    assert STATES[state][1] in html


@pytest.mark.parametrize("phase", Run.Phase.values)
def test_every_phase_of_a_run_has_its_mark(phase: str) -> None:
    assert phase in STATES


def test_text_is_escaped() -> None:
    assert "<b>" not in tag("firing", "<b>")


def test_a_share_bar_ends_at_half_of_the_step() -> None:
    html = bar(0.272, 0.042)

    assert 'width="54.4%"' in html
    assert 'x="54.4%" width="8.4%"' in html
    assert 'x="50.0%"' in html


def test_a_share_bar_is_read_out() -> None:
    assert "transferring" in bar(0.2, 0.1)
    assert 'aria-label="no steps yet"' in bar(None, None)
    assert 'aria-label="no steps yet"' in bar(math.nan, None)


def test_a_share_beyond_the_bar_fills_it() -> None:
    assert 'class="t" width="100.0%"' in bar(0.8, 0.0)


def test_a_spread_reaches_from_the_lowest_to_the_highest_and_is_never_invisible() -> None:
    drawn = spread_bar(0.25, 0.5, 0.75)

    assert 'x="25.0%" width="50.0%"' in drawn
    assert 'class="mean" x="50.0%"' in drawn
    assert 'width="0.8%"' in spread_bar(0.5, 0.5, 0.5)


def test_a_spread_of_nothing_states_that_there_is_no_data() -> None:
    assert 'aria-label="no data"' in spread_bar(None, None, None)
