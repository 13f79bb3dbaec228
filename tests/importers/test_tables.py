"""Step tables: columns, preferences, invalid cells."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from importers.exports import TableError
from importers.logs import LoggedSteps, complete_steps
from importers.tables import read_tables

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Give a function that writes a file of lines."""

    def written(*lines: str, name: str = "steps.csv") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return written


def steps_of(*files: tuple[str | None, Path]) -> LoggedSteps:
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


DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "steps", "last", "step_s", "loss"),
    [
        ("70-lightning-metrics.csv", 8, 399, 1.9, 2.0),
        ("72-wandb-relative-time.csv", 20, 190, 2.2, 4.1),
    ],
)
def test_an_export_of_a_real_tracker_has_its_right_figures(
    name: str, steps: int, last: int, step_s: float, loss: float
) -> None:
    found = steps_of((None, DATA / name))

    assert (len(found), found.step[-1], found.loss[-1]) == (steps, last, loss)
    assert np.nanmedian(found.step_s) == pytest.approx(step_s)


def test_what_counts_samples_is_refused_with_what_is_missing() -> None:
    with pytest.raises(
        TableError, match=r"counts samples, and it has no column of times \(ended_"
    ):
        read_tables([(None, DATA / "73-deepspeed-csv-monitor.csv")], step_s=2.0)


COMET = [
    {"metricName": name, "metricValue": str(value), "timestamp": 1793491200000 + 2000 * step}
    | {"step": step, "epoch": None, "runContext": None, "experimentKey": "a1"}
    for step in (1, 2, 3)
    for name, value in (("loss", 9.0 - step), ("sys.gpu.0.power", 300))
]
NEPTUNE = [
    "custom_run_id,attribute_path,attribute_type,step,timestamp,float_value,string_value",
    *(f"r,train/loss,float_series,{n},2026-11-01T00:00:0{2 * n}Z,{9 - n},," for n in (1, 2, 3)),
]
NANOSECONDS = [
    "step,timestamp,loss",
    *(f"{n},{1793491200 + 2 * n}000000000,{9 - n}" for n in (1, 2, 3)),
]
SAME = (("step", "1,2,3"), ("at", "2,4,6"))


@pytest.mark.parametrize(
    "lines",
    [
        [json.dumps(COMET)],
        [json.dumps({"metrics": COMET})],
        [line.removesuffix(",") for line in NEPTUNE],
        [
            "wall_time,step,tag,value",
            "100,1,train/loss,8",
            "102,2,train/loss,7",
            "104,3,train/loss,6",
        ],
        ["step;loss;time"]
        + [f"{n};{9 - n},0;{2 * n + 0.25}".replace(".", ",") for n in (1, 2, 3)],
        ["step\tloss\tstep_s"] + [f"{n}\t{9 - n}\t2" for n in (1, 2, 3)],
        ["Relative Time (Wall),r - step,r - loss"] + [f"{2 * n},{n},{9 - n}" for n in (1, 2, 3)],
        NANOSECONDS,
        [line.replace("000000000,", "000000,") for line in NANOSECONDS],
        # Evaluations and epochs without a step stand between the rows of training.
        [
            "step,loss,time,val_loss",
            "1,8,100,",
            ",,,",
            "2,7,102,",
            ",,,9.5",
            ",,103,9",
            "3,6,104,",
        ],
        ["step,loss,ended_at", "3,6,104", "1,8,100", "2,7,102", "2,7,102"],
        ["Relative Time (Wall),r - step,r - step__MAX,r - loss,r - loss__MAX"]
        + [f"{2 * n},{n},{n},{9 - n},{9 - n}" for n in (1, 2, 3)],
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_trackers_and_their_encodings(write: Write, lines: list[str], encoding: str) -> None:
    path = write(*lines)
    path.write_text(path.read_text(), encoding=encoding)
    log = read_tables([(None, path)])
    found = complete_steps(log.steps, global_batch=np.nan, seq_len=np.nan)

    assert found.step.tolist() == [1, 2, 3]
    assert found.loss.tolist() == [8, 7, 6]
    assert found.step_s[1:] == pytest.approx([2.0, 2.0])
    assert log.steps.n_retrained == 0


def test_times_and_tokens_that_count_from_the_beginning(write: Write) -> None:
    """So litgpt's logger writes them."""
    path = write(
        "loss,step,time,tokens", *(f"{9 - n},{n},{2 * n},{4096 * n}" for n in range(1, 5))
    )
    log = read_tables([(None, path)], began_s=1.7e9)
    found = complete_steps(log.steps, global_batch=np.nan, seq_len=np.nan)

    assert found.at_s.tolist() == [1.7e9 + 2 * n for n in range(1, 5)]
    assert found.tokens.tolist() == [4096] * 4
    assert log.notes == ["tokens grow with the steps: they are those trained so far"]


def test_a_chart_of_two_runs_without_extremes_asks_for_one(write: Write) -> None:
    path = write("Step,a - loss,b - loss", "1,8,9", "2,7,9")

    with pytest.raises(TableError, match="is of 2 runs: a, b; choose one by --export-run"):
        read_tables([(None, path)], step_s=1)
    assert read_tables([(None, path)], step_s=1, run="a").steps.columns()["loss"].tolist() == [
        8,
        7,
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ["step,loss,step_s", "1,8,2", "2,NaN,2", "3,nan,2"],
        [
            '{"step": 1, "loss": 8, "step_s": 2}',
            '{"step": 2, "loss": NaN, "step_s": 2}',
            '{"step": 3, "loss": "NaN", "step_s": 2}',
        ],
        [
            '[{"step": 1, "loss": 8, "step_s": 2}, {"step": 2, "loss": nan, "step_s": 2},',
            '{"step": 3, "loss": -nan, "step_s": 2}]',
        ],
    ],
)
def test_a_loss_that_is_no_number_is_data(write: Write, lines: list[str]) -> None:
    found = steps_of((None, write(*lines)))

    assert np.isnan(found.loss).tolist() == [False, True, True]
    [figure] = found.not_finite
    assert (figure.name, figure.value, figure.since) == ("loss", "NaN", 2)


def test_nan_that_stands_for_missing_is_not_data(write: Write) -> None:
    """pandas writes NaN for what a row of another kind lacks."""
    found = steps_of(
        (None, write("step,loss,step_s,val_loss", "1,8,2,nan", "1,nan,nan,9", "2,7,2,nan"))
    )

    assert found.loss.tolist() == [8, 7]
    assert not found.not_finite
