"""A link frozen in time: what stands beside the charts is of that window too, not of now."""

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client

from fleet.models import Alert, Node, Run

Page = Callable[..., str]


def window(*, ago_s: int, length_s: int) -> str:
    """Write a window of the past as an address holds it."""
    start = int(time.time()) - ago_s
    return f"from={start}&to={start + length_s}"


@pytest.fixture
def minute() -> str:
    """The minute up to now, in which ten steps of two seconds were taken."""
    return window(ago_s=60, length_s=60)


def test_a_run_says_what_it_did_in_the_window(page: Page, alive: Run, minute: str) -> None:
    text = page(f"/runs/llama/?{minute}")

    assert " UTC <b>llama</b> took <b>10</b> steps of <b>2.00 s</b>" in text
    assert ">From " in text
    assert "Spent in this window" in text
    assert "over the last minute" not in text


def test_a_run_that_took_no_step_then_says_so(page: Page, alive: Run) -> None:
    text = page(f"/runs/llama/?{window(ago_s=3600, length_s=60)}")

    assert "<b>llama</b> finished no step from" in text


def test_what_stands_for_now_is_left_out(page: Page, alive: Run, minute: str) -> None:
    assert 'id="node-steady"' not in page(f"/runs/llama/?{minute}")
    assert 'id="devices"' not in page(f"/nodes/steady/?{minute}")
    assert 'id="vitals"' not in page(f"/nodes/steady/?{minute}")


def test_a_node_leads_back_to_how_it_is_now(page: Page, alive: Run, minute: str) -> None:
    text = page(f"/nodes/steady/?{minute}")

    assert 'how it is now, on <a href="/nodes/steady/">its page</a>' in text


def test_the_alerts_are_those_that_were_open_then(
    page: Page, fired: Callable[..., Alert], minute: str, limping: Node
) -> None:
    over = fired(ago=timedelta(hours=2))
    over.resolved_at = over.fired_at + timedelta(minutes=5)
    over.save()
    lasting = fired(ago=timedelta(seconds=30), rule="node_silent", subject="node:limping")
    then = f"/nodes/limping/?{window(ago_s=7200 + 60, length_s=240)}"

    assert f'href="/alerts/{over.pk}/"' in page(then)
    assert f'href="/alerts/{lasting.pk}/"' not in page(then)
    assert f'href="/alerts/{lasting.pk}/"' in page(f"/nodes/limping/?{minute}")


def test_nothing_on_it_moves(client: Client, alive: Run, minute: str) -> None:
    assert "data-live=" not in client.get(f"/runs/llama/?{minute}").text
