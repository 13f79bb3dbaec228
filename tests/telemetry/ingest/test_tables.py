"""Step tables: columns, preferences, invalid cells."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from telemetry.ingest.exports import TableError
from telemetry.ingest.logs import LoggedSteps, complete_steps
from telemetry.ingest.tables import read_tables

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Give a function that writes a file of lines."""

    def written(*lines: str, name: str = "steps.csv") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return written


def steps_of(*files: tuple[str, Path]) -> LoggedSteps:
    return complete_steps(read_tables(files).steps, global_batch=np.nan, seq_len=np.nan)


def test_our_own_columns(write: Write) -> None:
    path = write(
        "step,ended_at,step_s,tokens,loss",
        "1,2026-11-01T00:00:02Z,2.0,4096,9.5",
        "2,1793491204,2.5,4096,",
        "3,1793491206000,2.25,4096,nan",
    )

    steps = steps_of(("loss", path))

    assert steps.step.tolist() == [1, 2, 3]
    assert steps.at_s.tolist() == [1793491202, 1793491204, 1793491206]
    assert steps.step_s.tolist() == [2.0, 2.5, 2.25]
    assert steps.tokens.tolist() == [4096] * 3
    np.testing.assert_array_equal(steps.loss, [9.5, np.nan, np.nan])


def test_without_durations_the_ends_tell(write: Write) -> None:
    path = write("step,ended_at,tokens", "10,100,64", "20,130,64", "30,150,64")

    steps = steps_of(("loss", path))

    np.testing.assert_array_equal(steps.step_s, [np.nan, 3.0, 2.0])
    assert steps.tokens.tolist() == [64] * 3


def test_a_weights_and_biases_history(write: Write) -> None:
    path = write(
        ",_step,_runtime,_timestamp,train/loss,train/global_step_time,epoch",
        "0,1,2.5,1793491202.5,9.5,2.5,0.1",
        "1,2,5.0,1793491205.0,9.25,2.5,0.2",
    )
    log = read_tables([("loss", path)])

    steps = complete_steps(log.steps, global_batch=np.nan, seq_len=np.nan)

    assert steps.loss.tolist() == [9.5, 9.25]
    assert steps.step_s[1] == 2.5
    [left_out] = log.notes
    assert left_out.startswith("columns left out: ")
    assert "epoch" in left_out


def test_tensorboards_tables_of_one_metric_each_are_put_together(write: Write) -> None:
    loss = write("Wall time,Step,Value", "100.0,1,9.5", "102.0,2,9.0", name="loss.csv")
    rate = write("Wall time,Step,Value", "100.0,1,512", "102.0,2,500", name="rate.csv")

    steps = steps_of(("loss", loss), ("tokens_per_s", rate))

    assert steps.loss.tolist() == [9.5, 9.0]
    assert steps.tokens[1] == 1000


def test_tensorboards_json(write: Write) -> None:
    path = write(json.dumps([[100.0, 1, 9.5], [102.0, 2, 9.0]]), name="loss.json")

    assert steps_of(("loss", path)).loss.tolist() == [9.5, 9.0]


def test_mlflows_history_of_a_metric(write: Write) -> None:
    entries = [
        {"key": "train_loss", "value": 9.5, "timestamp": 1793491202000, "step": 1},
        {"key": "train_loss", "value": 9.0, "timestamp": 1793491204000, "step": 2},
    ]
    path = write(json.dumps({"metrics": entries}), name="loss.json")

    steps = steps_of(("loss", path))

    assert steps.loss.tolist() == [9.5, 9.0]
    assert steps.at_s.tolist() == [1793491202, 1793491204]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("step,loss", "1,9.5", "2,many"), "line 3, column 'loss': 'many' is not a number"),
        (("step,step_s", "1,-2"), "line 2, column 'step_s': -2 is out of range"),
        (("step,loss", "1.5,9"), "line 2, column 'step': 1.5 is out of range"),
        (("step,loss", ",9"), "line 2, column 'step': is missing"),
        (("step,ended_at", "1,yesterday"), "line 2, column 'ended_at': 'yesterday' is not a time"),
        (("step,loss", "1"), "line 2, column 'step': has 1 cells; the header has 2"),
        (("step,loss", "1,2,3"), "has 3 cells; the header has 2"),
        (("epoch,loss", "1,2"), "line 1: has no column 'step'; it has epoch, loss"),
        (("{",), "is not complete JSON"),
        (('{"rows": 5}',), "has no list of entries"),
        (("[5]",), "line 1, column 'entry'"),
        (("",), "has no row; export it again"),
        (("step,loss",), "has no row; export it again"),
        (
            ("step,loss", "1,2", "2,1"),
            "has loss, but no times of its steps; add a column ended_at",
        ),
        (("step,loss,ended_at", *["0,2,5"] * 11), "has 11 values, all of step 0; log each with"),
    ],
)
def test_what_cannot_be_is_named_by_line_and_column(
    write: Write, lines: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(TableError) as refused:
        read_tables([("loss", write(*lines))])

    assert str(refused.value).startswith("steps.csv: ")
    assert reason in str(refused.value)


def test_of_two_columns_of_a_field_the_preferred_one_counts(write: Write) -> None:
    path = write("train/loss,step,ended_at,loss", "2,1,100,3", "4,2,102,")
    log = read_tables([(None, path)])

    steps = complete_steps(log.steps, global_batch=np.nan, seq_len=np.nan)

    np.testing.assert_array_equal(steps.loss, [3, np.nan])
    assert log.notes == ["loss is used, train/loss is not"]


def test_the_seconds_of_a_step_may_be_given(write: Write) -> None:
    untimed = read_tables([(None, write("step,loss", "1,2", "2,1"))], step_s=1.5)
    timed = read_tables([(None, write("step,step_s", "1,2", "2,2"))], step_s=1.5)

    assert untimed.steps.columns()["step_s"].tolist() == [1.5, 1.5]
    assert timed.steps.columns()["step_s"].tolist() == [2, 2]
    assert timed.notes == ["--step-s is not used: the export has times"]


def test_a_step_trained_again_has_its_later_figures_and_time(write: Write) -> None:
    rows = ["1,100,9", "2,102,8", "3,104,7", "2,200,8.5", "3,202,7.5"]
    log = read_tables([(None, write("step,ended_at,loss", *rows))])

    assert log.steps.columns()["loss"].tolist() == [9, 8.5, 7.5]
    assert log.steps.columns()["at_s"].tolist() == [100, 200, 202]
    assert log.steps.n_retrained == 2


def test_figures_of_one_step_have_its_first_time(write: Write) -> None:
    rows = ["1,100,9,", "1,101,,0.5", "2,102,8,", "2,103,,0.5"]
    log = read_tables([(None, write("step,ended_at,loss,lr", *rows))])

    assert log.steps.columns()["loss"].tolist() == [9, 8]
    assert log.steps.columns()["learning_rate"].tolist() == [0.5, 0.5]
    assert log.steps.columns()["at_s"].tolist() == [100, 102]
    assert log.steps.n_retrained == 0


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.bin"
    path.write_bytes(b"\x18\x00\xff\xfe\x80")

    with pytest.raises(TableError, match="is not UTF-8 text; export it as CSV or JSON"):
        read_tables([("loss", path)])
