"""One node: state, run, rack, and its devices and cores."""

import re
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from fleet.models import Alert, Node, Run
from telemetry import catalog
from telemetry.blocks import Block, FloatArray
from telemetry.store.hot import HotStore
from tests.fleet.pages.test_node_list import stray
from tests.helpers import block

Page = Callable[..., str]
PARTIALS = ("headline", "lead", "standout", "vitals", "alerts", "devices", "links")


def test_it_shows_in_one_sentence_how_the_node_is(page: Page, alive: Run) -> None:
    text = page("/nodes/steady/")

    assert "<b>steady</b> is reporting." in text
    assert 'Rank 0 of <a href="/runs/llama/">llama</a>' in text
    assert "No open alerts." in text


def test_it_shows_the_alert_that_accuses_it(page: Page, alert: Alert) -> None:
    text = page("/nodes/limping/")

    assert "1 open alert" in text
    assert f'id="alert-{alert.pk}"' in text


def test_it_begins_with_the_chart_of_its_alert_and_the_finding(page: Page, alert: Alert) -> None:
    text = page("/nodes/limping/")

    tile, lead, heat = (
        text.index(part) for part in (f'id="alert-{alert.pk}"', "lead-chart", 'id="map"')
    )
    assert tile < lead < heat < text.index('id="vitals"')
    assert f'href="/alerts/{alert.pk}/">' in text[tile:lead]
    assert "Restart the run without limping." in text[tile:lead]


def test_of_a_time_before_its_alert_it_begins_with_the_map(page: Page, alert: Alert) -> None:
    onset_s = int(alert.onset_at.timestamp())
    before = page(f"/nodes/limping/?from={onset_s - 7200}&to={onset_s - 3600}")

    assert "lead-chart" not in before
    assert 'id="map"' in before


def test_without_an_alert_it_begins_with_the_map(page: Page, alive: Run) -> None:
    text = page("/nodes/steady/")

    assert "lead-chart" not in text
    assert text.index('id="headline"') < text.index('id="map"') < text.index('id="vitals"')
    assert "Nothing stands out" in text
    assert '<details id="maps" hx-get="/nodes/steady/"' in text
    assert 'id="core-heat"' in text


def test_the_map_shows_what_stands_out_or_what_is_chosen(
    page: Page, hot: HotStore, alive: Run
) -> None:
    now_s = int(time.time()) + 1
    latency = np.full((2, 8), 16.5e-6)
    latency[1, 4] = 144e-6
    hot.append([block(tick=now_s + i, efa_latency_s=latency) for i in range(30)])

    found, chosen = page("/nodes/limping/"), page("/nodes/limping/?signal=hbm&show=value")

    assert "<b>EFA 4</b>: EFA latency <b>144 µs, peers 16.5 µs</b>" in found
    for text in (found, chosen):
        assert '<details id="maps" open>' in text
    assert 'id="efa-latency-heat"' in found
    assert 'href="?signal=hbm#map"' in found
    assert 'id="hbm-heat"' in chosen
    assert 'data-show="value"' in chosen
    assert 'href="?show=value#map"' in chosen, "back to what stands out"


def test_an_unknown_signal_is_what_stands_out(page: Page, alive: Run) -> None:
    assert 'id="core-heat"' in page("/nodes/steady/?signal=mood&show=1")


def test_a_silent_node_states_since_when_and_shows_no_old_figures(
    page: Page, hot: HotStore, alive: Run, silent: Node
) -> None:
    hot.append([block(tick=int(time.time()) - 60, nodes=("silent",), shard="llama/0")])
    text = page("/nodes/silent/")

    assert "silent for" in text
    assert "no data" in text


def test_a_node_that_never_reported_states_it(page: Page, alive: Run, silent: Node) -> None:
    assert "never reported" in page("/nodes/silent/")


def test_uncorrected_errors_stand_out(page: Page, hot: HotStore, alive: Run) -> None:
    errors = np.zeros((2, 16))
    errors[1, 3] = 2
    now_s = int(time.time()) + 1
    hot.append([block(tick=now_s, mem_ecc_uncorrected=errors, sram_ecc_uncorrected=0 * errors)])
    text = page("/nodes/limping/")

    assert "results may be corrupt" in text


def test_an_instance_without_efa_has_no_empty_link_charts(page: Page, alive: Run) -> None:
    stray(run=None)
    text = page("/nodes/stray/")

    assert "trn1.2xlarge has no EFA devices" in text
    assert "efa-latency" not in text


def test_a_real_node_states_what_no_counter_measures(page: Page, alive: Run, steady: Node) -> None:
    Node.objects.filter(pk=steady.pk).update(source=Node.Source.NEURON_MONITOR)
    text = page("/nodes/steady/")

    assert "estimate: bytes per step from a profile" in text
    assert "measured by a probe" in text
    assert "HBM bandwidth is estimated" in text


