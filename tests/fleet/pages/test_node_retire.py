"""Retiring a node from its page, and the lists without it."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from fleet.models import Node, Run
from tests.helpers import NOON

Page = Callable[..., str]


@pytest.fixture
def gone(alive: Run) -> Node:
    """Make a real node that has been silent for days."""
    return Node.objects.create(
        name="gone",
        instance_type="trn1.32xlarge",
        source=Node.Source.NEURON_MONITOR,
        shard="node:gone",
        n_cores=32,
        n_devices=16,
        first_seen_at=NOON,
    )


def test_an_operator_retires_it_and_brings_it_back(
    client: Client, page: Page, gone: Node, operator: User
) -> None:
    assert "Retire this node…" in page("/nodes/gone/")

    done = client.post("/nodes/gone/retire/", follow=True).text
    again = client.post("/nodes/gone/retire/", follow=True).text

    assert "gone is retired." in done
    assert "by olga. Its next report brings it back." in done
    assert "is already retired" in again
    assert Node.objects.get(name="gone").retired_by == "olga"

    back = client.post("/nodes/gone/retire/", {"undo": "yes"}, follow=True).text
    assert "gone is back in use." in back
    assert (
        "is not retired" in client.post("/nodes/gone/retire/", {"undo": "yes"}, follow=True).text
    )


def test_lists_leave_it_out_unless_asked_for(page: Page, gone: Node) -> None:
    assert ">gone</a>" in page("/nodes/")

    Node.objects.filter(name="gone").update(retired_at=timezone.now())

    assert ">gone</a>" not in page("/nodes/")
    assert "gone" not in page("/")
    retired = page("/nodes/?state=retired")
    assert ">gone</a>" in retired
    assert ">steady</a>" not in retired
    assert "node, trn1.32xlarge, retired" in page("/search?q=gone")
    assert "is <b>retired</b>" in page("/nodes/gone/")


def test_a_node_that_reports_is_refused(client: Client, gone: Node, operator: User) -> None:
    Node.objects.filter(name="steady").update(source=Node.Source.NEURON_MONITOR)

    refused = client.post("/nodes/steady/retire/", follow=True).text

    assert "Stop its agent and its training job first" in refused
    assert "Retire this node" not in refused
    assert Node.objects.get(name="steady").retired_at is None
