"""A run that requires a preflight: its page and the overview show a start without one."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.checks.preflights import set_requirement
from fleet.models import Node, Run
from tests.fleet.pages.conftest import Page
from tests.fleet.pages.preflights import done

pytestmark = pytest.mark.django_db


def test_who_requires_one_reads_at_once_that_there_was_none(
    client: Client, operator: User, alive: Run
) -> None:
    response = client.post("/runs/llama/preflight/", {"requires": "yes"}, follow=True)

    assert response.redirect_chain == [("/runs/llama/", 302)]
    assert "started without a pass" in response.text
    assert "No preflight of all its nodes ended in the 24 hours before the start" in response.text
    assert Run.objects.get().requires_preflight

    again = client.post("/runs/llama/preflight/", {"requires": "no"}, follow=True).text

    assert "llama does not require a preflight." in again
    assert "started without a pass" not in again


def test_the_overview_flags_it(page: Page, alive: Run) -> None:
    assert "no preflight" not in page("/")

    set_requirement(alive, requires=True)

    assert "</span> no preflight</span>" in page("/")


def test_a_run_whose_nodes_passed_states_it(
    page: Page, alive: Run, steady: Node, limping: Node
) -> None:
    before = alive.started_at - timedelta(hours=2)
    preflight = done(names=["steady", "limping"], instance_type="", faults=(), take=None)
    type(preflight).objects.filter(pk=preflight.pk).update(finished_at=before)
    set_requirement(alive, requires=True)

    text = page("/runs/llama/")

    assert "passed before the start" in text
    assert 'href="/preflight/?run=llama"' in text


def test_another_value_changes_nothing(client: Client, operator: User, alive: Run) -> None:
    client.post("/runs/llama/preflight/", {"requires": "perhaps"})

    assert not Run.objects.get().requires_preflight
