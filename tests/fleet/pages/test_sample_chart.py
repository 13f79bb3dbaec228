"""The charts of a sample, as JSON and as a table."""

import re
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from fleet.charts.figures import Heat
from fleet.charts.samples import NodeSample, by_core
from fleet.models import Node, SampleRequest
from telemetry.agent.sampling import CORES, SampleTable, encode_sample
from telemetry.ingest.samples import read_sample, sample_tables
from tests.fleet.samples import requested, taken

pytestmark = pytest.mark.django_db


def chart(client: Client, row: SampleRequest, name: str) -> Any:
    return client.get(f"{row.get_absolute_url()}charts/{name}").json()


def test_cores_are_a_heat_map_of_100_ms_with_gaps(client: Client, steady: Node) -> None:
    row = taken(steady, now=timezone.now())
    drawn = chart(client, row, "cores")

    assert drawn["every_s"] == 0.1
    assert len(drawn["t"]) == 300
    assert drawn["rows"][:2] == ["core 0", "core 1"]
    assert drawn["values"][0][:3] == [0.25, 0.25, 0.25]
    assert [i for i, value in enumerate(drawn["values"][1]) if value is None] == [9]
    assert drawn["window"][1] - drawn["window"][0] == pytest.approx(30)
    assert drawn["t"][0] - drawn["window"][0] == pytest.approx(0.05, abs=0.002)


def test_a_slower_source_has_wider_columns(client: Client, steady: Node) -> None:
    drawn = chart(client, taken(steady, now=timezone.now(), monitor_ms=1000), "cores")

    assert (drawn["every_s"], len(drawn["t"])) == (1.0, 30)
    assert drawn["values"][1] == [0.75] * 30


def cores(name: str, values: dict[int, int]) -> SampleTable:
    """Pack readings of one core by millisecond."""
    table = SampleTable(name, CORES)
    for ms, value in values.items():
        table.add(ms, {"0" if name == "monitor" else "0.0": value})
    return table


def drawn(steady: Node, *tables: SampleTable, length_s: float = 1.0) -> Heat:
    """Draw the heat map of a sample of one core."""
    steady.n_cores = steady.n_devices = 1
    answer = encode_sample(1, 0.0, 0.1, length_s, list(tables))
    heat = NodeSample(steady, read_sample(answer)).figure("cores")
    assert isinstance(heat, Heat)
    return heat


def test_a_source_that_drifts_leaves_no_gap(steady: Node) -> None:
    late = {104 * i: 2 * i for i in range(1, 30)}
    values = drawn(steady, cores("monitor", late), length_s=3.0).values[0]

    assert np.isfinite(values).all()
    assert sorted(values) == values.tolist()


def test_the_source_that_shows_more_is_drawn(steady: Node) -> None:
    slow = cores("monitor", {500: 100, 1000: 100})
    live = cores("driver", {100 * i: 50 for i in range(1, 11)})
    renewed_seldom = cores("driver", {100 * i: 200 * (i % 5 == 0) for i in range(1, 11)})

    assert drawn(steady, slow, live).values.tolist() == [[0.25] * 10]
    assert drawn(steady, slow, renewed_seldom).values.tolist() == [[0.5, 0.5]]


def test_efa_rates_cover_the_time_since_the_reading_before(client: Client, steady: Node) -> None:
    drawn = chart(client, taken(steady, now=timezone.now()), "efa-sent")
    first = drawn["series"][0]

    assert first["label"] == "EFA 0"
    assert (first["values"][0], first["values"][8]) == (1e7, 1e7)
    # After the missing reading.
    assert first["values"][9] == 5e6
    assert len(drawn["t"]) == 299


def test_the_table_has_tenths_of_a_second(client: Client, steady: Node) -> None:
    row = taken(steady, now=timezone.now())
    text = client.get(
        f"{row.get_absolute_url()}charts/efa-sent", headers={"Accept": "text/html"}
    ).text

    assert "Efa sent of the sample of steady" in text
    assert f'href="{row.get_absolute_url()}"' in text
    assert len(set(re.findall(r"\d\d:\d\d:\d\d\.\d</td>", text))) > 100


def test_physical_cores_are_averaged_to_those_of_the_runtime(steady: Node) -> None:
    driver = SampleTable("driver", CORES)
    driver.add(100, {f"{device}.{core}": 50 * core for device in (10, 2) for core in range(4)})
    [table] = sample_tables(read_sample(encode_sample(1, 0.0, 0.1, 30, [driver])))
    steady.n_cores, steady.n_devices = 4, 2
    labels, values = by_core(table, steady)
    assert list(labels) == ["core 0", "core 1", "core 2", "core 3"]
    assert values.tolist() == [[0.125, 0.625, 0.125, 0.625]]

    steady.n_cores = 3
    labels, _ = by_core(table, steady)
    assert labels[0] == "core 2.0"


def test_unknown_charts_and_missing_samples_are_not_found(
    client: Client, steady: Node, operator: User
) -> None:
    row = taken(steady, now=timezone.now())
    assert client.get(f"{row.get_absolute_url()}charts/power").status_code == 404
    empty = requested(steady, now=timezone.now())
    assert client.get(f"{empty.get_absolute_url()}charts/cores").status_code == 404
    assert client.post(f"{row.get_absolute_url()}charts/cores").status_code == 405
