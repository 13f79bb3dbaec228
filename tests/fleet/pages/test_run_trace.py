"""The page of an imported trace: verdict, culprits, limits of the data."""

import json
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import Client

from fleet.models import RecordedTrace, Run
from telemetry.store.hot import HotStore
from tests.importers.made_traces import Job
from tests.importers.recorded import made_job, write_parquet
from tests.importers.traces.conftest import heavy_stage, uneven_sequences
from tests.importers.traces.neuron_profiles import SystemJob, device_tables, write_table


def imported(job: Job, folder: Path) -> RecordedTrace:
    path = write_parquet(job.trace(), folder / "trace.parquet")
    call_command("import_trace", str(path), run="recorded", json=True)
    return RecordedTrace.objects.get()


@pytest.fixture
def page(hot: HotStore, db: None, client: Client, tmp_path: Path) -> str:
    imported(made_job(), tmp_path)
    return client.get("/runs/recorded/").text


def test_it_shows_how_slow_it_was_and_the_culprit(page: str) -> None:
    assert "1.68 times the ideal" in page
    assert "One worker is the cause: rank0-dp0-stage0" in page


def test_it_shows_every_worker_and_marks_the_culprit(page: str) -> None:
    assert page.count("<small>rank ") == 16
    assert '<td class="heat6" title="rank 0"><b>▲ 1.' in page
    assert page.count("▲ 1.") == 1


def test_it_shows_what_each_cause_explains_and_how_that_was_found(page: str) -> None:
    for cause in ("One worker", "Several workers", "Uneven stages", "Uneven sequences"):
        assert cause in page
    assert "Communication" in page
    assert "simulated again" in page


def test_it_invents_neither_cost_nor_hardware(page: str) -> None:
    assert "$" not in page.split("<main", 1)[1].split("</main>", 1)[0]
    assert "not recorded; the end is set to the import time" in page


def test_its_cost_panel_names_what_a_trace_lacks(page: str) -> None:
    cost = page.partition('id="money"')[2].partition("</section>")[0]

    assert "not recorded" in cost
    assert "no peak is published" not in cost


def test_it_claims_no_checkpoints_that_a_trace_does_not_record(page: str) -> None:
    cost = page.partition('id="money"')[2].partition("</section>")[0]

    assert "other communication and idle time" in cost
    assert "checkpoints" not in cost


def test_a_profile_of_neuron_cores_shows_waits_and_memory_bandwidth_by_rank(
    hot: HotStore, db: None, client: Client, tmp_path: Path
) -> None:
    job = SystemJob(extra_ms={2: 30})
    write_table(tmp_path / "job@latest", "SystemProfileEvents", job.events())
    for name, rows in device_tables().items():
        write_table(tmp_path / "model_vnc_0@latest", name, rows)
    call_command("import_trace", str(tmp_path), run="recorded", json=True)
    page = client.get("/runs/recorded/").text
    panel = page.partition('id="ranks-title"')[2].partition("</section>")[0]
    shown = [row.partition("</tr>")[0] for row in panel.split('<th scope="row">')[1:]]

    assert ["30" in row for row in shown] == [True, True, False, True]
    assert ">400\N{NARROW NO-BREAK SPACE}GB/s<" in shown[0]
    assert "Waiting was recorded" in panel
    assert "trn2.48xlarge" in page
    assert "charts/phases" in page
    assert "charts/workers" not in page
    assert "shares are upper limits" in page


def test_its_charts_are_of_its_own_time(page: str, client: Client) -> None:
    run = Run.objects.get()
    source = f"/runs/recorded/charts/phases?from={int(run.started_at.timestamp())}"

    assert source in page
    assert "charts/mfu" not in page


@pytest.mark.parametrize("chart", ["phases", "share", "workers", "tokens", "cost", "mfu"])
def test_every_chart_answers(page: str, client: Client, chart: str) -> None:
    run = Run.objects.get()
    start = int(run.started_at.timestamp())
    response = client.get(f"/runs/recorded/charts/{chart}?from={start}&to={start + 60}")

    assert response.status_code == 200
    json.loads(response.content)


def test_a_heavy_stage_is_named_and_no_machine(
    hot: HotStore, db: None, client: Client, tmp_path: Path
) -> None:
    imported(Job(work=heavy_stage(3)), tmp_path)
    text = client.get("/runs/recorded/").text

    assert "Pipeline stage 3 has more work than the others" in text
    assert "No single machine is the cause" in text
    assert "▲" not in text.split("<main", 1)[1].split("</main>")[0]


def test_uneven_sequences_are_distinguished_from_slow_machines(
    hot: HotStore, db: None, client: Client, tmp_path: Path
) -> None:
    imported(Job(work=uneven_sequences), tmp_path)

    assert "uneven sequence lengths explain" in client.get("/runs/recorded/").text


def test_a_healthy_run_has_nothing_to_explain(
    hot: HotStore, db: None, client: Client, tmp_path: Path
) -> None:
    imported(Job(pp=1), tmp_path)
    text = client.get("/runs/recorded/").text

    assert "the ideal time" in text
    assert "single stage" in text


def test_the_list_of_runs_shows_no_price_for_it(page: str, client: Client) -> None:
    row = client.get("/runs/").text.split('id="run-recorded"', 1)[1].split("</tr>", 1)[0]

    assert "$" not in row
