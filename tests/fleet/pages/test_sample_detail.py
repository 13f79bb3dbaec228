"""The page of one sample: readings, their real period, and what is missing."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from fleet.ingest.samples import record_answer
from fleet.models import Node, SampleRequest
from tests.fleet.samples import requested, taken

Page = Callable[..., str]

pytestmark = pytest.mark.django_db


def test_it_shows_readings_and_charts(page: Page, steady: Node) -> None:
    row = taken(steady, now=timezone.now())
    text = page(row.get_absolute_url())

    assert "100 ms sample of steady" in text
    assert "Requested by olga" in text
    assert "299 of 300" in text
    assert "100 ms</td>" in text
    assert "the Neuron driver shows no core times." in text
    assert "did not accept" not in text
    for chart in ("cores", "efa-sent", "efa-received"):
        assert f'data-src="{row.get_absolute_url()}charts/{chart}"' in text
    assert f'href="/nodes/steady/samples/{row.pk}.csv"' in text


def test_a_monitor_that_kept_to_a_second_is_stated(page: Page, steady: Node) -> None:
    row = taken(steady, now=timezone.now(), monitor_ms=1000)
    text = page(row.get_absolute_url())

    assert "neuron-monitor answered each 1.00 s: it did not accept 100 ms." in text
    assert "30 of 300" in text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "Waiting for the agent"),
        ({"state": "sampling"}, "Sampling."),
        ({"reason": "no <b> here"}, "No sample: no &lt;b&gt; here."),
    ],
)
def test_without_a_sample_it_shows_how_far_the_request_is(
    page: Page, steady: Node, answer: dict[str, str] | None, text: str
) -> None:
    row = requested(steady, now=timezone.now())
    if answer is not None:
        record_answer("steady", {"id": row.pk, **answer})
    shown = page(row.get_absolute_url())

    assert text in shown
    assert "Download CSV" not in shown
    assert "data-chart" not in shown


def test_it_follows_a_request_and_is_loaded_again_when_it_is_answered(
    steady: Node, client: Client, viewer: User
) -> None:
    client.force_login(viewer)
    row = requested(steady, now=timezone.now())
    address, htmx = row.get_absolute_url(), {"hx-request": "true"}
    assert 'hx-trigger="every 2s"' in client.get(address).content.decode()
    assert "HX-Refresh" not in client.get(address, headers=htmx).headers
    record_answer("steady", {"id": row.pk, "reason": "no neuron-monitor"})
    assert client.get(address, headers=htmx).headers["HX-Refresh"] == "true"
    assert "every 2s" not in client.get(address).content.decode()


def test_one_whose_readings_were_removed_states_it(page: Page, steady: Node) -> None:
    row = taken(steady, now=timezone.now())
    SampleRequest.objects.update(answer=None)

    assert "only the newest of a node are kept" in page(row.get_absolute_url())


def test_it_is_found_below_its_own_node_only(
    client: Client, steady: Node, limping: Node, operator: User
) -> None:
    row = taken(steady, now=timezone.now())

    assert client.get(f"/nodes/limping/samples/{row.pk}/").status_code == 404
    assert client.get("/nodes/steady/samples/999999/").status_code == 404
    assert client.post(row.get_absolute_url()).status_code == 405
