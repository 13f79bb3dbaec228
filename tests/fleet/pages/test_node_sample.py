"""Requesting a sample on the page of a node: roles, refusals, and how far it is."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from fleet.models import Node, Run, SampleRequest
from fleet.pages.topics import TOPICS, live_topic
from tests.fleet.samples import requested, taken
from tests.helpers import LLAMA

Page = Callable[..., str]
URL = "/nodes/steady/sample/"
HTMX = {"HX-Request": "true", "HX-Target": "sample"}


@pytest.fixture
def node(alive: Run) -> Node:
    """Make the reporting nodes simulated ones with an agent."""
    Run.objects.update(plan=msgspec.to_builtins(LLAMA))
    return Node.objects.get(name="steady")


@pytest.fixture
def panel(page: Page, node: Node) -> Callable[[], str]:
    """Read the panel of the node's page."""

    def read() -> str:
        text = page("/nodes/steady/")
        return text.partition('id="sample"')[2].partition("</section>")[0]

    return read


def test_an_operator_requests_a_sample(
    client: Client, panel: Callable[[], str], operator: User
) -> None:
    text = panel()
    assert "No sample was taken." in text
    assert "<button>Sample at 100 ms for 30 s</button>" in text
    assert "csrfmiddlewaretoken" in text

    done = client.post(URL, follow=True)

    assert done.redirect_chain == [("/nodes/steady/#sample", 302)]
    assert "A sample of steady is requested." in done.text
    row = SampleRequest.objects.get()
    assert (row.node.name, row.requested_by) == ("steady", "olga")
    text = panel()
    assert "Waiting for the agent" in text
    assert "Requested by olga" in text
    assert "Times out after 3 min." in text
    assert "under way, requested by olga" in text


def test_one_is_refused_while_another_is_under_way(
    client: Client, panel: Callable[[], str], operator: User
) -> None:
    client.post(URL)
    plain = client.post(URL, follow=True).text
    swapped = client.post(URL, headers=HTMX)

    assert "A sample of steady is under way, requested by olga." in plain
    assert swapped.status_code == 422
    assert 'role="alert">A sample of steady is under way' in swapped.text
    assert "<html" not in swapped.text
    assert SampleRequest.objects.count() == 1


def test_by_htmx_the_panel_is_answered(client: Client, node: Node, operator: User) -> None:
    response = client.post(URL, headers=HTMX)

    assert response.status_code == 200
    assert "Waiting for the agent" in response.text
    assert "<html" not in response.text


def test_a_viewer_sees_why_not_and_may_not(
    client: Client, panel: Callable[[], str], viewer: User
) -> None:
    assert (
        '<button type="button" class="only-viewer" disabled aria-describedby="sample-role">'
        in panel()
    )
    assert "This needs the role operator." in panel()
    assert client.post(URL).status_code == 403
    assert not SampleRequest.objects.exists()


def test_the_reason_why_it_is_not_possible_is_shown(
    panel: Callable[[], str], node: Node, operator: User, settings: Settings
) -> None:
    Node.objects.filter(pk=node.pk).update(source=Node.Source.NEURON_MONITOR)
    assert "steady has no agent, which takes the sample." in panel()
    assert 'disabled aria-describedby="sample-refusal"' in panel()
    settings.REQUEST_SAMPLES = False
    assert "This installation requests no samples" in panel()


def test_the_progress_and_every_end_is_shown(
    panel: Callable[[], str], node: Node, operator: User
) -> None:
    now = timezone.now()
    row = requested(node, now=now, ago_s=12)
    rows = SampleRequest.objects.filter(pk=row.pk)
    rows.update(started_at=now - timedelta(seconds=10))
    assert "Sampling." in panel()
    progress = re.search(r'<progress max="30" value="(\d+)"', panel())
    assert progress
    assert 10 <= int(progress[1]) < 30
    rows.update(started_at=now - timedelta(seconds=32))
    assert "The agent sends the sample with its next report." in panel()
    rows.update(requested_at=now - timedelta(minutes=4))
    assert "No answer within 3 min." in panel()
    rows.update(answered_at=now, reason="the agent runs with --refuse-samples")
    assert "No sample: the agent runs with --refuse-samples." in panel()
    done = taken(node, now=now)
    assert f'href="/nodes/steady/samples/{done.pk}/">Show the sample' in panel()
    SampleRequest.objects.filter(pk=done.pk).update(answer=None)
    assert "its readings were removed" in panel()


def test_the_live_part_shows_it_and_has_no_token(node: Node) -> None:
    requested(node, now=datetime.now(UTC))
    sent = live_topic(TOPICS, "node:steady", {}).render()["sample"].decode()

    assert "Waiting for the agent" in sent
    assert "csrfmiddlewaretoken" not in sent


def test_the_change_log_names_who_requested_it(page: Page, node: Node) -> None:
    row = taken(node, now=timezone.now())
    text = page("/changes/?kind=samples")

    assert f'<a href="/nodes/steady/samples/{row.pk}/">sample of node steady' in text
    assert ">olga</td>" in text
