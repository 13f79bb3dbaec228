"""Retiring a run from its page, and the lists without it."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from fleet.models import Run
from tests.helpers import NOON

Page = Callable[..., str]


@pytest.fixture
def over(alive: Run) -> Run:
    """Make a run that ended long ago."""
    return Run.objects.create(
        name="old",
        team="search",
        model="bert-large",
        instance_type="trn1.2xlarge",
        n_nodes=1,
        seq_len=128,
        global_batch=64,
        usd_per_node_hour=1.34,
        price_basis="on demand",
        phase="finished",
        phase_since=NOON,
        started_at=NOON,
        finished_at=NOON,
        session="first",
        heard_at=NOON,
    )


def test_an_operator_retires_it_and_brings_it_back(
    client: Client, page: Page, over: Run, operator: User
) -> None:
    assert "Retire this run…" in page("/runs/old/")

    done = client.post("/runs/old/retire/", follow=True).text

    assert "old is retired." in done
    assert "by olga. Its next report brings it back." in done
    assert Run.objects.get(name="old").finished_at == NOON
    assert "is back in use" in client.post("/runs/old/retire/", {"undo": "yes"}, follow=True).text


def test_lists_leave_it_out_unless_asked_for(page: Page, over: Run) -> None:
    assert ">old</a>" in page("/runs/")
    assert ">old</a>" in page("/runs/?q=BERT")
    assert ">old</a>" not in page("/runs/?state=active")

    Run.objects.filter(name="old").update(retired_at=timezone.now())

    assert ">old</a>" not in page("/runs/")
    assert ">old</a>" in page("/runs/?state=retired")
    assert "No run matches the filter" in page("/runs/?state=over")
    assert "run, retired" in page("/search?q=old")


def test_a_run_that_trains_is_refused(client: Client, alive: Run, operator: User) -> None:
    Run.objects.update(heard_at=timezone.now(), session="first")

    refused = client.post("/runs/llama/retire/", follow=True).text

    assert "End its training job first" in refused
    assert "Retire this run" not in refused
    assert Run.objects.get().retired_at is None
