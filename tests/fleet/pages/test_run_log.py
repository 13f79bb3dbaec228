"""The page of an imported log: figures, and missing data."""

import json
import re
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from fleet.models import Run
from fleet.trials.comparison import bad_loss_fields
from telemetry.store.hot import HotStore
from tests.importers.import_command import BROKEN, dated
from tests.importers.logs.log_lines import call, done, hit, neuronx

A, B = "MODULE_1652+aa11", "MODULE_1652+bb22"
FAILED = "Got a cached failed neff at /fsx/cache/neuronxcc-2.15/MODULE_9+c/model.neff. Will skip"
REPORTED = {"model": "llama2-7b", "instance": "trn1.32xlarge", "nodes": 4, "seq_len": 4096}


def imported(folder: Path, *lines: str, **options: object) -> Run:
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n")
    call_command("import_log", str(path), run="logged", json=True, **options)
    return Run.objects.get(name="logged")


def main_of(client: Client, query: str = "") -> str:
    text = client.get(f"/runs/logged/{query}").text
    return text.split("<main", 1)[1].split("</main>", 1)[0]


@pytest.fixture
def lines() -> list[str]:
    reported = [call(A, pid=1), done(A, seconds=61, pid=1), call(B, seconds=62, pid=1)]
    reported += [done(B, seconds=92, pid=1), hit(A, seconds=93, pid=2)]
    reported += [call("MODULE_9+c").replace("Call compiler", FAILED)]
    reported += [f"{dated(60 + 10 * n)} {neuronx(n, loss=9.0 - n / 10)}" for n in range(1, 31)]
    return [*reported, f"{dated(200)} {BROKEN}", "something else", "step 31 step_time 9"]


@pytest.fixture
def page(hot: HotStore, db: None, client: Client, tmp_path: Path, lines: list[str]) -> str:
    imported(tmp_path, *lines, **REPORTED)
    return main_of(client)


def test_it_shows_how_far_the_run_came_and_what_a_log_cannot_tell(page: str) -> None:
    assert "trained to <b>step 30</b> at 9.20\u202fs each" in page
    assert "does not separate compute from all-reduce" in page
    assert "not in the log; limit 25" in page


def test_it_shows_pace_price_and_loss(page: str) -> None:
    assert "<b>227\u202fk</b>" in page
    assert "from 8.90 at the start" in page
    assert re.search(r"<b>\$0\.\d+</b>", page)
    assert "of 12.2\u202fPFLOP/s" in page


def test_it_shows_every_graph_who_found_and_who_compiled_it(page: str) -> None:
    panel = page.split('id="compiles-title"', 1)[1].split("</section>", 1)[0]

    assert 'title="MODULE_1652+aa11">1652</td><td class="mono wide">aa11</td>' in panel
    assert "1\u202fmin" in panel
    assert "1 graph was compiled for more than one set" in panel
    assert "/fsx/cache" in panel
    assert "25\u202f% of requests" in panel


def test_a_job_that_failed_says_so_wherever_its_phase_is_shown(
    hot: HotStore, db: None, client: Client, tmp_path: Path, lines: list[str]
) -> None:
    reason = "NRT_EXEC_HW_ERR_HBM_UE on trn-03"
    imported(tmp_path, *lines, "trn-03: nrt_execute failed: NRT_EXEC_HW_ERR_HBM_UE", **REPORTED)

    assert f'<b class="bad-text">failed: {reason}</b>' in main_of(client)
    for page in ("/runs/logged/", "/runs/", f"{reverse('search')}?q=logged"):
        text = client.get(page).text
        assert reason in text, page
        assert "finished" not in text.split('id="runs"')[-1].split("</section>")[0], page
    found = client.get("/api/v1/runs/logged").json()
    assert (found["phase"], found["end_reason"]) == ("failed", reason)


def test_broken_hardware_comes_before_the_charts(page: str) -> None:
    before, _ = page.split("Time range", 1)

    assert "HBM_UNCORRECTABLE_ERROR on steady device 3" in before


def test_it_names_what_was_not_understood(page: str) -> None:
    assert "1\u202fline truncated or garbled, skipped" in page
    assert "<code>step 31 step_time 9</code>" in page
    assert "<code>something else</code>" in page


def test_its_charts_are_those_that_a_log_can_draw(page: str) -> None:
    drawn = re.findall(r"/runs/logged/charts/(\w+)\?from=", page)

    assert sorted(set(drawn)) == ["loss", "pace", "throughput"]
    assert "waits for" not in page


