"""Invalid input to `manage.py import_log`: the error names the fix; nothing is stored."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import DatabaseError

from fleet.models import Annotation, CompileEvent, ReadLog, Run
from telemetry.store import durable
from tests.helpers import NOON
from tests.importers.import_command import A, Write, dated, imported, n_stored, refused
from tests.importers.logs.log_lines import at, bar, call, done, megatron, neuronx

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
    shown = refused(write("hello", f"{at(0)} world"))
    assert "has no line of a known kind among 2. The first lines:\n  1: hello\n" in shown
    assert not Run.objects.exists()


MINE = [
    f"update {n:4d} of 500: loss={10 - n / 100:.6f} took {1_250 + n}.25 ms at 419430 tokens per s"
    for n in range(1, 6)
]
OTHER = [f"batch {n}: loss {3 - n / 100:.4f}, speed 135.25 samples" for n in (10, 20, 30)]
KERAS = [f"Epoch {n}/9 - loss: 0.5000 - accuracy: 0.8125 - 12s" for n in (1, 2, 3)]
UNTIMED = [f"Iteration {n}, train loss: {3 - n / 100:.4f}" for n in (10, 20, 30)]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (MINE, "Their format is not known."),
        (OTHER, "Their format is not known."),
        (KERAS, "They have no step number."),
        (UNTIMED, "They have neither the time of a step nor a rate."),
    ],
    ids=["one of our own", "another", "Keras", "no times"],
)
def test_a_format_that_is_not_known_is_quoted_with_what_it_lacks(
    write: Write, lines: list[str], reason: str
) -> None:
    noise = ["Loading the dataset", "compiled the model at step 0", "learning_rate: 0.001"]
    shown = refused(write(*noise, *lines)).splitlines()

    assert "has no line of a known kind among" in shown[0]
    quoted = [" ".join(line.split())[:60] for line in lines[:3]]
    assert [line.strip()[:63] for line in shown[1:4]] == [
        f"{number}: {text}" for number, text in enumerate(quoted, 4)
    ]
    assert shown[4].startswith(reason)
    assert "use import_run" in shown[4]
    assert not Run.objects.exists()


def test_the_option_that_helps_is_named(write: Write) -> None:
    assert "--global-batch and --seq-len" in refused(write(*MINE))
    assert "--step-s" in refused(write(*UNTIMED))


def test_steps_without_any_time_have_none_and_the_fix_is_said(write: Write) -> None:
    shown = StringIO()
    lines = [f"Step {n} | loss:2.5 lr:2e-05 tokens_per_second_per_gpu:2000.5 " for n in (10, 20)]
    found = imported(write(*lines), stderr=shown)

    assert (found["family"], found["steps"], found["loss"]) == ("torchtune", 2, 2.5)
    assert (found["step_s"], found["tokens"]) == (None, None)
    assert "import_run takes a table with ended_at, or --step-s" in shown.getvalue()


def test_a_log_of_compiles_with_steps_in_an_unknown_format_says_so(write: Write) -> None:
    shown = StringIO()
    imported(write(call(A), done(A, seconds=60), *OTHER), stderr=shown)

    assert "no step was read, although line 3 looks like training" in shown.getvalue()


def test_steps_of_a_bare_bar_are_said_to_be_so(write: Write) -> None:
    shown = StringIO()
    found = imported(write(bar(10), bar(20, clock="10:30")), stderr=shown)

    assert (found["family"], found["steps"], found["step_s"]) == ("progress", 2, 2.75)
    assert "the steps are those of the longest bar" in shown.getvalue()


def test_a_step_time_that_needs_the_batch_says_so(write: Write) -> None:
    line = (
        "[2026-05-01 12:00:00,000] [INFO] [timer.py:260:stop] epoch=0/micro_step=9/global_step=9"
    )
    shown = StringIO()
    imported(write(f"{line}, RunningAvgSamplesPerSec=62.5, CurrSamplesPerSec=64.0"), stderr=shown)

    assert "1\u202fstep without a duration" in shown.getvalue()
    assert "--global-batch makes it known" in shown.getvalue()


def test_clocks_that_contradict_each_other_are_said(write: Write) -> None:
    shown = StringIO()
    lines = [f"{dated(30.0 * n)} {neuronx(n)}" for n in range(6)]
    found = imported(write(*lines), stderr=shown)

    assert found["step_s"] == 9.2
    assert (
        "a step takes 30.0\u202fs by the line times and 9.20\u202fs by the logged step time"
        in shown.getvalue()
    )


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