def test_what_a_real_node_does_not_measure_is_reported_once_and_not_drawn_empty(
    page: Page, hot: HotStore, alive: Run, steady: Node
) -> None:
    Node.objects.filter(pk=steady.pk).update(
        source=Node.Source.NEURON_MONITOR, shard="node:steady"
    )
    reported = block("node:steady", int(time.time()), ("steady",)).values
    seen = {name: reported[name] for name in ("core_utilization_ratio", "host_memory_used_bytes")}
    hot.append([Block("node:steady", int(time.time()), ("steady",), seen)])

    text = page("/nodes/steady/")

    assert "Not measured<" in text
    assert "EFA probe latency, HBM bandwidth, EFA throughput" in text
    assert 'id="efa-latency' not in text
    assert "EFA devices</h2>" not in text


def test_power_is_drawn_for_a_node_that_reports_it(
    page: Page, hot: HotStore, alive: Run, steady: Node
) -> None:
    assert 'id="power' not in page("/nodes/steady/")
    Node.objects.filter(pk=steady.pk).update(
        source=Node.Source.NEURON_MONITOR, shard="node:steady"
    )
    assert "Device power needs the agent" in page("/nodes/steady/")
    values = {
        "core_utilization_ratio": np.full((1, 32), 0.9),
        "device_power_ratio": np.full((1, 16), 0.42),
    }
    hot.append([Block("node:steady", int(time.time()), ("steady",), values)])

    text = page("/nodes/steady/")

    assert 'id="power' in text
    assert "Device power needs the agent" not in text
    assert "steady does not report these. EFA latency needs a probe. HBM bandwidth can" in text
    assert "Device memory, Core FLOPs, Execution latency, Host vCPUs" in text
    assert '<th class="num">Power</th>' in text
    assert "42 %" in text


def measured(hot: HotStore, **values: FloatArray) -> None:
    """Make the node ``steady`` a real one, with a report."""
    real = {"source": Node.Source.NEURON_MONITOR, "shard": "node:steady"}
    Node.objects.filter(name="steady").update(**real)
    hot.append([Block("node:steady", int(time.time()), ("steady",), values)])


def test_collectives_are_drawn_for_gpus_only(page: Page, hot: HotStore, alive: Run) -> None:
    figures = {name: np.array([[2e9]]) for name in ("vcpu_usage_ratio", "collective_time_s")}
    measured(hot, **figures)
    assert "Collective" not in page("/nodes/steady/")
    Node.objects.filter(name="steady").update(instance_type="p5.48xlarge")
    text = page("/nodes/steady/")
    assert 'id="collective-time' in text
    assert "Collective bandwidth" in text[text.index("Not measured<") :]


def test_hardware_flops_are_a_share_of_the_peak_where_it_is_known(
    page: Page, hot: HotStore, alive: Run, steady: Node
) -> None:
    # Half of the cores count 52.8 of 95 TFLOP/s; the others run a program that is not counted.
    flops = np.repeat([[1.5 * 2.0**45, np.nan]], 16, axis=1)
    measured(hot, core_utilization_ratio=np.full((1, 32), 0.9), core_flops_per_s=flops)

    text = page("/nodes/steady/")

    assert "<b>55.6 %</b>" in text
    assert "of dense BF16 peak, 844 TFLOP/s" in text
    assert "share of the dense BF16 peak (95.0 TFLOP/s)" in text
    Node.objects.exclude(pk=steady.pk).update(run=None)
    assert "hardware 55.6 % BF16" in page(f"/runs/{alive.name}/")
    Run.objects.filter(pk=alive.pk).update(model="unknown")
    assert "Hardware FLOPs" in page(f"/runs/{alive.name}/")

    Node.objects.filter(pk=steady.pk).update(instance_type="inf1.6xlarge")
    assert "peak unknown" in page("/nodes/steady/")


def test_hbm_bandwidth_of_a_run_is_a_share_of_the_peak_of_the_nodes_that_report_it(
    page: Page, hot: HotStore, alive: Run, steady: Node
) -> None:
    peak = catalog.instance("trn1.32xlarge").chip.hbm_bytes_per_s
    Node.objects.exclude(pk=steady.pk).update(run=None)
    measured(
        hot,
        core_utilization_ratio=np.full((1, 32), 0.9),
        hbm_bandwidth_bytes_per_s=np.full((1, 16), 0.25 * peak),
    )

    text = page(f"/runs/{alive.name}/")
    # A real node has no counter of it.
    assert ">HBM 25.0 % of peak, estimated</span>" in text
    assert 'title="3.28 TB/s of 13.1 TB/s"' in text
    Node.objects.filter(pk=steady.pk).update(source="simulated")
    assert ">HBM 25.0 % of peak</span>" in page(f"/runs/{alive.name}/")
    Node.objects.filter(pk=steady.pk).update(instance_type="inf1.6xlarge")
    assert ">HBM 3.28 TB/s, peak unknown</span>" in page(f"/runs/{alive.name}/")


