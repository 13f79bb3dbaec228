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
from fleet.trials.services import begin, compare
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
    assert run.phase == Run.Phase.FINISHED
    assert (run.optimizer, run.tokens_per_epoch) == ("AdamW", 10**9)


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


def test_a_run_that_reports_is_not_overwritten(table: Path) -> None:
    made("elsewhere", "p5.48xlarge", 90.0)

    with pytest.raises(CommandError, match="not an imported log"):
        imported(str(table))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(CommandError, match=r"FILE: .*nothing.csv"):
        imported("/tmp/nothing.csv")
