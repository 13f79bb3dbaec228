"""`manage.py import_run`: a table becomes a finished run, also as a trial arm."""

import json
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from fleet.models import Run
from fleet.runs.imported import headline, log_caveats
from fleet.trials.comparison import compare
from fleet.trials.services import begin
from telemetry.store.hot import HotStore
from telemetry.store.models import RunChunk
from tests.fleet.trials.conftest import made, train
from tests.helpers import NOON, NOON_S

pytestmark = pytest.mark.django_db


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write a hundred steps of two seconds and a million tokens that end after noon."""
    path = tmp_path / "p5.csv"
    rows = [f"{n},{NOON_S + 2 * n},2.0,1000000,{10 - n / 20}" for n in range(1, 101)]
    path.write_text("\n".join(["step,ended_at,step_s,tokens,loss", *rows]) + "\n")
    return path


def imported(*files: str, **options: Any) -> dict[str, Any]:
    out = StringIO()
    given = {"run": "elsewhere", "json": True, "stdout": out, "stderr": StringIO()}
    call_command("import_run", *files, **given | options)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_it_shows_what_it_found_and_keeps_a_finished_run(table: Path) -> None:
    found = imported(str(table), optimizer="AdamW", tokens_per_epoch=10**9, precision="bf16")
    run = Run.objects.get(name="elsewhere")

    assert (found["family"], found["steps"], found["tokens"]) == ("table", 100, 100_000_000)
    assert (found["step_s"], found["loss"]) == (2.0, 5.0)
    assert (found["compile"], found["hardware_errors"]) == (None, None)
    assert run.phase == Run.Phase.FINISHED
    assert (run.optimizer, run.tokens_per_epoch) == ("AdamW", 10**9)


def test_what_a_table_cannot_say_is_not_printed(table: Path) -> None:
    out = StringIO()
    call_command("import_run", str(table), run="elsewhere", stdout=out, stderr=StringIO())

    rows = [line.split()[0] for line in out.getvalue().splitlines()[2:]]
    assert rows == ["steps", "last", "step", "sequences", "tokens", "loss", "times"]
    run = Run.objects.get(name="elsewhere")
    assert "It was imported from a table" in headline(run, run.log, 2.0)


def test_an_imported_run_is_an_arm_like_any_other(table: Path, hot: HotStore) -> None:
    about = {"model": "vit-huge", "instance": "p5.48xlarge", "nodes": 4, "precision": "bf16"}
    imported(str(table), global_batch=4000, seq_len=250, optimizer="AdamW", **about)
    made("vit-trn2", "trn2.48xlarge", 72.0, optimizer="adamw_torch")
    train("vit-trn2", [1.25] * 100, loss=[8.0] * 100)
    trial = begin(
        "bakeoff",
        "Do we move?",
        baseline="elsewhere",
        candidates=["vit-trn2"],
        planned_steps=100,
        by="ada",
        now=NOON,
    )

    # Steps of long ago are moved to where history is kept, which is past noon.
    figures = compare(hot, trial, now=datetime(2100, 1, 1, tzinfo=UTC))

    found = {each.measure: each for each in figures.candidates[0].comparisons}
    # Four p5 at $55.04 for 2 s: 0.12231 of a dollar for a million tokens.
    assert found["usd_per_mtok"].baseline == pytest.approx(4 * 55.04 / 3600 * 2, rel=1e-3)
    assert found["tokens_per_s"].baseline == pytest.approx(500_000, rel=1e-3)
    assert found["loss"].baseline == pytest.approx(10 - 98 / 20, rel=1e-2)
    assert {match.state for match in figures.matches} == {"same"}


def test_a_bad_cell_is_named_and_nothing_is_kept(table: Path) -> None:
    table.write_text(table.read_text().replace("1000000,7.5\n", "lots,7.5\n"))

    with pytest.raises(CommandError) as refused:
        imported(str(table))

    assert refused.value.returncode == 2
    assert "FILE: p5.csv: line 51, column 'tokens': 'lots' is not a number" in str(refused.value)
    assert not Run.objects.exists()
    assert not RunChunk.objects.exists()


def test_a_single_metric_is_named_before_its_file(tmp_path: Path) -> None:
    path = tmp_path / "rate.csv"
    path.write_text("Wall time,Step,Value\n100,1,500\n102,2,500\n")

    assert imported(f"tokens_per_s={path}")["tokens_per_s"] == 500
    with pytest.raises(CommandError, match="'speed' is not a known column"):
        imported(f"speed={path}")


LOSSES = '"Step","a - train/loss","a - train/loss__MIN","a - train/loss__MAX"\n"10","3","3","3"\n'


def test_what_was_preferred_and_left_out_is_a_warning_and_on_the_page(tmp_path: Path) -> None:
    path, shown = tmp_path / "history.csv", StringIO()
    rows = [f"{n},{10 * n},{NOON_S + 30 * n},{9 - n},40" for n in range(4)]
    path.write_text("\n".join(["_step,train/global_step,_timestamp,train/loss,temp", *rows]))

    found = imported(str(path), stderr=shown)

    assert (found["steps"], found["last_step"], found["step_s"], found["loss"]) == (
        4,
        30,
        3.0,
        6.0,
    )
    assert "warning: steps are numbered by train/global_step, not by _step" in shown.getvalue()
    assert "warning: columns left out: temp" in shown.getvalue()
    assert log_caveats(Run.objects.get(name="elsewhere").log)[0].startswith("steps are numbered")


def test_a_chart_without_times_needs_the_seconds_of_a_step(tmp_path: Path) -> None:
    path = tmp_path / "chart.csv"
    path.write_text(LOSSES + '"20","2","2","2"\n')

    with pytest.raises(CommandError, match=r"no times of its steps; .* or give --step-s"):
        imported(str(path))
    found = imported(str(path), step_s=1.5, global_batch=4, seq_len=100)

    assert (found["step_s"], found["tokens_per_s"], found["loss"]) == (1.5, 400 / 1.5, 2.0)
    with pytest.raises(CommandError, match="--step-s: -1 is out of range"):
        imported(str(path), step_s=-1.0)


def test_a_folder_of_mlflow_is_one_run(tmp_path: Path) -> None:
    for name, first in (("train_loss", 3.0), ("tokens_per_sec", 500.0)):
        path = tmp_path / "4f1c" / "metrics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{NOON_S * 1000 + 2000 * n} {first} {n}\n" for n in range(1, 4)))

    found = imported(str(tmp_path / "4f1c"))

    assert (found["steps"], found["step_s"], found["loss"]) == (3, 2.0, 3.0)
    assert found["tokens_per_s"] == 500.0


def test_a_run_of_several_in_an_export_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    rows = [f"{run},loss,{value},{n},{NOON_S * 1000 + 1000 * n}" for run, value in
            (("a", 3.0), ("b", 2.0)) for n in (1, 2)]  # fmt: skip
    path.write_text("\n".join(["run_id,key,value,step,timestamp", *rows]) + "\n")

    with pytest.raises(CommandError, match="is of 2 runs: a, b; choose one by --export-run"):
        imported(str(path))
    assert imported(str(path), export_run="b")["loss"] == 2.0
    assert not Run.objects.exclude(name="elsewhere").exists()


def test_a_run_that_reports_is_not_overwritten(table: Path) -> None:
    made("elsewhere", "p5.48xlarge", 90.0)

    with pytest.raises(CommandError, match="not an imported log"):
        imported(str(table))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(CommandError, match=r"FILE: .*nothing.csv"):
        imported("/tmp/nothing.csv")