def test_hbm_bandwidth_of_a_run_is_that_of_a_minute_not_of_one_phase_of_a_step(
    page: Page, hot: HotStore, alive: Run, steady: Node
) -> None:
    peak = catalog.instance("trn1.32xlarge").chip.hbm_bytes_per_s
    Node.objects.exclude(pk=steady.pk).update(run=None)
    measured(hot, hbm_bandwidth_bytes_per_s=np.full((1, 16), 0.1 * peak))
    busy = {"hbm_bandwidth_bytes_per_s": np.full((1, 16), 0.7 * peak)}
    now = int(time.time())
    hot.append(Block("node:steady", now - age_s, ("steady",), busy) for age_s in range(70, 1, -1))

    found = re.search(r">HBM ([0-9.]+).%", page(f"/runs/{alive.name}/"))
    assert found is not None
    assert 50 < float(found[1]) < 72


def test_execution_latency_shows_percentiles(
    page: Page, hot: HotStore, alive: Run, steady: Node
) -> None:
    latency = {"p50": 0.25, "p99": 0.5, "p100": 1.0}
    values = {f"execution_latency_{p}_s": np.array([[s]]) for p, s in latency.items()}
    measured(hot, core_utilization_ratio=np.full((1, 32), 0.9), **values)

    text = page("/nodes/steady/")

    assert "<b>250 ms</b>" in text
    assert "median; 99 % within 500 ms" in text
    assert 'id="execution-latency' in text


def test_a_percentile_that_is_not_counted_is_left_out(
    page: Page, hot: HotStore, alive: Run, steady: Node
) -> None:
    cores, median = np.full((1, 32), 0.9), np.array([[0.25]])
    measured(hot, core_utilization_ratio=cores, execution_latency_p50_s=median)

    assert "median</span>" in page("/nodes/steady/")


def test_an_idle_node_is_not_said_to_lack_counters_of_processes(
    page: Page, hot: HotStore, alive: Run, steady: Node
) -> None:
    measured(hot, core_utilization_ratio=np.full((1, 32), np.nan))

    text = page("/nodes/steady/")

    assert 'id="flops' in text
    assert 'id="execution-latency' in text
    assert 'id="memory' in text


def test_a_simulated_node_makes_no_such_excuses(page: Page, alive: Run) -> None:
    assert "estimate" not in page("/nodes/steady/")


def test_its_charts_ask_for_the_window_of_the_address(page: Page, alive: Run) -> None:
    text = page("/nodes/steady/?window=6h")

    assert "/nodes/steady/charts/efa-latency?window=6h" in text
    assert 'id="efa-latency-long"' in text


def test_a_frozen_window_states_it_and_follows_no_stream(page: Page, alive: Run) -> None:
    text = page("/nodes/steady/?from=1700000000&to=1700000900")

    assert "Showing data from" in text
    assert 'data-live="' not in text
    assert "from=1700000000&amp;to=1700000900" in text


def test_a_window_that_cannot_be_is_reported_and_not_obeyed(page: Page, alive: Run) -> None:
    text = page("/nodes/steady/?window=year")

    assert "window: must be one of 15m, 1h, 6h, 24h" in text
    assert "?window=15m" in text


@pytest.mark.parametrize("partial", PARTIALS)
def test_it_gives_htmx_only_the_partial_it_asks_for(
    client: Client, alert: Alert, partial: str
) -> None:
    headers = {"HX-Request": "true", "HX-Target": partial}
    response = client.get("/nodes/limping/", headers=headers)

    assert f'id="{partial}"' in response.text
    assert "<html" not in response.text


def test_it_asks_the_database_little(
    client: Client,
    alert: Alert,
    operator: object,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    # One of them reads the peers that it is compared with.
    with django_assert_max_num_queries(10):
        client.get("/nodes/limping/")


def test_its_alert_history_names_causes_and_compares_with_its_peers(
    page: Page, fired: Callable[..., Alert]
) -> None:
    for hours in (1, 2, 3):
        fired(ago=timedelta(hours=hours), subject=f"run:{hours}")
    fired(ago=timedelta(hours=4), subject="run:4", cause="efa_loss", is_drill=True)

    _, _, text = page("/nodes/limping/").partition('id="alert-history"')
    text, _, _ = text.partition("</section>")
    assert "Root cause of 3 alerts in 1 run; median of the 1 other trn1.32xlarge node: 0" in text
    assert "without 1 from drills" in text
    assert "<td>slow core</td>" in text
    assert "EFA retransmits" not in text


def test_an_empty_alert_history_states_it(page: Page, alive: Run) -> None:
    assert "Root cause of no alert in 30 days" in page("/nodes/steady/")


def test_it_says_that_the_machine_was_replaced(page: Page, alive: Run) -> None:
    assert "Machine replaced" not in page("/nodes/steady/")
    at = timezone.now() - timedelta(hours=3, minutes=1)
    Node.objects.filter(name="steady").update(replaced_at=at, replaced_id="i-0abc")

    text = page("/nodes/steady/").replace("\xa0", " ")

    assert "Machine replaced 3 hours" in text
    assert '(was <span class="mono">i-0abc</span>)' in text
