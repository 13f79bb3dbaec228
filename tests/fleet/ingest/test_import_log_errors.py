"""Invalid input to `manage.py import_log`: the error names the fix; nothing is stored."""

from pathlib import Path
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import DatabaseError

from fleet.models import Annotation, CompileEvent, ReadLog, Run
from telemetry.store import durable
from tests.fleet.ingest.import_command import Write, imported, n_stored, refused
from tests.helpers import NOON
from tests.telemetry.ingest.logs.log_lines import at, megatron, neuronx

pytestmark = pytest.mark.django_db


def test_a_run_of_the_fleet_is_never_replaced(file: Path, run: Run) -> None:
    assert "is not an imported log; choose another name" in refused(file, run=run.name)
    assert not ReadLog.objects.exists()


@pytest.mark.parametrize("name", ["", "a b", "x" * 61, "../up"])
def test_a_name_that_is_none_is_refused(file: Path, name: str) -> None:
    assert refused(file, run=name).startswith("--run: ")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("nodes", -1),
        ("global_batch", -5),
        ("seq_len", 10**12),
        ("tp", 0),
        ("log_every", 0),
        ("utc_offset", 25.0),
        ("utc_offset", float("nan")),
        ("started_at", "yesterday"),
        ("started_at", "0001-01-01"),
        ("model", "x" * 61),
        ("team", "a\x00b"),
    ],
)
def test_an_option_that_cannot_be_is_named(file: Path, option: str, value: Any) -> None:
    assert refused(file, **{option: value}).startswith(f"--{option.replace('_', '-')}: ")
    assert not Run.objects.exists()


def test_files_that_say_nothing_are_refused(write: Write, tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "gone.log")
    assert "Is a directory" in refused(tmp_path)
    (tmp_path / "empty.log").touch()
    assert "empty.log is empty" in refused(tmp_path / "empty.log")
    assert "has no line of a known kind among 2" in refused(write("hello", f"{at(0)} world"))
    assert not Run.objects.exists()


def test_steps_that_take_longer_than_anybody_waits_are_refused(write: Write) -> None:
    path = write(*(neuronx(10**9 * n, step_s=900_000) for n in (1, 2)))

    assert "take more than 100 years" in refused(path)
    assert not Run.objects.exists()


def test_figures_beyond_any_run_are_left_out(write: Write) -> None:
    found = imported(write(megatron(10).replace("256 |", "999999999999 |")), seq_len=2 * 10**9)

    assert (found["tokens"], found["global_batch"]) == (None, None)


def test_nothing_is_half_stored(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(file)

    def broken(_steps: object) -> None:
        raise DatabaseError("the disk is full")

    monkeypatch.setattr(durable, "write_steps", broken)
    for name in ("logged", "another"):
        with pytest.raises(CommandError, match="the disk is full"):
            imported(file, run=name)

    assert list(Run.objects.values_list("name", flat=True)) == ["logged"]
    assert (n_stored(), CompileEvent.objects.count(), Annotation.objects.count()) == (10, 2, 1)


def test_a_log_is_not_laid_over_what_a_job_reported(file: Path, run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(heard_at=NOON)

    shown = refused(file, run=run.name)

    assert shown == (
        f"--run: {run.name} reports its own steps, which have more detail than its log; "
        "import the log as another run"
    )