@pytest.mark.parametrize(
    ("chart", "unit", "last"),
    [("pace", "s", 9.2), ("loss", "count", 6.0), ("throughput", "per_s", 227100.0)],
)
def test_every_chart_answers(
    page: str, client: Client, chart: str, unit: str, last: float
) -> None:
    source = next(iter(re.findall(rf"/runs/logged/charts/{chart}\?[^\"]+", page)))
    figure = json.loads(client.get(source.replace("&amp;", "&")).content)

    assert figure["unit"] == unit
    assert figure["series"][0]["values"][-1] == last
    assert len(figure["t"]) == 30
    assert any("HBM_UNCORRECTABLE_ERROR" in event[1] for event in figure["events"])


def test_a_window_without_steps_has_empty_charts(page: str, client: Client) -> None:
    figure = json.loads(client.get("/runs/logged/charts/loss?from=1000&to=2000").content)

    assert figure["t"] == []


def test_another_run_has_no_such_chart(hot: HotStore, client: Client, run: Run) -> None:
    assert client.get(f"/runs/{run.name}/charts/pace").status_code == 404


@pytest.mark.parametrize("query", ["?window=1h", "?from=2026-05-01T12:00&to=2026-05-01T13:00"])
def test_it_answers_in_any_window(page: str, client: Client, query: str) -> None:
    assert "trained to" in main_of(client, query)


def test_without_a_sequence_length_sequences_are_counted(
    hot: HotStore, db: None, client: Client, tmp_path: Path
) -> None:
    imported(tmp_path, *(f"{dated(10 * n)} {neuronx(n)}" for n in range(1, 4)))
    page = main_of(client)

    assert "Sequences per second" in page
    assert "<b>55.4</b>" in page
    assert "$" not in page
    assert "not in the log" in page


def test_a_rate_of_tokens_without_their_total_is_in_the_log(
    hot: HotStore, db: None, client: Client, tmp_path: Path
) -> None:
    """The first step has no duration, so that its tokens are unknown."""
    line = "step {} | loss 0.5 | tps 10400.5(1300.06/gpu) | num_label_tokens 2"
    imported(tmp_path, *(f"{dated(60 + 10 * n)} | {line.format(n)}" for n in range(1, 9)))
    strip = main_of(client).split('aria-label="Run summary"', 1)[1].split("</section>", 1)[0]

    assert "10.4" in strip
    assert "total unknown" in strip


def test_a_log_of_compiles_alone_has_no_charts(
    hot: HotStore, db: None, client: Client, tmp_path: Path
) -> None:
    imported(tmp_path, call(A), done(A, seconds=600))
    page = main_of(client)

    assert "a log without steps" in page
    assert "/charts/" not in page
    assert "10\u202fmin" in page


def test_what_a_log_states_is_escaped(
    hot: HotStore, db: None, client: Client, tmp_path: Path
) -> None:
    imported(tmp_path, neuronx(1), "<script>alert(1)</script>")

    assert "<script>alert" not in main_of(client)
    assert "&lt;script&gt;alert" in main_of(client)


def test_it_asks_the_database_little(
    page: str, client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_max_num_queries(10):
        client.get("/runs/logged/")


def test_the_list_of_runs_shows_it_as_over(page: str, client: Client) -> None:
    row = client.get("/runs/").text.split('id="run-logged"', 1)[1].split("</tr>", 1)[0]

    assert "finished" in row
    assert 'aria-label="no steps yet"' in row


def test_it_says_how_a_job_ended(hot: HotStore, db: None, client: Client, tmp_path: Path) -> None:
    lines = [neuronx(1), neuronx(2).replace("loss 8.0", "loss nan")]
    imported(tmp_path, *lines, "[rank7]: nrt_execute failed: NRT_EXEC_HW_ERR_HBM_UE")
    page = main_of(client)

    assert "The job failed: NRT_EXEC_HW_ERR_HBM_UE on rank 7" in page
    assert "<b>NaN</b>" in page
    assert "since step 2" in page
    # The last finite one is not the loss of its end.
    source = re.findall(r"/runs/logged/charts/loss\?[^\"]+", page)[0]
    assert json.loads(client.get(source.replace("&amp;", "&")).content)["missing"] == "not finite"
    assert bad_loss_fields(Run.objects.get()) == {"bad_loss": "NaN", "bad_loss_step": 2}
