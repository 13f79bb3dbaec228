"""Starting a drill: run, fault, location, magnitude; simulated runs only."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from fleet.models import InjectedFault, Run
from telemetry.simulate.faults import FAULTS

Page = Callable[..., str]
NEW = "/drills/new/"
GOOD = {
    "run": "llama",
    "kind": "slow_core",
    "node": "llama-01",
    "device": "7",
    "magnitude": "1.5",
    "duration_s": "120",
}
HTMX = {"HX-Request": "true", "HX-Target": "start"}


def post(client: Client, **fields: str) -> Any:
    return client.post(NEW, GOOD | fields, headers=HTMX)


def test_it_offers_runs_and_faults_and_states_what_the_fault_is(
    page: Page, simulated: Run, operator: User
) -> None:
    text = page(f"{NEW}?kind=throttle")

    assert "<h1>Start a drill</h1>" in text
    assert 'value="llama" selected' in text
    assert "A whole accelerator runs at a lower clock" in text
    assert "Expected detection within" in text


@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_is_explained_and_previewed(
    page: Page, simulated: Run, operator: User, kind: str
) -> None:
    text = page(f"{NEW}?kind={kind}")

    assert f'value="{kind}" selected' in text
    assert "How it shows: <" not in text


def test_it_injects_what_was_chosen_and_leads_to_its_page(
    client: Client, simulated: Run, operator: User
) -> None:
    response = post(client)

    fault = InjectedFault.objects.get()
    assert response["HX-Redirect"] == f"/drills/{fault.pk}/"
    assert (fault.kind, fault.device, fault.injected_by) == ("slow_core", 7, "olga")


def test_without_javascript_it_leads_there_too(
    client: Client, simulated: Run, operator: User
) -> None:
    response = client.post(NEW, GOOD)

    assert response.status_code == 302
    assert response["Location"] == f"/drills/{InjectedFault.objects.get().pk}/"


def test_htmx_is_given_only_the_form(client: Client, simulated: Run, operator: User) -> None:
    response = client.get(f"{NEW}?kind=hang", headers=HTMX)

    assert response.text.strip().startswith('<div id="start"')


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "gremlins"), ("node", "missing"), ("device", "99"), ("duration_s", "0")],
)
def test_an_invalid_value_is_reported_next_to_its_field(
    client: Client, simulated: Run, operator: User, field: str, value: str
) -> None:
    response = post(client, **{field: value})

    assert response.status_code == 422
    assert f'id="id_{field}_error"' in response.text
    assert not InjectedFault.objects.exists()


def test_where_drills_are_switched_off_the_page_states_it(
    client: Client, page: Page, simulated: Run, operator: User, settings: Settings
) -> None:
    settings.ALLOW_DRILLS = False

    assert "TRNWATCH_ALLOW_DRILLS=1" in page(NEW)
    response = post(client)
    assert response.status_code == 422
    assert not InjectedFault.objects.exists()


def test_a_real_run_is_not_to_be_had(client: Client, alive: Run, operator: User) -> None:
    assert "no simulated run is active" in client.get(NEW).text
    assert post(client).status_code == 422
    assert not InjectedFault.objects.exists()


def test_a_run_that_is_over_is_reported_next_to_its_field(
    client: Client, simulated: Run, operator: User
) -> None:
    simulated.pk = None
    simulated.name = "newer"
    simulated.save()
    Run.objects.filter(name="llama").update(finished_at=simulated.started_at)

    response = post(client)

    assert response.status_code == 422
    assert "Choose another" in response.text.partition('id="id_run_error"')[2]
    assert "newer, " in response.text
    assert client.get(f"{NEW}?run=llama").status_code == 404
    assert not InjectedFault.objects.exists()
