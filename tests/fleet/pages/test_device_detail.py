"""One device of a node, next to its peers on the node and in the run."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Alert, Node, Run
from fleet.runs.devices import device_figures
from telemetry.blocks import Block
from telemetry.store.hot import HotStore
from tests.helpers import block

Page = Callable[..., str]
Fire = Callable[..., Alert]


def test_a_device_stands_next_to_its_peers_of_the_same_second(
    hot: HotStore, alive: Run, steady: Node
) -> None:
    at_s = int(time.time()) + 1
    cores, hbm = np.full((2, 32), 0.5), np.full((2, 16), 4e11)
    cores[0, 6:8], cores[1] = (0.9, 1.0), 0.25
    hbm[0, 3], hbm[1] = 1e11, 3e11
    seen = block(tick=at_s, core_utilization_ratio=cores, hbm_bandwidth_bytes_per_s=hbm)
    hot.append([seen, block(tick=at_s + 1, fill=0.1)])

    found = {each.name: each for each in device_figures(hot, steady, 3, at_s=at_s)}

    core = found["Core 7, utilization"]
    assert core.value == pytest.approx(1.0, abs=0.01)
    assert (core.of_node.n, core.of_run.n) == (30, 32)
    assert core.of_node.median == pytest.approx(0.5, abs=0.01)
    assert core.of_run.median == pytest.approx(0.25, abs=0.01)
    bandwidth = found["HBM bandwidth"]
    assert bandwidth.value == pytest.approx(1e11, rel=0.01)
    assert bandwidth.ratio == pytest.approx(1e11 / (bandwidth.peak or 0), rel=0.01)
    assert bandwidth.of_node.median == pytest.approx(4e11, rel=0.01)
    assert bandwidth.of_run.n == 16
    assert bandwidth.of_run.median == pytest.approx(3e11, rel=0.01)


def test_what_is_not_reported_is_no_zero(
    page: Page, hot: HotStore, alive: Run, steady: Node
) -> None:
    Node.objects.filter(pk=steady.pk).update(
        source=Node.Source.NEURON_MONITOR, shard="node:steady"
    )
    cores = np.full((1, 32), np.nan)
    cores[0, :2] = 0.5
    values = {"core_utilization_ratio": cores, "device_memory_used_bytes": np.full((1, 16), 1e9)}
    hot.append([Block("node:steady", int(time.time()) + 1, ("steady",), values)])
    steady.refresh_from_db()
    text = page("/nodes/steady/devices/3/")

    assert "not reported" in text
    assert "HBM bandwidth, Core FLOPs, Device power: steady does not report these" in text
    found = device_figures(hot, steady, 3, at_s=int(time.time()) + 1)
    assert all(each.value is None for each in found if each.unit != "bytes")


def test_the_page_links_back_and_to_the_other_devices(page: Page, alive: Run) -> None:
    text = page("/nodes/steady/devices/3/")

    assert "Device 3 of" in text
    assert 'href="/nodes/steady/"' in text
    assert 'href="/nodes/steady/devices/15/"' in text
    assert "/nodes/steady/charts/hbm?window=15m&amp;device=3" in text
    assert "No alert implicated this device" in text


def test_node_and_alert_lead_to_the_device(page: Page, alert: Alert) -> None:
    # Core 7 belongs to device 3.
    assert 'href="/nodes/limping/devices/3/"' in page("/nodes/limping/")
    assert 'href="/nodes/limping/devices/3/">core 7</a>' in page(alert.get_absolute_url())


@pytest.mark.parametrize(
    ("cause", "number", "is_shown"),
    [
        ("slow_core", 3, True),
        ("slow_core", 7, False),
        ("hbm_slow", 7, True),
        ("hbm_slow", 3, False),
        ("efa_latency", 7, False),
    ],
)
def test_alerts_of_the_device_or_its_cores_are_listed(
    page: Page, fired: Fire, *, cause: str, number: int, is_shown: bool
) -> None:
    alert = fired(cause=cause)
    shown = f'id="alert-{alert.pk}"' in page(f"/nodes/limping/devices/{number}/")
    assert shown is is_shown


def test_an_alert_on_an_efa_device_leads_to_no_accelerator(page: Page, fired: Fire) -> None:
    assert "/devices/" not in page(fired(cause="efa_latency").get_absolute_url())


def test_a_past_time_range_is_not_live(page: Page, alive: Run) -> None:
    text = page("/nodes/steady/devices/3/?from=1000000&to=1000900")

    assert "kept for the last 15 minutes only" in text
    assert "from=1000000&amp;to=1000900&amp;device=3" in text


def test_a_silent_node_has_no_figures(page: Page, alive: Run, silent: Node) -> None:
    assert "is not reporting. The charts show its last data" in page("/nodes/silent/devices/0/")


@pytest.mark.parametrize("path", ["steady/devices/16/", "missing/devices/0/", "steady/devices/x/"])
def test_an_unknown_device_is_not_found(client: Client, alive: Run, path: str) -> None:
    assert client.get(f"/nodes/{path}").status_code == 404


@pytest.mark.parametrize("partial", ["lead", "figures", "alerts"])
def test_each_part_updates_alone(page: Page, alive: Run, partial: str) -> None:
    headers = {"HX-Request": "true", "HX-Target": partial}
    text = page("/nodes/steady/devices/3/", **headers)
    assert f'id="{partial}"' in text
    assert "<html" not in text


def test_its_parts_stand_out_in_the_charts(client: Client, alive: Run) -> None:
    chart = client.get("/nodes/steady/charts/cores?device=3").json()
    bad = [line["label"] for line in chart["series"] if line["role"] == "bad"]
    assert bad == ["core 6", "core 7"]


def test_the_number_of_queries_is_fixed(
    client: Client, fired: Fire, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for rule in ("core_slow", "hbm_slow", "step_slow"):
        fired(rule=rule)
    with django_assert_max_num_queries(14):
        client.get("/nodes/limping/devices/3/")


def test_an_efa_device_of_a_class_of_causes_is_no_accelerator(
    page: Page, alert: Alert, limping: Node
) -> None:
    Alert.objects.filter(pk=alert.pk).update(
        rule="step_slow", cause="network", device=0, evidence={}
    )
    about = page(alert.get_absolute_url())

    assert "EFA device 0" in about
    assert "/devices/0/" not in about.partition('id="facts"')[0]
    device = page("/nodes/limping/devices/0/")
    assert "Implicated in no open alert" in device
    assert "No alert implicated this device" in device


def test_a_core_that_a_class_of_causes_names_stays_a_core(page: Page, alert: Alert) -> None:
    # Slow compute: a slow core, or a throttled accelerator.
    Alert.objects.filter(pk=alert.pk).update(
        cause="slow_compute", device=7, evidence={"culprit": {"part": "core"}}
    )

    assert 'href="/nodes/limping/devices/3/">core 7</a>' in page(alert.get_absolute_url())
    assert "Implicated in 1 open alert" in page("/nodes/limping/devices/3/")
