"""The drill form of a run: errors are shown at their field."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from django.test import Client
from pytest_django import Settings

from fleet.models import InjectedFault, Run
from telemetry.simulate.faults import FAULTS
from telemetry.simulate.plan import Plan
from telemetry.store.hot import HotStore
from tests.helpers import free_port

Page = Callable[..., str]
DRILL = "/runs/llama/drill/"
GOOD = {"kind": "slow_core", "node": "llama-01", "device": "7", "magnitude": "1.5"} | {
    "duration_s": "120"
}
HTMX = {"HX-Request": "true", "HX-Target": "drill"}

pytestmark = pytest.mark.usefixtures("simulated")


def post(client: Client, **fields: str) -> Any:
    return client.post(DRILL, GOOD | fields, headers=HTMX)


def test_it_injects_what_was_chosen_in_the_operator_s_name(
    client: Client, hot: HotStore, operator: object
) -> None:
    response = post(client)

    assert response.status_code == 200, response.text
    assert "drills-changed" in response["HX-Trigger"]
    fault = InjectedFault.objects.get()
    assert (fault.kind, fault.node and fault.node.name, fault.device) == (
        "slow_core",
        "llama-01",
        7,
    )
    assert fault.injected_by == "olga"
    assert b"slow_core" in hot.plans()["llama"]


@pytest.mark.parametrize("address", [DRILL, "/drills/new/"])
def test_a_drill_that_was_refused_leaves_no_trace(
    client: Client, hot: HotStore, operator: object, settings: Settings, address: str
) -> None:
    here = settings.REDIS_URL
    settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}"
    refused = [client.post(address, GOOD | {"run": "llama"}).status_code for _ in range(3)]

    assert refused == [503] * 3
    assert not InjectedFault.objects.exists()

    settings.REDIS_URL = here
    assert client.post(address, GOOD | {"run": "llama"}).status_code == 302
    plan = msgspec.json.decode(hot.plans()["llama"], type=Plan)
    assert [fault.kind for fault in plan.faults] == ["slow_core"]
    assert InjectedFault.objects.count() == 1


def test_without_javascript_it_leads_back_to_the_run(client: Client, operator: object) -> None:
    response = client.post(DRILL, GOOD)

    assert response.status_code == 302
    assert response["Location"] == "/runs/llama/"


@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_has_a_form_with_just_its_own_fields(
    page: Page, operator: object, kind: str
) -> None:
    text = page(f"{DRILL}?kind={kind}")

    assert ('name="device"' in text) == (FAULTS[kind].device_part is not None)
    assert ('name="magnitude"' in text) == (FAULTS[kind].magnitude_unit is not None)
    assert f'value="{kind}" selected' in text


def test_another_kind_keeps_the_node_that_was_chosen(page: Page, operator: object) -> None:
    first, chosen = [
        node.name for node in Run.objects.get(name="llama").nodes.order_by("rank")[:2]
    ]

    assert f'value="{chosen}" selected' in page(f"{DRILL}?kind=slow_core&node={chosen}")
    assert f'value="{first}" selected' in page(f"{DRILL}?kind=slow_core&node=of-another-run")


def test_the_strength_comes_with_its_usual_value_unit_and_range(
    page: Page, operator: object
) -> None:
    text = page(f"{DRILL}?kind=efa_loss")

    assert 'value="0.05"' in text
    assert "0 to 0.5" in text
    assert "a ratio" in text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "gremlins"),
        ("node", "missing"),
        ("device", "99"),
        ("device", "-1"),
        ("device", "x"),
        ("magnitude", "-3"),
        ("magnitude", "nan"),
        ("duration_s", "0"),
        ("duration_s", "1e9"),
        ("duration_s", ""),
    ],
)
def test_an_invalid_value_is_reported_next_to_its_field(
    client: Client, operator: object, field: str, value: str
) -> None:
    response = post(client, **{field: value})

    assert response.status_code == 422
    assert f'id="id_{field}_error"' in response.text
    assert not InjectedFault.objects.exists()


def test_where_drills_are_switched_off_the_page_states_it(
    client: Client, operator: object, settings: Settings
) -> None:
    settings.ALLOW_DRILLS = False
    response = post(client)

    assert response.status_code == 422
    assert "switched off" in response.text


def test_a_real_run_cannot_be_drilled(client: Client, operator: object) -> None:
    Run.objects.update(is_simulated=False)

    assert client.get(DRILL).status_code == 404
    assert post(client).status_code == 404
